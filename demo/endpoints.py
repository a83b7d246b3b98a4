# mypy: disallow-subclassing-any=False
# Authlib ships no type information: its classes are Any.
"""The endpoints beside /token: revocation, introspection, device authorization."""

import time
from typing import Any

from authlib.oauth2.rfc7009 import RevocationEndpoint as BaseRevocationEndpoint
from authlib.oauth2.rfc7662 import IntrospectionEndpoint as BaseIntrospectionEndpoint
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint as BaseDeviceAuthorizationEndpoint
from flask import url_for

from demo.accounts import accounts
from demo.grants import ISSUER, WITH_OR_WITHOUT_SECRET, WITH_SECRET
from demo.records import DEVICE_POLL_INTERVAL_S, Client, DeviceCode, Token


def query_token(token_string: str, token_type_hint: str | None) -> Token | None:
    """Find a token by either of its strings; the hint only says which to try first."""
    stored = accounts()
    lookups = [stored.token_by_access, stored.token_by_refresh]
    if token_type_hint == "refresh_token":
        lookups.reverse()
    found = (lookup(token_string) for lookup in lookups)
    return next((token for token in found if token is not None), None)


class RevocationEndpoint(BaseRevocationEndpoint):
    CLIENT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return query_token(token_string, token_type_hint)

    def revoke_token(self, token: Token, _request: Any) -> None:
        accounts().revoke(token)


class IntrospectionEndpoint(BaseIntrospectionEndpoint):
    CLIENT_AUTH_METHODS = WITH_SECRET

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return query_token(token_string, token_type_hint)

    def check_permission(self, _token: Token, _client: Client, _request: Any) -> bool:
        return True  # any client with a secret: resource servers ask about tokens of others

    def introspect_token(self, token: Token) -> dict[str, Any]:
        user = {"username": token.username, "sub": token.username} if token.username else {}
        return {
            "active": True,
            "client_id": token.client_id,
            "token_type": "Bearer",
            "scope": token.scope,
            "iss": ISSUER,
            "iat": token.issued_at_s,
            "exp": token.issued_at_s + token.expires_in_s,
            **user,
        }


class DeviceAuthorizationEndpoint(BaseDeviceAuthorizationEndpoint):
    CLIENT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET
    INTERVAL = DEVICE_POLL_INTERVAL_S

    def get_verification_uri(self) -> str:
        return url_for("device", _external=True)

    def save_device_credential(self, client_id: str, scope: str | None, data: dict[str, Any]) -> None:
        accounts().add_device_code(
            DeviceCode(
                device_code=data["device_code"],
                user_code=data["user_code"],
                client_id=client_id,
                scope=scope or "",
                expires_at_s=int(time.time()) + data["expires_in"],
                polled_at_s=0.0,
                username=None,
            )
        )
