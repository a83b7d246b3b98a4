"""Facts of one HTTP request, from the first hook to the response."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flask import Flask, current_app, request

from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.flask_authlib.responses import Headers, RateLimited
from oauth_ratelimit.guard import Guess

STATE_KEY = "oauth_ratelimit.request"  # in the WSGI environment, because two requests may share flask.g
QUOTA_KEY = "oauth_ratelimit.quota"  # in the WSGI environment: the headers that the middleware adds to the response


@dataclass(slots=True)
class RequestState:
    """Facts of one HTTP request, which is decided only once, even if its grant calls several hooks.

    Attributes:
        app_limiter: Decides the request.
        is_authorize: True at the authorization endpoint, where a denial goes to the redirect URI.
        quota_headers: Headers that the middleware adds to the response.
        grant: The grant of a token request, or the one that the application has chosen at the authorization endpoint.
        client: The client of a token request, None before the decision.
        is_decided: True after the decision.
        denial: Error to raise, None if the request is not denied.
        guess: The user's password as the guard sees it, None if it sees none.
    """

    app_limiter: AppLimiter
    is_authorize: bool
    quota_headers: Headers
    grant: Any = None
    client: Any = None
    is_decided: bool = False
    denial: RateLimited | None = None
    guess: Guess | None = None

    def check(
        self, client: Any, username: str | None, grant_type: str | None = None, endpoint: str = TOKEN_ENDPOINT
    ) -> None:
        """Decide the request, and pass the quota headers of an admitted one to the middleware."""
        headers, self.denial = self.app_limiter.check(client, username, grant_type, endpoint)
        self.is_decided = True
        if not self.is_authorize:  # a browser receives that response, not the client
            self.quota_headers += headers


token_request: ContextVar[RequestState | None] = ContextVar("oauth_ratelimit.token_request", default=None)
"""State of the current token request. Quicker than ``current_state``, and None where the route has no hook."""


def current_environ() -> dict[str, Any] | None:
    """Return the WSGI environment of the current request, None outside of one."""
    try:
        environ: dict[str, Any] = request._get_current_object().environ  # type: ignore[attr-defined,unused-ignore]
    except RuntimeError:
        return None
    return environ


def current_state() -> RequestState | None:
    """Return the state of the current request, None if it is not limited."""
    state = token_request.get()
    if state is not None:
        return state
    environ = current_environ()
    return None if environ is None else environ.get(STATE_KEY)


def open_state(*, is_authorize: bool = False, grant: Any = None) -> RequestState | None:
    """Return the state of the current request, created if needed; None if the application does not limit it."""
    environ = current_environ()
    if environ is None:
        return None
    state: RequestState | None = environ.get(STATE_KEY)
    if state is None:
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined,unused-ignore]
        app_limiter: AppLimiter | None = app.extensions.get(EXTENSION)
        if app_limiter is not None and (app_limiter.authorize_endpoint or not is_authorize):
            state = add_state(environ, app_limiter, is_authorize=is_authorize, grant=grant)
    return state


def add_state(
    environ: dict[str, Any], app_limiter: AppLimiter, *, is_authorize: bool = False, grant: Any = None
) -> RequestState:
    """Add a state to a WSGI environment that has none."""
    state = environ[STATE_KEY] = RequestState(app_limiter, is_authorize, environ.setdefault(QUOTA_KEY, []), grant)
    return state
