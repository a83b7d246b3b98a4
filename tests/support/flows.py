"""
Every grant as a request that can be sent again: the last step, with the same code, token, device code or assertion.
"""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from authlib.oauth2.rfc7523 import JWTBearerGrant

from testbed.oauth_server.database import BATCH_JOBS, MOBILE_APP, PARTNER_BANK, WEB_SHOP
from testbed.oauth_server.grants import TokenExchangeGrant
from testbed.oauth_server.models import (
    GRANT_DEVICE_CODE,
    GRANT_JWT_BEARER,
    GRANT_OWN_TOKEN,
    GRANT_TOKEN_EXCHANGE,
    Client,
)

TIMEOUT_S = 60
REDIRECT_URI = WEB_SHOP.redirect_uris[0]


@dataclass(frozen=True)
class GrantRequest:
    """A token request; calling it sends it, as often as wanted."""

    url: str  # the token endpoint
    client_id: str  # whose counter it moves, together with `username`
    username: str | None  # None for grants without a user
    form: Mapping[str, str]  # the form, with the client's name if it has no secret
    # Credentials for HTTP Basic; None for a public client or an assertion, which names its client itself
    auth: tuple[str, str] | None = None

    @property
    def grant_type(self) -> str:
        return self.form["grant_type"]

    def __call__(self, **options: Any) -> requests.Response:
        return requests.post(self.url, data=self.form, auth=self.auth, timeout=TIMEOUT_S, **options)


def password_of(username: str) -> str:
    """Return the password that the demo's seed gives its users."""
    return f"{username}-password"


def request_by(client: Client, url: str, form: Mapping[str, str], username: str | None = None) -> GrantRequest:
    """Return a request of the client: with HTTP Basic, or by name alone if it has no secret."""
    if client.client_secret is None:
        return GrantRequest(url, client.client_id, username, {**form, "client_id": client.client_id})
    return GrantRequest(url, client.client_id, username, form, (client.client_id, client.client_secret))


def post(url: str, client: Client, form: Mapping[str, str]) -> requests.Response:
    return request_by(client, url, form)()


def issue(base_url: str, client: Client, form: Mapping[str, str]) -> dict[str, Any]:
    response = post(f"{base_url}/token", client, form)
    assert 200 == response.status_code, response.text
    token: dict[str, Any] = response.json()
    return token


def authorize(base_url: str, client: Client, **parameters: str) -> requests.Response:
    """Visit /authorize as a browser would, without following the redirect."""
    query = {"client_id": client.client_id, "redirect_uri": REDIRECT_URI, "state": "some-state", **parameters}
    return requests.get(f"{base_url}/authorize", params=query, allow_redirects=False, timeout=TIMEOUT_S)


def redirect_parameters(response: requests.Response) -> dict[str, str]:
    """Return what a redirect carries, in its query or its fragment."""
    assert 302 == response.status_code, response.text
    target = urlsplit(response.headers["Location"])
    return {name: values[0] for name, values in parse_qs(target.fragment or target.query).items()}


def _grant(client: Client, username: str | None, base_url: str, /, **form: str) -> GrantRequest:
    return request_by(client, f"{base_url}/token", form, username)


def _login(base_url: str, username: str, grant_type: str = "password") -> GrantRequest:
    form = {"grant_type": grant_type, "username": username, "password": password_of(username), "scope": "profile"}
    return _grant(WEB_SHOP, username, base_url, **form)


def _authorization_code(
    client: Client, username: str, base_url: str, *, verifier: Mapping[str, str] | None = None, **asked: str
) -> GrantRequest:
    asking = {"response_type": "code", "scope": "profile", "user": username, **asked}
    form = {
        "grant_type": "authorization_code",
        "code": redirect_parameters(authorize(base_url, client, **asking))["code"],
        "redirect_uri": REDIRECT_URI,
        **(verifier or {}),
    }
    return _grant(client, username, base_url, **form)


def _authorization_code_pkce(base_url: str) -> GrantRequest:
    """A public client: the verifier stands in for the secret."""
    verifier = secrets.token_urlsafe(48)
    challenge = _base64url(hashlib.sha256(verifier.encode()).digest())
    asked = {"code_challenge": challenge, "code_challenge_method": "S256"}
    return _authorization_code(MOBILE_APP, "carol", base_url, verifier={"code_verifier": verifier}, **asked)


def _refresh_token(base_url: str) -> GrantRequest:
    """The first pair comes from the password grant, so it costs one token of the same client and user."""
    first = issue(base_url, WEB_SHOP, _login(base_url, "erin").form)
    return _grant(WEB_SHOP, "erin", base_url, grant_type="refresh_token", refresh_token=first["refresh_token"])


def _device_code(base_url: str) -> GrantRequest:
    """Approved before the first poll, so each attempt asks for the token."""
    started = post(f"{base_url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
    approval = {"user_code": started["user_code"], "user": "frank"}
    approved = requests.get(f"{base_url}/device", params=approval, timeout=TIMEOUT_S)
    assert 200 == approved.status_code, approved.text
    return _grant(MOBILE_APP, "frank", base_url, grant_type=GRANT_DEVICE_CODE, device_code=started["device_code"])


def _assertion(username: str | None, base_url: str) -> GrantRequest:
    assert PARTNER_BANK.client_secret is not None
    key = {"kty": "oct", "k": _base64url(PARTNER_BANK.client_secret.encode())}
    url = f"{base_url}/token"
    assertion = JWTBearerGrant.sign(
        key, issuer=PARTNER_BANK.client_id, audience=url, subject=username, header={"alg": "HS256"}
    )
    if isinstance(assertion, bytes):  # Authlib before 1.7
        assertion = assertion.decode()
    form = {"grant_type": GRANT_JWT_BEARER, "assertion": assertion, "scope": "profile"}
    return GrantRequest(url, PARTNER_BANK.client_id, username, form)


def _token_exchange(base_url: str) -> GrantRequest:
    """The subject token was issued to another client, so the exchange is the first hit of its own key."""
    form = {
        "grant_type": GRANT_TOKEN_EXCHANGE,
        "subject_token": issue(base_url, WEB_SHOP, _login(base_url, "heidi").form)["access_token"],
        "subject_token_type": TokenExchangeGrant.ACCESS_TOKEN_TYPE,
    }
    return _grant(PARTNER_BANK, "heidi", base_url, **form)


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


FLOWS: Mapping[str, Callable[[str], GrantRequest]] = {
    "client_credentials": partial(_grant, BATCH_JOBS, None, grant_type="client_credentials", scope="profile"),
    "password": partial(_login, username="alice"),
    "authorization_code": partial(_authorization_code, WEB_SHOP, "bob"),
    "authorization_code_pkce": _authorization_code_pkce,
    "authorization_code_openid": lambda base_url: _authorization_code(
        WEB_SHOP, "dave", base_url, scope="openid profile", nonce=secrets.token_hex()
    ),
    "refresh_token": _refresh_token,
    "device_code": _device_code,
    "jwt_bearer": partial(_assertion, None),
    "jwt_bearer_subject": partial(_assertion, "grace"),
    "token_exchange": _token_exchange,
    "own_token": partial(_login, username="ivan", grant_type=GRANT_OWN_TOKEN),
}


@dataclass(frozen=True)
class Visit:
    """A visit to the authorization endpoint that asks for a token. Each has a nonce of its own."""

    base_url: str
    client: Client
    username: str
    response_type: str
    scope: str = "openid profile"

    def __call__(self) -> requests.Response:
        asked = {"response_type": self.response_type, "scope": self.scope, "user": self.username}
        return authorize(self.base_url, self.client, **asked, nonce=secrets.token_hex())


FRONT_CHANNEL_FLOWS: Mapping[str, Callable[[str], Visit]] = {
    "implicit": partial(Visit, client=MOBILE_APP, username="judy", response_type="token", scope="profile"),
    "oidc_implicit": partial(Visit, client=MOBILE_APP, username="kim", response_type="id_token token"),
    "oidc_hybrid": partial(Visit, client=WEB_SHOP, username="lena", response_type="code id_token token"),
}
