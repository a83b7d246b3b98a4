# mypy: disallow-subclassing-any=False
# Authlib ships no type information: its classes are Any.
"""OpenID Connect and the front channel: ID tokens, implicit and hybrid responses at /authorize."""

import time
from typing import Any

from authlib.oauth2.rfc6749 import grants
from authlib.oidc.core import OpenIDCode as BaseOpenIDCode
from authlib.oidc.core import OpenIDHybridGrant as BaseOpenIDHybridGrant
from authlib.oidc.core import OpenIDImplicitGrant as BaseOpenIDImplicitGrant
from authlib.oidc.core import UserInfo

from demo.accounts import accounts
from demo.grants import ISSUER, payload, save_authorization_code
from demo.records import Client, User

ID_TOKEN_LIFETIME_S = 3600
ID_TOKEN_ALGORITHM = "ES256"


class IDTokenSigner:
    """What an ID token holds and which key signs it.

    Authlib asks ``get_jwt_config`` up to 1.6 (with zero to two arguments, by release and class) and the other methods
    since 1.7.
    """

    def get_jwt_config(self, *_grant_and_client: Any) -> dict[str, Any]:
        return {
            "key": accounts().signing_key(),
            "alg": ID_TOKEN_ALGORITHM,
            "iss": ISSUER,
            "exp": ID_TOKEN_LIFETIME_S,
        }

    def resolve_client_private_key(self, _client: Client) -> dict[str, str]:
        return accounts().signing_key()

    def get_client_algorithm(self, _client: Client) -> str:
        return ID_TOKEN_ALGORITHM

    def get_encode_header(self, _client: Client) -> dict[str, str]:
        return {"alg": ID_TOKEN_ALGORITHM, "kid": accounts().signing_key()["kid"]}

    def get_client_claims(self, client: Client) -> dict[str, Any]:
        return {"iss": ISSUER, "aud": [client.client_id], "exp": int(time.time()) + ID_TOKEN_LIFETIME_S}

    def generate_user_info(self, user: User, scope: str) -> UserInfo:
        name = {"name": user.username.title()} if "profile" in scope.split() else {}
        return UserInfo(sub=user.username, **name)

    def exists_nonce(self, nonce: str, request: Any) -> bool:
        return accounts().has_nonce(nonce, payload(request).client_id)


class OpenIDCode(IDTokenSigner, BaseOpenIDCode):
    """Adds an ID token to the authorization code grant where the scope holds ``openid``."""


class ImplicitGrant(grants.ImplicitGrant):
    """response_type=token, for public clients."""


class OpenIDImplicitGrant(IDTokenSigner, BaseOpenIDImplicitGrant):
    """response_type=id_token and id_token token, for public clients."""


class OpenIDHybridGrant(IDTokenSigner, BaseOpenIDHybridGrant):
    """response_type=code with id_token, token or both."""

    def save_authorization_code(self, code: str, request: Any) -> None:
        save_authorization_code(code, request)
