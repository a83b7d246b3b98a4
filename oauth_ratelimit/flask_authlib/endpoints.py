"""Limits at endpoints other than the token endpoint.

A request is decided once its client is authenticated. A client that is merely named, such as a public one without a
secret, is not counted, because anybody could use up its quota.

- Authlib's endpoints (revocation, introspection, device_authorization): after the client is authenticated.
- Resources behind a ``ResourceProtector`` (userinfo, any view): after the token is validated.
- Everything else: when the application calls ``OAuthRateLimit.limit``.
"""

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
    app_limiter = _app_limiter_with_endpoints()
    if app_limiter is not None and (caller := app_limiter.caller_of(token)) is not None:
        limit_caller(caller)


def limit_caller(caller: Caller, *, authlib_name: str | None = None) -> None:
    """Decide the current request once, if it is for a configured endpoint, and raise if it is denied.

    Args:
        caller: The authenticated client and its user.
        authlib_name: Authlib's name of the endpoint, if it is one of its own.
    """
    app_limiter = _app_limiter_with_endpoints()
    environ = current_environ()
    if app_limiter is None or environ is None:
        return
    state: RequestState | None = environ.get(STATE_KEY)
    if state is None:
        endpoint = _endpoint(app_limiter, authlib_name)
        if endpoint is None:
            return
        state = add_state(environ, app_limiter)
        state.decide(caller, caller.username, endpoint=endpoint)
    if state.denial is not None:
        raise state.denial


def _app_limiter_with_endpoints() -> AppLimiter | None:
    app_limiter: AppLimiter | None = current_app.extensions.get(EXTENSION)
    return app_limiter if app_limiter is not None and app_limiter.settings.policies.endpoints else None


def _endpoint(app_limiter: AppLimiter, authlib_name: str | None) -> str | None:
    """Return the configured name of the current request's endpoint, None if it has no limits."""
    find = app_limiter.settings.policies.endpoint_of
    path, method = request.path, request.method
    found = None if authlib_name is None else find(authlib_name, path=path, method=method)
    return find(request.endpoint, path=path, method=method) if found is None else found
