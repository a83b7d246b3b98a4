"""The server of ``soak.py`` and ``start.py``: an Authlib server of very many clients, in several roles."""

import os

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants
from flask import Flask
from werkzeug.security import check_password_hash, generate_password_hash

BASE, BASE_AGAIN, OURS, IN_MEMORY = "unprotected", "unprotected again", "ours", "ours in memory"
IS_PLAIN = os.environ.get("SOAK_SECRETS") == "plain"
HASHING = "pbkdf2:sha256:260000"  # Werkzeug's default until 2.3; later ones take longer
SECRET_HASH = "" if IS_PLAIN else generate_password_hash("secret", HASHING)
ROLE_VARIABLE, URI_VARIABLE = "SOAK_ROLE", "SOAK_MONGO_URI"
CONFIG = {
    "mode": "enforce",
    "limits": {"client": ["1000000/minute"]},
    "clients": {"client-0": {"limits": {"client": ["10/minute"]}}},
}


class Client(ClientMixin):  # type: ignore[misc]
    """One of many clients, all with the same secret."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id

    def get_client_id(self) -> str:
        """Return the id."""
        return self.client_id

    def get_allowed_scope(self, scope: str | None) -> str:
        """Return the scope."""
        return scope or ""

    def check_client_secret(self, client_secret: str) -> bool:
        """Return whether the secret is right."""
        return client_secret == "secret" if IS_PLAIN else check_password_hash(SECRET_HASH, client_secret)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        """Return whether the client may authenticate with the method."""
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        """Return whether the client may use the grant."""
        return grant_type == "client_credentials"


def served() -> Flask:
    """Return the application that gunicorn serves."""
    app = Flask("soak")
    server = AuthorizationServer(app, query_client=Client, save_token=lambda token, request: None)
    server.register_grant(grants.ClientCredentialsGrant)
    app.add_url_rule("/token", view_func=server.create_token_response, methods=["POST"], endpoint="token")
    if (role := os.environ[ROLE_VARIABLE]) in (OURS, IN_MEMORY):
        # Not in an unprotected server, whose start and memory are the base.
        from benchmarks.subjects import silence_log
        from oauth_ratelimit import OAuthRateLimit
        from oauth_ratelimit.blueprints import health_blueprint

        silence_log()
        uri = os.environ[URI_VARIABLE] if role == OURS else None
        app.config.update(OAUTH_RATELIMIT_CONFIG=CONFIG, OAUTH_RATELIMIT_MONGO_URI=uri)
        OAuthRateLimit(app, server)
        app.register_blueprint(health_blueprint())
    return app
