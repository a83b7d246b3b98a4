"""Clients, users, codes and tokens of the demo server, with the methods that Authlib asks of its models."""

import secrets
import time
from dataclasses import dataclass

GRANT_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
GRANT_DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
GRANT_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
GRANT_OWN_TOKEN = "urn:demo:own-token"

ALL_GRANT_TYPES = (
    *("client_credentials", "password", "authorization_code", "refresh_token", "implicit"),
    *(GRANT_JWT_BEARER, GRANT_DEVICE_CODE, GRANT_TOKEN_EXCHANGE, GRANT_OWN_TOKEN),
)
ALL_RESPONSE_TYPES = (
    *("code", "token", "id_token", "id_token token"),
    *("code id_token", "code token", "code id_token token"),
)

CODE_LIFETIME_S = 300
DEVICE_POLL_INTERVAL_S = 5


@dataclass(frozen=True, slots=True)
class Client:
    """A registered OAuth client, by default with every grant type.

    Attributes:
        client_id: The public name.
        client_secret: None makes a public client, which authenticates with its name alone. It is plain text, because
            jwt-bearer assertions are verified with it; this is a demo.
        redirect_uris: The addresses to which /authorize may send a browser.
        grant_types: The grants that the client may use.
        response_types: The response types that it may use at /authorize.
        scope: The allowed scopes, separated by spaces.
    """

    client_id: str
    client_secret: str | None = None
    redirect_uris: tuple[str, ...] = ("http://localhost/callback",)
    grant_types: tuple[str, ...] = ALL_GRANT_TYPES
    response_types: tuple[str, ...] = ALL_RESPONSE_TYPES
    scope: str = "openid profile"

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str | None:
        return self.redirect_uris[0] if self.redirect_uris else None

    def get_allowed_scope(self, scope: str | None) -> str:
        allowed = self.scope.split()
        return " ".join(name for name in (scope or "").split() if name in allowed)

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return self.client_secret is not None and secrets.compare_digest(
            self.client_secret.encode(), client_secret.encode()
        )

    def check_endpoint_auth_method(self, method: str, _endpoint: str) -> bool:
        """Require the secret at every endpoint if the client has one."""
        if self.client_secret is None:
            return method == "none"
        return method in ("client_secret_basic", "client_secret_post")

    def check_response_type(self, response_type: str) -> bool:
        return response_type in self.response_types

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.grant_types


@dataclass(frozen=True, slots=True)
class User:
    """A resource owner. The password is plain text: this is a demo."""

    username: str
    password: str

    def get_user_id(self) -> str:
        return self.username

    def check_password(self, password: str) -> bool:
        return secrets.compare_digest(self.password.encode(), password.encode())


@dataclass(frozen=True, slots=True)
class AuthorizationCode:
    """A code from /authorize, which the token endpoint accepts once."""

    code: str
    client_id: str
    username: str
    redirect_uri: str | None
    scope: str
    nonce: str | None
    code_challenge: str | None
    code_challenge_method: str | None
    issued_at_s: int

    def is_expired(self) -> bool:
        return self.issued_at_s + CODE_LIFETIME_S < time.time()

    def get_redirect_uri(self) -> str | None:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str | None:
        return self.nonce

    def get_auth_time(self) -> int:
        return self.issued_at_s

    def get_acr(self) -> str | None:
        return None

    def get_amr(self) -> list[str] | None:
        return None


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A pending device authorization; ``username`` is None until a user approves it."""

    device_code: str
    user_code: str
    client_id: str
    scope: str
    expires_at_s: int
    polled_at_s: float
    username: str | None

    def get_client_id(self) -> str:
        return self.client_id

    def get_scope(self) -> str:
        return self.scope

    def get_user_code(self) -> str:
        return self.user_code

    def is_expired(self) -> bool:
        return self.expires_at_s < time.time()


@dataclass(frozen=True, slots=True)
class Token:
    """An access token and its refresh token; a revocation ends both."""

    access_token: str
    refresh_token: str | None
    client_id: str
    username: str | None
    scope: str
    issued_at_s: int
    expires_in_s: int
    revoked: bool = False

    def check_client(self, client: Client) -> bool:
        return self.client_id == client.client_id

    def get_scope(self) -> str:
        return self.scope

    def get_expires_in(self) -> int:
        return self.expires_in_s

    def is_expired(self) -> bool:
        return self.issued_at_s + self.expires_in_s < time.time()

    def is_revoked(self) -> bool:
        return self.revoked
