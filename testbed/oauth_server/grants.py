# mypy: disallow-subclassing-any=False
# Authlib ships no type information: its classes are Any.
"""The grants of the demo server: all that Authlib ships, OpenID Connect, and two custom ones.

They know nothing of rate limits, as those of an existing server.
"""

import base64
import time
from typing import Any

from authlib.common.security import generate_token
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.errors import InvalidGrantError, InvalidRequestError, UnauthorizedClientError
from authlib.oauth2.rfc6749.grants import BaseGrant, TokenEndpointMixin
from authlib.oauth2.rfc7523 import JWTBearerGrant as BaseJWTBearerGrant
from authlib.oauth2.rfc7636 import CodeChallenge as BaseCodeChallenge
from authlib.oauth2.rfc8628 import DeviceCodeGrant as BaseDeviceCodeGrant
from authlib.oidc.core import OpenIDCode as BaseOpenIDCode
from authlib.oidc.core import OpenIDHybridGrant as BaseOpenIDHybridGrant
from authlib.oidc.core import OpenIDImplicitGrant as BaseOpenIDImplicitGrant
from authlib.oidc.core import UserInfo
from flask import request as flask_request

from testbed.oauth_server.database import database
from testbed.oauth_server.models import (
    DEVICE_POLL_INTERVAL_S,
    GRANT_OWN_TOKEN,
    GRANT_TOKEN_EXCHANGE,
    AuthorizationCode,
    Client,
    DeviceCode,
    Token,
    User,
)

ISSUER = "https://auth.demo.example"
OWN_TOKEN_LIFETIME_S = 600
ID_TOKEN_LIFETIME_S = 3600
ID_TOKEN_ALGORITHM = "ES256"
WITH_SECRET = ["client_secret_basic", "client_secret_post"]
WITH_OR_WITHOUT_SECRET = [*WITH_SECRET, "none"]

TokenResponse = tuple[int, dict[str, Any], list[tuple[str, str]]]


def save_token(token: dict[str, Any], request: Any) -> None:
    """Store an issued token; Authlib calls this for every grant."""
    database().add_token(
        Token(
            access_token=token["access_token"],
            refresh_token=token.get("refresh_token"),
            client_id=request.client.client_id,
            username=request.user.username if request.user else None,
            scope=token.get("scope") or "",
            issued_at_s=int(time.time()),
            expires_in_s=token["expires_in"],
        )
    )


def save_authorization_code(code: str, request: Any) -> None:
    parameters = request.payload
    database().add_code(
        AuthorizationCode(
            code=code,
            client_id=request.client.client_id,
            username=request.user.username,
            redirect_uri=parameters.redirect_uri,
            scope=request.client.get_allowed_scope(parameters.scope),
            nonce=parameters.data.get("nonce"),
            code_challenge=parameters.data.get("code_challenge"),
            code_challenge_method=parameters.data.get("code_challenge_method"),
            issued_at_s=int(time.time()),
        )
    )


class ClientCredentialsGrant(grants.ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = WITH_SECRET


class PasswordGrant(grants.ResourceOwnerPasswordCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = WITH_SECRET

    def authenticate_user(self, username: str, password: str) -> User | None:
        user = database().user(username)
        return user if user and user.check_password(password) else None


class AuthorizationCodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET

    def save_authorization_code(self, code: str, request: Any) -> None:
        save_authorization_code(code, request)

    def query_authorization_code(self, code: str, client: Client) -> AuthorizationCode | None:
        found = database().code(code, client.client_id)
        return None if found is None or found.is_expired() else found

    def delete_authorization_code(self, authorization_code: AuthorizationCode) -> None:
        if not database().redeem_code(authorization_code):
            raise InvalidGrantError("Invalid 'code' in request.")

    def authenticate_user(self, authorization_code: AuthorizationCode) -> User | None:
        return database().user(authorization_code.username)


class CodeChallenge(BaseCodeChallenge):
    """PKCE: optional with a client secret, required from public clients."""

    def get_authorization_code_challenge(self, authorization_code: AuthorizationCode) -> str | None:
        return authorization_code.code_challenge

    def get_authorization_code_challenge_method(self, authorization_code: AuthorizationCode) -> str | None:
        return authorization_code.code_challenge_method


class RefreshTokenGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        token = database().token_by_refresh(refresh_token)
        return None if token is None or token.revoked else token

    def authenticate_user(self, refresh_token: Token) -> User | None:
        return database().user(refresh_token.username)

    def revoke_old_credential(self, refresh_token: Token) -> None:
        if not database().revoke(refresh_token):
            raise InvalidGrantError("The refresh token was used already.")


class DeviceCodeGrant(BaseDeviceCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET

    def query_device_credential(self, device_code: str) -> DeviceCode | None:
        return database().device_code(device_code)

    def query_user_grant(self, user_code: str) -> tuple[User, bool] | None:
        user = database().approver(user_code)
        return None if user is None else (user, True)

    def should_slow_down(self, credential: DeviceCode) -> bool:
        database().record_poll(credential)
        return time.time() - credential.polled_at_s < DEVICE_POLL_INTERVAL_S

    def create_token_response(self) -> TokenResponse:
        response: TokenResponse = super().create_token_response()
        if not database().redeem_device_code(self.request.credential):  # Authlib leaves the code usable
            raise InvalidGrantError("The device code was used already.")
        return response


class JWTBearerGrant(BaseJWTBearerGrant):
    """Assertions that a client signs with its own secret (HS256), with or without a user as subject."""

    @property
    def CLAIMS_OPTIONS(self) -> dict[str, dict[str, Any]]:
        """Required claims, by which Authlib before 1.7 checks the audience. The audience depends on the host."""
        return {
            "iss": {"essential": True},
            "aud": {"essential": True, "values": self.get_audiences()},
            "exp": {"essential": True},
        }

    def get_audiences(self) -> list[str]:
        return [ISSUER, flask_request.base_url]

    def resolve_issuer_client(self, issuer: str) -> Client | None:
        return database().client(issuer)

    def resolve_client_public_key(self, client: Client | None) -> dict[str, str]:
        """Return the key for Authlib 1.7 and later, which also asks for unknown clients."""
        if client is None or client.client_secret is None:
            raise InvalidGrantError("The issuer has no key on this server.")
        secret = base64.urlsafe_b64encode(client.client_secret.encode()).rstrip(b"=")
        return {"kty": "oct", "k": secret.decode()}

    def resolve_public_key(self, _headers: dict[str, Any], claims: dict[str, Any]) -> dict[str, str]:
        """Return the key for Authlib up to 1.6. ``resolve_client_key`` stays undefined: 1.7 would prefer it."""
        return self.resolve_client_public_key(self.resolve_issuer_client(str(claims.get("iss"))))

    def authenticate_user(self, subject: str) -> User | None:
        return database().user(subject)

    def has_granted_permission(self, client: Client, user: User) -> bool:
        return True  # every client of the demo may act for every user


class CustomGrant(BaseGrant, TokenEndpointMixin):
    """Base of the custom grants: authenticates the client."""

    TOKEN_ENDPOINT_AUTH_METHODS = WITH_SECRET

    def validate_client(self) -> None:
        client = self.authenticate_token_endpoint_client()
        if not client.check_grant_type(self.GRANT_TYPE):
            raise UnauthorizedClientError()
        self.request.client = client


class TokenExchangeGrant(CustomGrant):
    """A small RFC 8693: exchanges a user's access token for one of the requesting client, for the same user."""

    GRANT_TYPE = GRANT_TOKEN_EXCHANGE
    ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"

    def validate_token_request(self) -> None:
        self.validate_client()
        form = self.request.form
        if form.get("subject_token_type") != self.ACCESS_TOKEN_TYPE:
            raise InvalidRequestError("Only access tokens can be exchanged.")
        subject = database().token_by_access(form.get("subject_token", ""))
        if subject is None or subject.revoked or subject.is_expired():
            raise InvalidGrantError("Invalid 'subject_token' in request.")
        self.request.user = database().user(subject.username)
        self.request.credential = subject

    def create_token_response(self) -> TokenResponse:
        token = self.generate_token(
            user=self.request.user, scope=self.request.credential.scope, include_refresh_token=False
        )
        self.save_token(token)
        return 200, {**token, "issued_token_type": self.ACCESS_TOKEN_TYPE}, self.TOKEN_RESPONSE_HEADER


class OwnTokenGrant(CustomGrant):
    """A grant that builds its token itself: it calls ``save_token`` but never ``generate_token``."""

    GRANT_TYPE = GRANT_OWN_TOKEN

    def validate_token_request(self) -> None:
        self.validate_client()
        form = self.request.form
        user = self.authenticate_user(form.get("username"), form.get("password", ""))
        if user is None:
            raise InvalidGrantError("Invalid 'username' or 'password' in request.")
        self.request.user = user

    def authenticate_user(self, username: str | None, password: str) -> User | None:
        user = database().user(username)
        return user if user and user.check_password(password) else None

    def create_token_response(self) -> TokenResponse:
        token = {
            "token_type": "Bearer",
            "access_token": f"own-{generate_token(42)}",
            "expires_in": OWN_TOKEN_LIFETIME_S,
        }
        self.save_token(token)
        return 200, token, self.TOKEN_RESPONSE_HEADER


class IDTokenSigner:
    """Contents and key of ID tokens.

    Authlib calls ``get_jwt_config`` up to 1.6, with zero to two arguments, and the other methods since 1.7.
    """

    def get_jwt_config(self, *_grant_and_client: Any) -> dict[str, Any]:
        return {
            "key": database().signing_key(),
            "alg": ID_TOKEN_ALGORITHM,
            "iss": ISSUER,
            "exp": ID_TOKEN_LIFETIME_S,
        }

    def resolve_client_private_key(self, _client: Client) -> dict[str, str]:
        return database().signing_key()

    def get_client_algorithm(self, _client: Client) -> str:
        return ID_TOKEN_ALGORITHM

    def get_encode_header(self, _client: Client) -> dict[str, str]:
        return {"alg": ID_TOKEN_ALGORITHM, "kid": database().signing_key()["kid"]}

    def get_client_claims(self, client: Client) -> dict[str, Any]:
        return {"iss": ISSUER, "aud": [client.client_id], "exp": int(time.time()) + ID_TOKEN_LIFETIME_S}

    def generate_user_info(self, user: User, scope: str) -> UserInfo:
        name = {"name": user.username.title()} if "profile" in scope.split() else {}
        return UserInfo(sub=user.username, **name)

    def exists_nonce(self, nonce: str, request: Any) -> bool:
        return database().has_nonce(nonce, request.payload.client_id)


class OpenIDCode(IDTokenSigner, BaseOpenIDCode):
    """Adds an ID token to the authorization code grant if the scope holds ``openid``."""


class OpenIDImplicitGrant(IDTokenSigner, BaseOpenIDImplicitGrant):
    """response_type=id_token and id_token token, for public clients."""


class OpenIDHybridGrant(IDTokenSigner, BaseOpenIDHybridGrant):
    """response_type=code with id_token, token or both."""

    def save_authorization_code(self, code: str, request: Any) -> None:
        save_authorization_code(code, request)
