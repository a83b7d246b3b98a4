"""The server of ``soak.py`` and ``start.py``: an Authlib server of very many clients, in several roles."""

import logging
import os

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from flask import Flask
from werkzeug.security import check_password_hash, generate_password_hash

from testbed.oauth_server.models import Client

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


class HashedClient(Client):
    """A client whose secret the server keeps hashed."""

    def check_client_secret(self, client_secret: str) -> bool:
        return check_password_hash(SECRET_HASH, client_secret)


def query_client(client_id: str) -> Client:
    """Return one of very many clients, all with the same secret."""
    return (Client if IS_PLAIN else HashedClient)(client_id, "secret")


def served() -> Flask:
    """Return the application that gunicorn serves."""
    app = Flask("soak")
    server = AuthorizationServer(app, query_client=query_client, save_token=lambda token, request: None)
    server.register_grant(grants.ClientCredentialsGrant)
    app.add_url_rule("/token", view_func=server.create_token_response, methods=["POST"], endpoint="token")
    if (role := os.environ[ROLE_VARIABLE]) in (OURS, IN_MEMORY):
        # Not in an unprotected server, whose start and memory are the base.
        from oauth_ratelimit import OAuthRateLimit
        from oauth_ratelimit.blueprints import health_blueprint

        logging.getLogger("oauth_ratelimit").setLevel(logging.CRITICAL)
        uri = os.environ[URI_VARIABLE] if role == OURS else None
        app.config.update(OAUTH_RATELIMIT_CONFIG=CONFIG, OAUTH_RATELIMIT_MONGO_URI=uri)
        OAuthRateLimit(app, server)
        app.register_blueprint(health_blueprint())
    return app
