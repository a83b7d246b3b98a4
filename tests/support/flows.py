"""
Every grant as a request that can be sent again: the last step, with the same code, token, device code or assertion.
"""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from authlib.oauth2.rfc7523 import JWTBearerGrant

from demo.database import BATCH_JOBS, MOBILE_APP, PARTNER_BANK, WEB_SHOP
from demo.models import (
    GRANT_DEVICE_CODE,
    GRANT_JWT_BEARER,
    GRANT_OWN_TOKEN,
    GRANT_TOKEN_EXCHANGE,
    Client,
)

TIMEOUT_S = 60
REDIRECT_URI = WEB_SHOP.redirect_uris[0]
ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"


@dataclass(frozen=True)
class GrantRequest:
    """The final request of a flow; calling it sends it, as often as wanted.

    Attributes:
        client_id: Whose counter it moves, together with `username`.
        username: None for grants without a user.
        grant_type: The grant's name at the token endpoint; for the front channel what Authlib counts it as.
        send: Sends the request.
        setup_cost: How many tokens preparing the flow took from the same counter.
    """

    client_id: str
    username: str | None
    grant_type: str
    send: Callable[[], requests.Response]
    setup_cost: int = 0

    def __call__(self) -> requests.Response:
        return self.send()


def password_of(username: str) -> str:
    """Return the password that the demo's seed gives its users."""
    return f"{username}-password"


def post(url: str, client: Client, form: Mapping[str, Any]) -> requests.Response:
    """Post a form as the client: with HTTP Basic, or by name alone if it has no secret."""
    if client.client_secret is None:
        return requests.post(url, data={**form, "client_id": client.client_id}, timeout=TIMEOUT_S)
    return requests.post(url, data=form, auth=(client.client_id, client.client_secret), timeout=TIMEOUT_S)


def token_request(base_url: str, client: Client, form: Mapping[str, Any]) -> Callable[[], requests.Response]:
    """Return a function that sends this token request."""
    return lambda: post(f"{base_url}/token", client, form)


def issue(base_url: str, client: Client, form: Mapping[str, Any]) -> dict[str, Any]:
    """Send a token request that must succeed."""
    response = token_request(base_url, client, form)()
    assert 200 == response.status_code, response.text
    token: dict[str, Any] = response.json()
    return token


def authorize(base_url: str, client: Client, parameters: Mapping[str, str]) -> requests.Response:
    """Visit /authorize as a browser would, without following the redirect."""
    query = {"client_id": client.client_id, "redirect_uri": REDIRECT_URI, "state": "some-state", **parameters}
    return requests.get(f"{base_url}/authorize", params=query, allow_redirects=False, timeout=TIMEOUT_S)


def redirect_parameters(response: requests.Response) -> dict[str, str]:
    """Return what a redirect carries, in its query or its fragment."""
    assert 302 == response.status_code, response.text
    target = urlsplit(response.headers["Location"])
    return {name: values[0] for name, values in parse_qs(target.fragment or target.query).items()}


def client_credentials(base_url: str) -> GrantRequest:
    form = {"grant_type": "client_credentials", "scope": "profile"}
    return GrantRequest(BATCH_JOBS.client_id, None, "client_credentials", token_request(base_url, BATCH_JOBS, form))


def password(base_url: str) -> GrantRequest:
    form = {"grant_type": "password", "username": "alice", "password": password_of("alice"), "scope": "profile"}
    return GrantRequest(WEB_SHOP.client_id, "alice", "password", token_request(base_url, WEB_SHOP, form))


def authorization_code(base_url: str) -> GrantRequest:
    return _code_flow(base_url, WEB_SHOP, username="bob")


def authorization_code_pkce(base_url: str) -> GrantRequest:
    """A public client: the verifier stands in for the secret."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = urlsafe_b64encode(digest).rstrip(b"=").decode()
    return _code_flow(
        base_url,
        MOBILE_APP,
        username="carol",
        asked={"code_challenge": challenge, "code_challenge_method": "S256"},
        sent={"code_verifier": verifier},
    )


def authorization_code_openid(base_url: str) -> GrantRequest:
    return _code_flow(
        base_url, WEB_SHOP, username="dave", asked={"scope": "openid profile", "nonce": secrets.token_hex()}
    )


def refresh_token(base_url: str) -> GrantRequest:
    """The first pair comes from the password grant, so it costs one token of the same client and user."""
    login = {"grant_type": "password", "username": "erin", "password": password_of("erin"), "scope": "profile"}
    form = {"grant_type": "refresh_token", "refresh_token": issue(base_url, WEB_SHOP, login)["refresh_token"]}
    return GrantRequest(
        WEB_SHOP.client_id, "erin", "refresh_token", token_request(base_url, WEB_SHOP, form), setup_cost=1
    )


def device_code(base_url: str) -> GrantRequest:
    """Approved before the first poll, so each attempt asks for the token."""
    started = post(f"{base_url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
    approval = {"user_code": started["user_code"], "user": "frank"}
    approved = requests.get(f"{base_url}/device", params=approval, timeout=TIMEOUT_S)
    assert 200 == approved.status_code, approved.text
    form = {"grant_type": GRANT_DEVICE_CODE, "device_code": started["device_code"]}
    return GrantRequest(MOBILE_APP.client_id, "frank", GRANT_DEVICE_CODE, token_request(base_url, MOBILE_APP, form))


def jwt_bearer(base_url: str) -> GrantRequest:
    return _assertion_flow(base_url, username=None)


def jwt_bearer_subject(base_url: str) -> GrantRequest:
    return _assertion_flow(base_url, username="grace")


def token_exchange(base_url: str) -> GrantRequest:
    """The subject token was issued to another client, so the exchange is the first hit of its own key."""
    login = {"grant_type": "password", "username": "heidi", "password": password_of("heidi"), "scope": "profile"}
    form = {
        "grant_type": GRANT_TOKEN_EXCHANGE,
        "subject_token": issue(base_url, WEB_SHOP, login)["access_token"],
        "subject_token_type": ACCESS_TOKEN_TYPE,
    }
    return GrantRequest(
        PARTNER_BANK.client_id, "heidi", GRANT_TOKEN_EXCHANGE, token_request(base_url, PARTNER_BANK, form)
    )


def own_token(base_url: str) -> GrantRequest:
    form = {"grant_type": GRANT_OWN_TOKEN, "username": "ivan", "password": password_of("ivan")}
    return GrantRequest(WEB_SHOP.client_id, "ivan", GRANT_OWN_TOKEN, token_request(base_url, WEB_SHOP, form))


def implicit(base_url: str) -> GrantRequest:
    return _front_channel_flow(base_url, MOBILE_APP, username="judy", response_type="token", scope="profile")


def oidc_implicit(base_url: str) -> GrantRequest:
    return _front_channel_flow(base_url, MOBILE_APP, username="kim", response_type="id_token token")


def oidc_hybrid(base_url: str) -> GrantRequest:
    return _front_channel_flow(base_url, WEB_SHOP, username="lena", response_type="code id_token token")


def _code_flow(
    base_url: str,
    client: Client,
    *,
    username: str,
    asked: Mapping[str, str] | None = None,
    sent: Mapping[str, str] | None = None,
) -> GrantRequest:
    asking = {"response_type": "code", "scope": "profile", "user": username, **(asked or {})}
    code = redirect_parameters(authorize(base_url, client, asking))["code"]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT_URI, **(sent or {})}
    return GrantRequest(client.client_id, username, "authorization_code", token_request(base_url, client, form))


def _assertion_flow(base_url: str, *, username: str | None) -> GrantRequest:
    assert PARTNER_BANK.client_secret is not None
    key = {"kty": "oct", "k": urlsafe_b64encode(PARTNER_BANK.client_secret.encode()).rstrip(b"=").decode()}
    assertion = JWTBearerGrant.sign(
        key, issuer=PARTNER_BANK.client_id, audience=f"{base_url}/token", subject=username, header={"alg": "HS256"}
    )
    if isinstance(assertion, bytes):  # Authlib before 1.7
        assertion = assertion.decode()
    form = {"grant_type": GRANT_JWT_BEARER, "assertion": assertion, "scope": "profile"}
    return GrantRequest(
        PARTNER_BANK.client_id,
        username,
        GRANT_JWT_BEARER,
        lambda: requests.post(f"{base_url}/token", data=form, timeout=TIMEOUT_S),
    )


def _front_channel_flow(
    base_url: str, client: Client, *, username: str, response_type: str, scope: str = "openid profile"
) -> GrantRequest:
    """Each attempt has a nonce of its own, as each visit of a browser has."""
    asking = {"response_type": response_type, "scope": scope, "user": username}
    return GrantRequest(
        client.client_id,
        username,
        "implicit",
        lambda: authorize(base_url, client, {**asking, "nonce": secrets.token_hex()}),
    )


FLOWS: Mapping[str, Callable[[str], GrantRequest]] = {
    flow.__name__: flow
    for flow in (
        client_credentials,
        password,
        authorization_code,
        authorization_code_pkce,
        authorization_code_openid,
        refresh_token,
        device_code,
        jwt_bearer,
        jwt_bearer_subject,
        token_exchange,
        own_token,
    )
}
FRONT_CHANNEL_FLOWS: Mapping[str, Callable[[str], GrantRequest]] = {
    flow.__name__: flow for flow in (implicit, oidc_implicit, oidc_hybrid)
}
