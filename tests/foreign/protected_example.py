"""Authlib's example server, protected by a wrapper as the README says, and asked for tokens. Runs in its checkout."""

import os
import sys

from website.app import create_app
from website.models import OAuth2Client, User, db
from website.oauth2 import authorization

from oauth_ratelimit import OAuthRateLimit

LIMITS = {"mode": "enforce", "limits": {"client": ["3/minute"], "user": ["2/minute"]}}
METADATA = {
    "grant_types": ["client_credentials", "password"],
    "scope": "profile",
    "token_endpoint_auth_method": "client_secret_basic",
}

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
app = create_app({"SECRET_KEY": "a secret", "SQLALCHEMY_DATABASE_URI": "sqlite:///:memory:"})
app.config["OAUTH_RATELIMIT_CONFIG"] = LIMITS
ratelimit = OAuthRateLimit()
ratelimit.init_app(app, authorization)


def main() -> None:
    """Ask for tokens until the limits are reached, and say what was seen."""
    with app.app_context():
        client = OAuth2Client(client_id="portal", client_secret="portal-secret", client_id_issued_at=0)
        client.set_client_metadata(METADATA)
        db.session.add_all([User(username="alice"), client])
        db.session.commit()
        browser = app.test_client()

        def ask(**form: str) -> int:
            auth = ("portal", "portal-secret")
            return browser.post("/oauth/token", data={"scope": "profile", **form}, auth=auth).status_code

        login = {"grant_type": "password", "username": "alice", "password": "valid"}
        seen = [ask(grant_type="client_credentials") for _ in range(4)], [ask(**login) for _ in range(3)]
    ratelimit.close(app)
    assert seen == ([200, 200, 200, 429], [200, 200, 429]), seen
    sys.stdout.write(f"client_credentials {seen[0]}, password {seen[1]}\n")


if __name__ == "__main__":
    main()
