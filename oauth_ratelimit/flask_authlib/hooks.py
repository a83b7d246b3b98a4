"""
Attaching to an Authlib server: the methods that every token passes, shadowed on one instance or overridden by a mixin.

Every grant passes ``generate_token`` after client and user are proven and before anything is saved, deleted or revoked.
So a request that fails earlier costs nobody anything, and a denied one burns no code and no refresh token.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from flask import after_this_request

from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.endpoints import decide_client
from oauth_ratelimit.flask_authlib.failed_auth import look_first, note_client, note_error
from oauth_ratelimit.flask_authlib.request_state import (
    answering,
    begin,
    check_decided,
    current_state,
    decide,
    decide_before_saving,
    direct,
)

_ATTACHED = "_oauth_ratelimit_attached"  # on the server


class RateLimitMixin:
    """The typed way in: ``class Server(RateLimitMixin, AuthorizationServer)``.

    Does what ``OAuthRateLimit.init_app`` does to any other server. The application still needs ``init_app``.
    """

    def create_token_response(self, request: Any = None) -> Any:
        """Answer a token request; its quota will be in the headers."""
        return _answered(super().create_token_response)(request)  # type: ignore[misc]

    def get_token_grant(self, request: Any) -> Any:
        """Choose the grant of a token request, also of one that an early reference to the plain method answers."""
        return _chosen(super().get_token_grant)(request)  # type: ignore[misc]

    def create_authorization_response(
        self, request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Answer an authorization request; tokens that it issues are decided if the application asked for that."""
        return _authorized(super().create_authorization_response)(request, grant_user, *args, **kwargs)  # type: ignore[misc]

    def generate_token(self, grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Decide, then generate a token."""
        return _generated(super().generate_token)(grant_type, client, user, *args, **kwargs)  # type: ignore[misc]

    def save_token(self, token: Any, request: Any) -> Any:
        """Decide if that was not done yet, then save a token."""
        return _saved(super().save_token)(token, request)  # type: ignore[misc]

    def authenticate_client(self, request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
        """Authenticate a client, unless there were too many failures; at an endpoint with limits of its own, decide."""
        return _authenticated(super().authenticate_client)(request, methods, endpoint)  # type: ignore[misc]

    def handle_error_response(self, request: Any, error: Any) -> Any:
        """Answer an error; a denial goes where the client waits for it."""
        return _failed(super().handle_error_response)(request, error)  # type: ignore[misc]


def attach(server: Any) -> None:
    """Shadow the server's methods, on this instance only. A server that is attached already stays as it is.

    Raises:
        TypeError: This is no Authlib authorization server.
    """
    if missing := [name for name in _STEPS if not callable(getattr(server, name, None))]:
        raise TypeError(f"expected an Authlib AuthorizationServer, got {server!r}, which has no {', '.join(missing)}")
    if isinstance(server, RateLimitMixin) or getattr(server, _ATTACHED, False):
        return
    for name, step in _STEPS.items():
        inner = getattr(server, name)
        setattr(server, name, wraps(inner)(step(inner)))
    setattr(server, _ATTACHED, True)


def has_grant(server: Any, grant_type: str) -> bool:
    """Whether a grant for a grant type is registered with a server."""
    grants = getattr(server, "_token_grants", ())
    return any(getattr(grant, "GRANT_TYPE", None) == grant_type for grant, _ in grants)


def _answered(inner: Callable[..., Any]) -> Callable[..., Any]:
    def create_token_response(request: Any = None) -> Any:
        mark = begin()
        if mark is None:
            return inner(request)
        token = answering.set(mark)
        try:
            response = inner(request)
        finally:
            answering.reset(token)
        return check_decided(mark, response)

    return create_token_response


def _chosen(inner: Callable[..., Any]) -> Callable[..., Any]:
    def get_token_grant(request: Any) -> Any:
        if current_state() is None:  # a route got hold of the plain create_token_response before we came
            mark = begin()
            if mark is not None:
                after_this_request(partial(check_decided, mark))
        return inner(request)

    return get_token_grant


def _authorized(inner: Callable[..., Any]) -> Callable[..., Any]:
    def create_authorization_response(request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any) -> Any:
        begin(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
        return inner(request, grant_user, *args, **kwargs)

    return create_authorization_response


def _generated(inner: Callable[..., Any]) -> Callable[..., Any]:
    def generate_token(grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        decide(grant_type, client, user)
        return inner(grant_type, client, user, *args, **kwargs)

    return generate_token


def _saved(inner: Callable[..., Any]) -> Callable[..., Any]:
    def save_token(token: Any, request: Any) -> Any:
        decide_before_saving(request)
        return inner(token, request)

    return save_token


def _authenticated(inner: Callable[..., Any]) -> Callable[..., Any]:
    def authenticate_client(request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
        is_guarded = endpoint == TOKEN_ENDPOINT and look_first()
        client = inner(request, methods, endpoint)
        if endpoint != TOKEN_ENDPOINT:
            decide_client(endpoint, client, oauth_request=request)
        elif is_guarded:
            note_client(client, request)
        return client

    return authenticate_client


def _failed(inner: Callable[..., Any]) -> Callable[..., Any]:
    def handle_error_response(request: Any, error: Any) -> Any:
        note_error(error)
        direct(error, request)
        return inner(request, error)

    return handle_error_response


_STEPS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "create_token_response": _answered,
    "get_token_grant": _chosen,
    "create_authorization_response": _authorized,
    "generate_token": _generated,
    "save_token": _saved,
    "authenticate_client": _authenticated,
    "handle_error_response": _failed,
}
