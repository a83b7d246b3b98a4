"""Limits at endpoints other than the token endpoint.

A request is decided once its client is authenticated. A client that is merely named, such as a public one without a
secret, is not counted, because anybody could use up its quota.

- Authlib's endpoints (revocation, introspection, device_authorization): after the client is authenticated.
- Resources behind a ``ResourceProtector`` (userinfo, any view): after the token is validated.
- Everything else: when the application calls ``OAuthRateLimit.limit``.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flask import request

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter, username_of
from oauth_ratelimit.flask_authlib.request_state import (
    TOKEN_STATE,
    keep_state,
    kept_state,
    limited_request,
    new_state,
)

NO_SECRET = "none"  # authentication method of a public client


class Caller(NamedTuple):
    """Authenticated client of a request and the user it acts for, None if there is none."""

    client_id: str
    username: str | None

    def get_client_id(self) -> str:
        """Return the client's id, as Authlib's clients do."""
        return self.client_id


def limit_token_owner(_sender: Any, token: Any = None, **_extra: Any) -> None:
    """Raise if the owner of a valid token is denied at the current endpoint. Receives Authlib's signal."""
    limit_caller(lambda app_limiter: app_limiter.caller_of(token))


def limit_caller(find_caller: Callable[[AppLimiter], Caller | None], *, authlib_name: str | None = None) -> None:
    """Decide the current endpoint, if it has limits, once in each request. Raise if it is denied.

    Endpoints of Authlib's server have a name of its own besides Flask's. The caller is looked for only where there are
    limits: that may query a database. A token that is validated to issue another one is no use of an endpoint.
    """
    found, token = limited_request(), TOKEN_STATE.get()
    if found is None:
        return
    app_limiter, response = found
    if token is not None and token.response is response:
        return
    policies = app_limiter.settings.policies
    if not policies.endpoints or policies.mode is Mode.OFF:
        return
    endpoint = _endpoint(app_limiter, authlib_name)
    if endpoint is None:
        return
    state = kept_state(endpoint)
    if state is None:
        try:
            caller = find_caller(app_limiter)
            username = None if caller is None or caller.username is None else caller.username + ""  # it may be a proxy
        except Exception as exc:  # noqa: BLE001  # an error in a callback does not keep a request from its answer
            app_limiter.log_uncounted("caller_of" if authlib_name is None else "get_client_id", exc)
            return
        state = None if caller is None else new_state()
        if state is None:
            return
        keep_state(state, endpoint)
        state.follow(app_limiter.check(caller, username, endpoint=endpoint, holds=response.is_seen))
    if state.denial is not None:
        raise state.denial


def _endpoint(app_limiter: AppLimiter, authlib_name: str | None) -> str | None:
    find = app_limiter.settings.policies.endpoint_of
    path, method = request.path, request.method
    found = None if authlib_name is None else find(authlib_name, path=path, method=method)
    return find(request.endpoint, path=path, method=method) if found is None else found


def caller_of_token(token: Any) -> Caller | None:
    """Return the owner of a stored token or of the claims of a JWT or an introspection; None if it names no client."""
    client_id = _first_value(token, "client_id", "azp")
    if client_id is None:
        return None
    user = _first_value(token, "user")
    username = username_of(user) if user is not None else _first_value(token, "username", "user_id", "sub")
    # Without a user, the subject of a JWT is the client itself (RFC 9068, 2.2).
    return Caller(str(client_id), None if username in (None, client_id) else str(username))


def _first_value(token: Any, *names: str) -> Any:
    for name in names:
        value = token.get(name) if isinstance(token, Mapping) else getattr(token, name, None)
        if value is not None and value != "":
            return value
    return None
