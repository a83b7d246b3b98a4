"""
Attaching to an Authlib server: the methods that every token passes, shadowed on one instance or overridden by a mixin.

Every grant passes ``generate_token`` after client and user are proven and before anything is saved, deleted or revoked.
So a request that fails earlier costs nobody anything, and a denied one burns no code and no refresh token.
"""

import functools
from collections.abc import Callable
from typing import Any

from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.edge.claims import look_first, note_client, note_error
from oauth_ratelimit.edge.endpoints import decide_client
from oauth_ratelimit.edge.request import answer, begin, begin_late, decide, decide_before_saving, direct

_ATTACHED = "_oauth_ratelimit_attached"  # on the server


class RateLimitMixin:
    """
    The typed way in: ``class Server(RateLimitMixin, AuthorizationServer)``.

    Does what ``OAuthRateLimit.init_app`` does to any other server. The application still needs ``init_app``.
    """

    def create_token_response(self, request: Any = None) -> Any:
        """
        Answer a token request; its quota will be in the headers.
        """
        return answer(super().create_token_response, request)  # type: ignore[misc]

    def get_token_grant(self, request: Any) -> Any:
        """
        Choose the grant of a token request, also of one that an early reference to the plain method answers.
        """
        begin_late()
        return super().get_token_grant(request)  # type: ignore[misc]

    def create_authorization_response(
        self, request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """
        Answer an authorization request; tokens that it issues are decided if the application asked for that.
        """
        begin(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
        return super().create_authorization_response(request, grant_user, *args, **kwargs)  # type: ignore[misc]

    def generate_token(self, grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        """
        Decide, then generate a token.
        """
        decide(grant_type, client, user=user)
        return super().generate_token(grant_type, client, user, *args, **kwargs)  # type: ignore[misc]

    def save_token(self, token: Any, request: Any) -> Any:
        """
        Decide if that was not done yet, then save a token.
        """
        decide_before_saving(request)
        return super().save_token(token, request)  # type: ignore[misc]

    def authenticate_client(self, request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
        """
        Authenticate a client, unless there were too many failures; at an endpoint with limits of its own, decide.
        """
        return _authenticate(super().authenticate_client, request, methods, endpoint=endpoint)  # type: ignore[misc]

    def handle_error_response(self, request: Any, error: Any) -> Any:
        """
        Answer an error; a denial goes where the client waits for it.
        """
        note_error(error)
        direct(error, request)
        return super().handle_error_response(request, error)  # type: ignore[misc]


def attach(server: Any) -> None:
    """
    Shadow the server's methods, on this instance only. A server that is attached already stays as it is.

    Raises:
        TypeError: This is no Authlib authorization server.
    """
    shadows: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("create_token_response", _shadow_token_response),
        ("get_token_grant", _shadow_token_grant),
        ("create_authorization_response", _shadow_authorization_response),
        ("generate_token", _shadow_generate_token),
        ("save_token", _shadow_save_token),
        ("authenticate_client", _shadow_authenticate_client),
        ("handle_error_response", _shadow_error_response),
    )
    if missing := [name for name, _ in shadows if not callable(getattr(server, name, None))]:
        raise TypeError(f"expected an Authlib AuthorizationServer, got {server!r}, which has no {', '.join(missing)}")
    if isinstance(server, RateLimitMixin) or getattr(server, _ATTACHED, False):
        return
    for name, shadow in shadows:
        inner = getattr(server, name)
        setattr(server, name, functools.wraps(inner)(shadow(inner)))
    setattr(server, _ATTACHED, True)


def has_grant(server: Any, grant_type: str) -> bool:
    """
    Whether a grant for a grant type is registered with a server.
    """
    grants = getattr(server, "_token_grants", ())
    return any(getattr(grant, "GRANT_TYPE", None) == grant_type for grant, _ in grants)


def _shadow_token_response(inner: Any) -> Any:
    def create_token_response(request: Any = None) -> Any:
        return answer(inner, request)

    return create_token_response


def _shadow_token_grant(inner: Any) -> Any:
    def get_token_grant(request: Any) -> Any:
        begin_late()
        return inner(request)

    return get_token_grant


def _shadow_authorization_response(inner: Any) -> Any:
    def create_authorization_response(request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any) -> Any:
        begin(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
        return inner(request, grant_user, *args, **kwargs)

    return create_authorization_response


def _shadow_generate_token(inner: Any) -> Any:
    def generate_token(grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        decide(grant_type, client, user=user)
        return inner(grant_type, client, user, *args, **kwargs)

    return generate_token


def _shadow_save_token(inner: Any) -> Any:
    def save_token(token: Any, request: Any) -> Any:
        decide_before_saving(request)
        return inner(token, request)

    return save_token


def _shadow_authenticate_client(inner: Any) -> Any:
    def authenticate_client(request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
        return _authenticate(inner, request, methods, endpoint=endpoint)

    return authenticate_client


def _shadow_error_response(inner: Any) -> Any:
    def handle_error_response(request: Any, error: Any) -> Any:
        note_error(error)
        direct(error, request)
        return inner(request, error)

    return handle_error_response


def _authenticate(inner: Callable[..., Any], oauth_request: Any, methods: Any, *, endpoint: str) -> Any:
    is_guarded = endpoint == TOKEN_ENDPOINT and look_first()
    client = inner(oauth_request, methods, endpoint)
    if endpoint != TOKEN_ENDPOINT:
        decide_client(endpoint, client, oauth_request=oauth_request)
    elif is_guarded:
        note_client(client, oauth_request)
    return client
