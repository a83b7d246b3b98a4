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
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.request_state import (
    TOKEN_STATE,
    keep_state,
    kept_state,
    limited_request,
    new_state,
)


class Caller(NamedTuple):
    """Authenticated client of a request and the user it acts for, None if there is none."""

    client_id: str
    username: str | None


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
            if caller is None:
                raise LookupError("the token names no client")
            username = None if caller.username is None else caller.username + ""  # it may be a proxy
        except Exception as exc:  # noqa: BLE001  # an error in a callback does not keep a request from its answer
            app_limiter.log_uncounted("caller_of" if authlib_name is None else "client_id_of", exc)
            return
        state = new_state()
        if state is None:
            return
        keep_state(state, endpoint)
        state.follow(app_limiter.check(f"{caller.client_id}", username, endpoint=endpoint, holds=response.is_seen))
    if state.denial is not None:
        raise state.denial


def _endpoint(app_limiter: AppLimiter, authlib_name: str | None) -> str | None:
    find = app_limiter.settings.policies.endpoint_of
    paths, method = {request.path, f"{request.root_path.rstrip('/')}{request.path}"}, request.method
    if request.url_rule is not None and not request.url_rule.strict_slashes:
        paths |= {path.rstrip("/") for path in paths} | {f"{path.rstrip('/')}/" for path in paths}
    found = None if authlib_name is None else find(authlib_name, paths=paths, method=method)
    return find(request.endpoint, paths=paths, method=method) if found is None else found


def client_id_of(client: Any) -> str:
    """Return what a client of Authlib's calls itself."""
    return f"{client.get_client_id()}"


def username_of(user: Any) -> str:
    """Return the first of ``username``, ``get_user_id()`` and ``id`` that is neither None nor empty.

    Raises:
        TypeError: The user has none of them. Counted under the client alone, all such users would share one limit.
    """
    for attribute in ("username", "get_user_id", "id"):
        name = getattr(user, attribute, None)
        if callable(name):
            name = name()
        if name is not None and name != "":
            return f"{name}"
    raise TypeError(
        f"{type(user).__name__} has no username, get_user_id() or id; "
        "pass OAuthRateLimit(username_of=...) to name a user"
    )


def caller_of_token(
    token: Any,
    *,
    client_id_of: Callable[[Any], str] = client_id_of,
    username_of: Callable[[Any], str] = username_of,
) -> Caller | None:
    """Return the owner of a token, None if it names no client.

    The methods of Authlib's ``TokenMixin`` are asked first, then the attributes of a stored token or the claims of a
    JWT or an introspection.
    """
    client, named_id = _answer(token, "get_client"), _first_value(token, "client_id", "azp")
    client_id = _answer(token, "get_client_id") or named_id if client is None else client_id_of(client)
    if client_id in (None, ""):
        return None
    user = _answer(token, "get_user") or _first_value(token, "user")
    username = username_of(user) if user is not None else _first_value(token, "username", "user_id", "sub")
    # Without a user, the subject of a JWT is the client itself (RFC 9068, 2.2).
    return Caller(str(client_id), None if username in (None, client_id, named_id) else str(username))


def _answer(token: Any, name: str) -> Any:
    """Return what a method of a token returns, None without the method or if it is only that of Authlib's mixin."""
    try:
        return getattr(token, name)() if callable(getattr(token, name, None)) else None
    except NotImplementedError:
        return None


def _first_value(token: Any, *names: str) -> Any:
    for name in names:
        value = token.get(name) if isinstance(token, Mapping) else getattr(token, name, None)
        if value is not None and value != "":
            return value
    return None
