"""Canaille, protected by a wrapper as the README says, and asked for tokens. Runs where Canaille is installed.

The module is what its operator would serve: ``app`` is Canaille with limits.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from canaille.oidc.provider import authorization

from oauth_ratelimit import OAuthRateLimit

LIMITS = {"mode": "enforce", "limits": {"client": ["3/minute"], "user": ["2/minute"]}}
SETTINGS = {
    "SECRET_KEY": "a secret",
    "SERVER_NAME": "localhost",
    "TESTING": True,
    "CANAILLE": {"DATABASE": "memory"},
    "CANAILLE_OIDC": {},
}

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
app = create_app(SETTINGS)
app.config["OAUTH_RATELIMIT_CONFIG"] = LIMITS
ratelimit = OAuthRateLimit()
ratelimit.init_app(app, authorization)


def make_client() -> Any:
    return models.Client(
        client_id="portal",
        client_secret="portal-secret",
        client_name="Portal",
        redirect_uris=["https://portal.example/callback"],
        grant_types=["client_credentials", "password", "refresh_token"],
        response_types=["code"],
        scope=["openid", "profile"],
        token_endpoint_auth_method="client_secret_basic",
    )


def main() -> None:
    """Ask for tokens until the limits are reached, and say what was seen."""
    with app.app_context(), Backend.instance.session():
        user = models.User(formatted_name="Alice", family_name="A", user_name="alice", password="alice-password")
        Backend.instance.save(user)
        Backend.instance.save(make_client())
        browser = app.test_client()

        def ask(**form: str) -> Callable[[], int]:
            auth = ("portal", "portal-secret")
            return lambda: browser.post("/oauth/token", data=form, auth=auth).status_code

        job = ask(grant_type="client_credentials", scope="openid")
        login = ask(grant_type="password", username="alice", password="alice-password", scope="openid")
        seen = [job() for _ in range(4)], [login() for _ in range(3)]
    ratelimit.close(app)
    assert seen == ([200, 200, 200, 429], [200, 200, 429]), seen
    sys.stdout.write(f"client_credentials {seen[0]}, password {seen[1]}\n")


if __name__ == "__main__":
    main()
