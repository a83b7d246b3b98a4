"""Hooks on Authlib's server: a mixin that overrides eight of its methods.

Authlib's grants call ``generate_token`` after client and user are authenticated and before anything is saved, deleted
or revoked. So a request that fails earlier costs nobody anything, and a denied one burns no code and no refresh token.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from flask import after_this_request

from oauth_ratelimit.core.grant_type import CLIENT_CREDENTIALS, JWT_BEARER
from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.endpoints import NO_SECRET, Caller, limit_caller
from oauth_ratelimit.flask_authlib.failed_auth import (
    authenticate_guarded,
    guard_assertion,
    look_up,
    reserve_password,
)
from oauth_ratelimit.flask_authlib.request_state import (
    TOKEN_STATE,
    RequestState,
    current_state,
    keep_state,
    limited_request,
    new_state,
)
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.flask_authlib.token_reuse import GenerateCall

REVOCATION = "revocation"
WITHOUT_SERVER = "it neither generates nor saves its token through the server: call self.save_token(token)"


class RateLimitMixin:
    """Adds the limits to an Authlib server: ``class Server(RateLimitMixin, AuthorizationServer)``.

    ``OAuthRateLimit.init_app`` adds it to a server that does not have it, and without ``init_app`` it does nothing.
    """

    def create_token_response(self, request: Any = None) -> Any:
        """Open the state of a token request, and report a token that was issued without a decision."""
        state = new_state()
        outer = TOKEN_STATE.set(state)
        try:
            response = super().create_token_response(request)  # type: ignore[misc]  # Authlib's
            return response if state is None else _end_token_request(state, response)
        finally:
            TOKEN_STATE.reset(outer)
            if state is not None:
                state.close()

    def get_token_grant(self, request: Any) -> Any:
        """Prepare the grant of a token request.

        If the route took ``create_token_response`` before the mixin was added, the request's state is opened here.
        """
        state = TOKEN_STATE.get() or _open_late()
        grant = super().get_token_grant(request)  # type: ignore[misc]
        if state is not None:
            state.grant = grant
            if getattr(grant, "GRANT_TYPE", None) == JWT_BEARER:
                guard_assertion(state.app_limiter, grant)
        return grant

    def create_authorization_response(
        self, request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Open the state of an authorization request, unless the application leaves those unlimited."""
        state = new_state(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
        outer = TOKEN_STATE.set(state)
        try:
            return super().create_authorization_response(request, grant_user, *args, **kwargs)  # type: ignore[misc]
        finally:
            TOKEN_STATE.reset(outer)
            if state is not None:
                state.close()

    def generate_token(self, grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Decide before a token is generated, or give out one again."""
        state = current_state()
        if state is not None:
            call = GenerateCall(self, args, kwargs) if grant_type == CLIENT_CREDENTIALS else None
            state.limit(client, user, grant_type, call)
            if state.reuse is not None:
                generate = partial(super().generate_token, grant_type, client, user, *args, **kwargs)  # type: ignore[misc]
                return state.reuse.generate(generate)
        return super().generate_token(grant_type, client, user, *args, **kwargs)  # type: ignore[misc]

    def save_token(self, token: Any, request: Any) -> Any:
        """Decide before a token is saved, for grants that generate it themselves, and record its lifetime."""
        state = current_state()
        if state is None:
            return super().save_token(token, request)  # type: ignore[misc]
        if state.denial is not None:
            raise state.denial
        if not state.is_decided:
            client, user, grant_type = _facts_of(state.app_limiter, request)
            if client is not None:
                state.limit(client, user, grant_type)
        if state.reuse is not None and state.reuse.is_saved_already(token):
            return None
        saved = super().save_token(token, request)  # type: ignore[misc]
        if state.hit is not None:
            state.hit.is_saved = True
        if state.reuse is not None:
            state.reuse.note_saved(token)
        state.note_lifetime(token)
        return saved

    def authenticate_client(self, request: Any, methods: Any, endpoint: str = TOKEN_ENDPOINT) -> Any:
        """Ask the guard before a client is authenticated. Then ask it about the password, or decide elsewhere."""
        state = TOKEN_STATE.get() if endpoint == TOKEN_ENDPOINT else None  # an endpoint may be another application's
        found = limited_request() if state is None else (state.app_limiter, state.response)
        app_limiter = None if found is None else found[0]
        if app_limiter is None or not app_limiter.live.current.is_guarded:
            client = super().authenticate_client(request, methods, endpoint)  # type: ignore[misc]
        else:
            methods = list(methods)  # what yields them once is read twice
            authenticate = partial(super().authenticate_client, request, methods, endpoint)  # type: ignore[misc]
            client = authenticate_guarded(app_limiter, authenticate, methods)
            if endpoint == TOKEN_ENDPOINT:
                reserve_password(client, request)
        if endpoint == TOKEN_ENDPOINT or app_limiter is None:
            return client
        if getattr(request, "auth_method", None) != NO_SECRET:
            if endpoint == REVOCATION:
                app_limiter.forget_tokens(client)
            limit_caller(lambda _: Caller(str(client.get_client_id()), None), authlib_name=endpoint)
        return client

    def query_client(self, client_id: str) -> Any:
        """Have the guard count a client that Authlib looks up to check its secret."""
        return look_up(super().query_client, client_id)  # type: ignore[misc]

    def handle_error_response(self, request: Any, error: Any) -> Any:
        """Count a wrong password, and redirect a denial at the authorization endpoint."""
        state = current_state()
        if state is not None:
            state.settle_guess(error)
            if state.is_authorize and isinstance(error, RateLimited):
                with state.app_limiter.fail_open("check_failed"):  # without the redirect it is a denial all the same
                    _redirect_denial(state, error, request)
        return super().handle_error_response(request, error)  # type: ignore[misc]


def attach(server: Any) -> None:
    """Add the mixin to the class of this one server. A server that has it stays as it is.

    Raises:
        TypeError: This is no Authlib authorization server, or a method is set on the object, where it hides the hook.
    """
    hooked = [name for name in vars(RateLimitMixin) if not name.startswith("_")]
    if missing := [name for name in hooked if not callable(getattr(server, name, None))]:
        raise TypeError(f"expected an Authlib AuthorizationServer, got {server!r}, which has no {', '.join(missing)}")
    if hidden := [name for name in hooked if name in vars(server)]:
        raise TypeError(f"define {', '.join(hidden)} in a class instead of on {server!r}, where it bypasses the limits")
    if not isinstance(server, RateLimitMixin):
        kind = server.__class__
        server.__class__ = type(kind.__name__, (RateLimitMixin, kind), {"__module__": kind.__module__})
        if getattr(server, "_client_auth", None) is not None:  # Authlib's, which has kept the method without the hook
            server._client_auth.query_client = server.query_client


def has_grant(servers: Iterable[Any], grant_type: str) -> bool:
    """Return True if a grant type is registered with one of an application's servers."""
    grants = (grant for server in servers for grant, _ in getattr(server, "_token_grants", ()))
    return any(getattr(grant, "GRANT_TYPE", None) == grant_type for grant in grants)


def _open_late() -> RequestState | None:
    """Open the state of a token request whose ``create_token_response`` is not ours. It ends with the HTTP request."""
    state = new_state()
    if state is not None:
        keep_state(state, None)
        after_this_request(partial(_end_token_request, state))
    return state


def _facts_of(app_limiter: AppLimiter, oauth_request: Any) -> tuple[Any, Any, str | None]:
    """Return client, user and grant type of one of Authlib's requests, None for those that it does not have."""
    try:
        payload = getattr(oauth_request, "payload", None)
        client, user = getattr(oauth_request, "client", None), getattr(oauth_request, "user", None)
        return client, user, getattr(payload, "grant_type", None)
    except Exception as exc:  # noqa: BLE001  # an error in foreign code
        app_limiter.log_uncounted("request", exc)
        return None, None, None


def _redirect_denial(state: RequestState, denial: RateLimited, oauth_request: Any) -> None:
    payload = (oauth_request if state.grant is None else state.grant.request).payload  # the grant's may come signed
    redirect_uri = payload.redirect_uri or state.client.get_default_redirect_uri()
    if redirect_uri and state.client.check_redirect_uri(redirect_uri):  # a custom grant may not have validated it
        denial.redirect_to(redirect_uri, state=payload.state)


def _end_token_request(state: RequestState, response: Any) -> Any:
    """Return the response as it is, and log a token of a grant that neither generates nor saves with the server."""
    if state.reuse is None and state.is_decided:
        return response
    app_limiter = state.app_limiter
    with app_limiter.fail_open("check_failed"):
        if state.reuse is not None:
            state.reuse.confirm(response)
        if not state.is_decided and getattr(response, "status_code", None) == 200:
            client, _, grant_type = _facts_of(app_limiter, getattr(state.grant, "request", None))
            app_limiter.log.error(
                "token_without_decision",
                grant_type=None if grant_type is None else logged_name(str(grant_type)),
                client_id=None if client is None else logged_name(str(client.get_client_id())),
                hint=WITHOUT_SERVER,
            )
    return response
