"""A server whose workers guard passwords, and write down each one that they check.

Environment:
    GUESS_LIMIT: Wrong passwords of a user in ten minutes.
    GUESS_CHECKED: File with a byte for each password that was checked.
    GUESS_MONGO_URI: Where failures are shared; without it on this host only.
"""

import hashlib
import os
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749.grants import ResourceOwnerPasswordCredentialsGrant
from flask import Flask

from oauth_ratelimit import OAuthRateLimit
from testbed.oauth_server.models import Client, User

RIGHT = "right"
HASH_ROUNDS = 20_000  # some milliseconds
checked = os.open(os.environ["GUESS_CHECKED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class PasswordGrant(ResourceOwnerPasswordCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)

    def authenticate_user(self, username: str, password: str) -> User | None:
        os.write(checked, b".")
        hashlib.pbkdf2_hmac("sha256", password.encode(), b"", HASH_ROUNDS)
        return User(username, RIGHT) if password == RIGHT else None


def save_token(token: Any, request: Any) -> None:
    """Forget it."""


app = Flask("guesses")
server = AuthorizationServer(app, query_client=Client, save_token=save_token)
server.register_grant(PasswordGrant)
app.add_url_rule("/token", view_func=server.create_token_response, methods=["POST"], endpoint="token")
app.config["OAUTH_RATELIMIT_CONFIG"] = {
    "limits": {},
    "store": {"uri": os.environ.get("GUESS_MONGO_URI")},
    "guard": {"mode": "enforce", "limits": {"user": [f"{os.environ['GUESS_LIMIT']} per 10 minute"]}},
}
OAuthRateLimit(app, server)
