"""Hooks on Authlib's server: seven methods that every token passes, replaced on one instance or overridden by a mixin.

Every grant calls ``generate_token`` after client and user are authenticated and before anything is saved, deleted or
revoked. So a request that fails earlier costs nobody anything, and a denied one burns no code and no refresh token.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from flask import after_this_request

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.endpoints import limit_client
from oauth_ratelimit.flask_authlib.failed_auth import (
    authenticate_guarded,
    guard_grant,
    guarding_limiter,
    reserve_password,
    settle_password,
)
from oauth_ratelimit.flask_authlib.grants import WITHOUT_SERVER
from oauth_ratelimit.flask_authlib.request_state import RequestState, current_state, open_state, token_request
from oauth_ratelimit.flask_authlib.responses import RateLimited

Method = Callable[..., Any]

_ATTACHED = "_oauth_ratelimit_attached"  # on the server


# What each hook adds to the method of Authlib that it gets as its first argument.


def answer_token_request(inner: Method, /, request: Any = None) -> Any:
    """Open the state of a token request, and report a token that was issued without a decision."""
    state = open_state()
    if state is None:
        return inner(request)
    token = token_request.set(state)
    try:
        response = inner(request)
    finally:
        token_request.reset(token)
        if state.guess is not None:
            settle_password(state)
    return response if state.is_decided else report_undecided(state, response)


def choose_grant(inner: Method, /, request: Any) -> Any:
    """Prepare the grant of a token request.

    If the route kept a reference to the unhooked ``create_token_response``, the request's state is opened here.
    """
    state = token_request.get() or current_state()
    if state is None:
        state = open_state()
        if state is not None:
            after_this_request(partial(end_token_request, state))
    grant = inner(request)
    if state is not None:
        state.grant = grant
        guard_grant(state.app_limiter, grant)
    return grant


def answer_authorization_request(
    inner: Method, /, request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Open the state of an authorization request, unless the application leaves those unlimited."""
    open_state(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
    return inner(request, grant_user, *args, **kwargs)


def generate_token(inner: Method, /, grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Decide before a token is generated."""
    state = token_request.get() or current_state()
    if state is not None:
        limit_request(state, grant_type, client, user)
    return inner(grant_type, client, user, *args, **kwargs)


def save_token(inner: Method, /, token: Any, request: Any) -> Any:
    """Decide before a token is saved, for grants that generate it themselves, and record its lifetime afterwards."""
    state = token_request.get() or current_state()
    if state is None:
        return inner(token, request)
    if not state.is_decided:
        limit_before_saving(state, request)
    elif state.denial is not None:
        raise state.denial
    saved = inner(token, request)
    if state.client is not None:
        state.app_limiter.record_lifetime(state.client, token)
    return saved


def authenticate_client(inner: Method, /, request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
    """Ask the guard before a client is authenticated. Then decide, or ask about the user's password."""
    guarding = guarding_limiter()
    if guarding is None:
        client = inner(request, methods, endpoint)
    else:
        client = authenticate_guarded(guarding, partial(inner, request, methods, endpoint), request)
    if endpoint != TOKEN_ENDPOINT:
        limit_client(endpoint, client, oauth_request=request)
    elif guarding is not None:
        reserve_password(client, request)
    return client


def answer_error(inner: Method, /, request: Any, error: Any) -> Any:
    """Count a wrong password, and redirect a denial at the authorization endpoint."""
    settle_password(current_state(), error)
    redirect_denial(error, request)
    return inner(request, error)


HOOKS: dict[str, Method] = {
    "create_token_response": answer_token_request,
    "get_token_grant": choose_grant,
    "create_authorization_response": answer_authorization_request,
    "generate_token": generate_token,
    "save_token": save_token,
    "authenticate_client": authenticate_client,
    "handle_error_response": answer_error,
}


def attach(server: Any) -> None:
    """Replace the server's methods, on this instance only. An attached server stays as it is.

    Raises:
        TypeError: This is no Authlib authorization server.
    """
    if missing := [name for name in HOOKS if not callable(getattr(server, name, None))]:
        raise TypeError(f"expected an Authlib AuthorizationServer, got {server!r}, which has no {', '.join(missing)}")
    if isinstance(server, RateLimitMixin) or getattr(server, _ATTACHED, False):
        return
    for name, hook in HOOKS.items():
        inner = getattr(server, name)
        setattr(server, name, wraps(inner)(partial(hook, inner)))
    setattr(server, _ATTACHED, True)


def has_grant(server: Any, grant_type: str) -> bool:
    """Return True if a grant type is registered with a server."""
    grants = getattr(server, "_token_grants", ())
    return any(getattr(grant, "GRANT_TYPE", None) == grant_type for grant, _ in grants)


class RateLimitMixin:
    """Typed alternative to replaced methods: ``class Server(RateLimitMixin, AuthorizationServer)``.

    The application still needs ``OAuthRateLimit.init_app``.
    """

    def create_token_response(self, request: Any = None) -> Any:
        """Answer a token request, with its quota in the headers."""
        return answer_token_request(super().create_token_response, request)  # type: ignore[misc]

    def get_token_grant(self, request: Any) -> Any:
        """Choose the grant of a token request."""
        return choose_grant(super().get_token_grant, request)  # type: ignore[misc]

    def create_authorization_response(
        self, request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Answer an authorization request; tokens that it issues are limited."""
        inner = super().create_authorization_response  # type: ignore[misc]
        return answer_authorization_request(inner, request, grant_user, *args, **kwargs)

    def generate_token(self, grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generate a token, unless the request is denied."""
        return generate_token(super().generate_token, grant_type, client, user, *args, **kwargs)  # type: ignore[misc]

    def save_token(self, token: Any, request: Any) -> Any:
        """Save a token, unless the request is denied."""
        return save_token(super().save_token, token, request)  # type: ignore[misc]

    def authenticate_client(self, request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
        """Authenticate a client, unless there were too many failures or the endpoint's limit is reached."""
        return authenticate_client(super().authenticate_client, request, methods, endpoint)  # type: ignore[misc]

    def handle_error_response(self, request: Any, error: Any) -> Any:
        """Answer an error; a denial at the authorization endpoint is redirected."""
        return answer_error(super().handle_error_response, request, error)  # type: ignore[misc]


def limit_request(state: RequestState, grant_type: str | None, client: Any, user: Any) -> None:
    """Decide a request, unless that was done before, and raise if it is denied."""
    if not state.is_decided:
        state.client = client
        username = None if user is None else state.app_limiter.username_of(user)
        state.check(client, username, grant_type)
    if state.denial is not None:
        raise state.denial


def limit_before_saving(state: RequestState, oauth_request: Any) -> None:
    """Decide for a grant that has not called ``generate_token``."""
    client = getattr(oauth_request, "client", None)
    if client is not None:
        payload = getattr(oauth_request, "payload", None)
        limit_request(state, getattr(payload, "grant_type", None), client, getattr(oauth_request, "user", None))


def redirect_denial(error: Any, oauth_request: Any) -> None:
    """Send a denial at the authorization endpoint to the client's redirect URI."""
    state = current_state()
    if state is None or not state.is_authorize or not isinstance(error, RateLimited):
        return
    payload = (oauth_request if state.grant is None else state.grant.request).payload
    redirect_uri = payload.redirect_uri or state.client.get_default_redirect_uri()
    if redirect_uri and state.client.check_redirect_uri(redirect_uri):  # a custom grant may not have validated it
        error.redirect_to(redirect_uri, state=payload.state)


def end_token_request(state: RequestState, response: Any) -> Any:
    """Return the response of a token request as it is, after all that is to be done at its end."""
    settle_password(state)
    return report_undecided(state, response)


def report_undecided(state: RequestState, response: Any) -> Any:
    """Return the response as it is, and log a token of a grant that neither generates nor saves with the server."""
    if not state.is_decided and getattr(response, "status_code", None) == 200:
        request = getattr(state.grant, "request", None)
        client = getattr(request, "client", None)
        grant_type = getattr(getattr(request, "payload", None), "grant_type", None)
        state.app_limiter.log.error(
            "token_without_decision",
            grant_type=None if grant_type is None else logged_name(str(grant_type)),
            client_id=None if client is None else logged_name(str(client.get_client_id())),
            hint=WITHOUT_SERVER,
        )
    return response
