"""Endpoints beside the token endpoint: decided as soon as it is proven who asks, and never before.

Who is only named, like a public client without a secret, is not counted: anybody could use up somebody else's quota.

- Authlib's own endpoints (revocation, introspection, device_authorization): when the client is authenticated.
- Resources behind a ``ResourceProtector`` (userinfo, any view): when it has validated the token.
- Everything else: when the application says who asks, ``OAuthRateLimit.limit``.
"""

from collections.abc import Mapping
from typing import Any

from flask import current_app, request

from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter, Caller
from oauth_ratelimit.flask_authlib.request_state import (
    EXTENSION,
    MARK,
    PUBLIC,
    QUOTA,
    RequestState,
    environ_of_request,
    username_of,
)
from oauth_ratelimit.flask_authlib.responses import RateLimited


def decide_client(endpoint: str, client: Any, *, oauth_request: Any) -> None:
    """Raise if an authenticated client is denied at one of Authlib's endpoints."""
    if getattr(oauth_request, "auth_method", None) != PUBLIC:
        decide_at(Caller(str(client.get_client_id()), None), authlib_name=endpoint)


def decide_token(_sender: Any, token: Any = None, **_extra: Any) -> None:
    """
    Raise if the owner of a valid token is denied at the endpoint that it is used at. A receiver of Authlib's signal.
    """
    gate = _gate_with_endpoints()
    if gate is not None and (caller := gate.caller_of(token)) is not None:
        decide_at(caller)


def decide_at(caller: Caller, *, authlib_name: str | None = None) -> None:
    """Decide this HTTP request, once, if it is for a configured endpoint, and raise if it is denied.

    Args:
        caller: Who asks.
        authlib_name: What Authlib calls the endpoint, if it is one of its own.
    """
    gate = _gate_with_endpoints()
    environ = environ_of_request()
    if gate is None or environ is None:
        return
    mark: RequestState | None = environ.get(MARK)
    if mark is None:
        endpoint = _endpoint(gate, authlib_name)
        if endpoint is None:
            return
        mark = environ[MARK] = RequestState(gate, is_authorize=False, quota=environ.setdefault(QUOTA, []))
        mark.ruling = gate.decide_request(caller, caller.username, endpoint=endpoint)
        if isinstance(mark.ruling, list):
            mark.quota += mark.ruling
    if isinstance(mark.ruling, RateLimited):
        raise mark.ruling


def caller_of_token(token: Any) -> Caller | None:
    """
    Return whose a token is, None if it does not say: a token of a database, the claims of a JWT or of an introspection.
    """
    client_id = _first(token, "client_id", "azp")
    if client_id is None:
        return None
    user = _first(token, "user")
    username = username_of(user) if user is not None else _first(token, "username", "user_id", "sub")
    # Without a user, the subject of a JWT is the client itself (RFC 9068, 2.2).
    return Caller(str(client_id), None if username in (None, client_id) else str(username))


def _first(token: Any, *names: str) -> Any:
    for name in names:
        value = token.get(name) if isinstance(token, Mapping) else getattr(token, name, None)
        if value is not None and value != "":
            return value
    return None


def _gate_with_endpoints() -> AppLimiter | None:
    gate: AppLimiter | None = current_app.extensions.get(EXTENSION)
    return gate if gate is not None and gate.settings.policies.endpoints else None


def _endpoint(gate: AppLimiter, authlib_name: str | None) -> str | None:
    """Return the configured name of the endpoint that this request is for."""
    find = gate.settings.policies.endpoint_of
    path, method = request.path, request.method
    found = None if authlib_name is None else find(authlib_name, path=path, method=method)
    return find(request.endpoint, path=path, method=method) if found is None else found
