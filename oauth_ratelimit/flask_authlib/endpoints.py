"""Limits at endpoints other than the token endpoint.

A request is decided once its client is authenticated. A client that is merely named, such as a public one without a
secret, is not counted, because anybody could use up its quota.

- Authlib's endpoints (revocation, introspection, device_authorization): after the client is authenticated.
- Resources behind a ``ResourceProtector`` (userinfo, any view): after the token is validated.
- Everything else: when the application calls ``OAuthRateLimit.limit``.
"""

from collections.abc import Callable
from typing import Any

from flask import current_app, request

from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.flask_authlib.caller import Caller
from oauth_ratelimit.flask_authlib.request_state import STATE_KEY, RequestState, add_state, current_environ

NO_SECRET = "none"  # authentication method of a public client


def limit_client(endpoint: str, client: Any, *, oauth_request: Any) -> None:
    """Raise if an authenticated client is denied at one of Authlib's endpoints."""
    if getattr(oauth_request, "auth_method", None) != NO_SECRET:
        limit_caller(Caller(str(client.get_client_id()), None), authlib_name=endpoint)


def limit_token_owner(_sender: Any, token: Any = None, **_extra: Any) -> None:
    """Raise if the owner of a valid token is denied at the current endpoint. Receives Authlib's signal."""
    _limit(lambda app_limiter: app_limiter.caller_of(token))


def limit_caller(caller: Caller, *, authlib_name: str | None = None) -> None:
    """Decide the current request if its endpoint has limits, unless that was done before. Raise if it is denied.

    Args:
        caller: The authenticated client and its user.
        authlib_name: Authlib's name of the endpoint, if it is one of its own.
    """
    _limit(lambda _: caller, authlib_name)


def _limit(find_caller: Callable[[AppLimiter], Caller | None], authlib_name: str | None = None) -> None:
    """Limit the current request. Look for its caller only if its endpoint has limits: that may query a database."""
    app_limiter: AppLimiter | None = current_app.extensions.get(EXTENSION)
    environ = current_environ()
    if app_limiter is None or environ is None or not app_limiter.settings.policies.endpoints:
        return
    state: RequestState | None = environ.get(STATE_KEY)
    if state is None:
        endpoint = _endpoint(app_limiter, authlib_name)
        caller = None if endpoint is None else find_caller(app_limiter)
        if endpoint is None or caller is None:
            return
        state = add_state(environ, app_limiter)
        state.check(caller, caller.username, endpoint=endpoint)
    if state.denial is not None:
        raise state.denial


def _endpoint(app_limiter: AppLimiter, authlib_name: str | None) -> str | None:
    """Return the configured name of the current request's endpoint, None if it has no limits."""
    find = app_limiter.settings.policies.endpoint_of
    path, method = request.path, request.method
    found = None if authlib_name is None else find(authlib_name, path=path, method=method)
    return find(request.endpoint, path=path, method=method) if found is None else found
