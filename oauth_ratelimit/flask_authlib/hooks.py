"""Hooks on Authlib's server: what happens around nine of its methods.

Authlib's grants call ``generate_token`` after client and user are authenticated and before anything is saved, deleted
or revoked. So a request that fails earlier costs nobody anything, and a denied one burns no code and no refresh token.
"""

from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any

from flask import after_this_request

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.core.policy import CLIENT_CREDENTIALS, TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.endpoints import Caller, limit_caller
from oauth_ratelimit.flask_authlib.failed_auth import (
    authenticate_guarded,
    get_grant_guarded,
    guard_grant,
    looked_up,
    note_client,
    note_token,
    refuse_cross_site,
)
from oauth_ratelimit.flask_authlib.request_state import (
    NO_SECRET,
    TOKEN_STATE,
    RequestState,
    current_state,
    keep_state,
    limited_request,
    new_state,
)
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.flask_authlib.server_methods import HookedMethod, MethodCall, MethodHook
from oauth_ratelimit.flask_authlib.token_reuse import ReuseRequest
from oauth_ratelimit.flask_authlib.unseen import AUTHENTICATE, SECRETS, client_auth_of, hidden_check, methods_of

REVOCATION = "revocation"
DECIDING = ("grant_type", "client", "user")  # arguments of generate_token that a decision needs
WITHOUT_SERVER = "it neither generates nor saves its token through the server: call self.save_token(token)"


def _create_token_response(call: MethodCall) -> Any:
    """Open the state of a token request, and report a token that was issued without a decision."""
    state = new_state()
    outer = TOKEN_STATE.set(state)
    try:
        response = call()
        return response if state is None else _end_token_request(state, response)
    finally:
        TOKEN_STATE.reset(outer)
        if state is not None:
            state.close()


def _get_token_grant(call: MethodCall) -> Any:
    """Prepare the grant of a token request.

    If the route took ``create_token_response`` before the hooks were added, the request's state is opened here.
    """
    state = TOKEN_STATE.get() or _open_late()
    is_guarded = state is not None and state.app_limiter.live.current.is_guarded
    if state is not None and is_guarded:
        refuse_cross_site(state.app_limiter)
    grant = call()
    if state is not None:
        state.grant = grant
        if is_guarded:
            guard_grant(state, grant)
    return grant


def _get_authorization_grant(call: MethodCall) -> Any:
    """Have the guard count the signature of a request object."""
    found = limited_request()
    if found is None or not found[0].live.current.is_guarded:
        return call()
    return get_grant_guarded(found[0], call.argument("request"), call)


def _create_authorization_response(call: MethodCall) -> Any:
    """Open the state of an authorization request, unless the application leaves those unlimited."""
    state = new_state(is_authorize=True, grant=call.argument("grant"))
    outer = TOKEN_STATE.set(state)
    try:
        return call()
    finally:
        TOKEN_STATE.reset(outer)
        if state is not None:
            state.close()


def _generate_token(call: MethodCall) -> Any:
    """Decide before a token is generated, or give out one again."""
    state = current_state()
    if state is not None:
        note_token(state)
        try:  # not ``fail_open``: this is the hot path
            asked = _token_of(call, state)
        except Exception as exc:  # noqa: BLE001  # an error in foreign code
            state.app_limiter.log_failure("check_failed", exc)
        else:
            if asked is not None:
                state.limit(*asked, is_last=False)
        if state.reuse is not None:
            return state.reuse.generate(call)
    return call()


def _save_token(call: MethodCall) -> Any:
    """Decide before a token is saved, where ``generate_token`` could not, and record its lifetime."""
    state = current_state()
    if state is None:
        return call()
    note_token(state)
    if state.denial is not None:
        raise state.denial
    if not state.is_decided:
        client, user, grant_type = _facts_of(state.app_limiter, call.argument("request"))
        if client is not None:
            state.limit(client, user, grant_type)
    token = call.argument("token")
    if state.reuse is not None and state.reuse.is_saved_already(token):
        return None
    saved = call()
    if state.hit is not None:
        state.hit.is_saved = True
    if state.reuse is not None:
        state.reuse.note_saved(token)
    state.note_lifetime(token)
    return saved


def _authenticate_client(call: MethodCall) -> Any:
    """Ask the guard before a client is authenticated. Afterwards decide, except at the token endpoint."""
    endpoint = call.argument("endpoint", TOKEN_ENDPOINT)
    state = current_state() if endpoint == TOKEN_ENDPOINT else None  # an endpoint may be another application's
    found = limited_request() if state is None else (state.app_limiter, state.response)
    app_limiter = None if found is None else found[0]
    request = call.argument("request")
    if app_limiter is None or not app_limiter.live.current.is_guarded:
        client = call()
    else:
        if endpoint != TOKEN_ENDPOINT:
            refuse_cross_site(app_limiter)
        client = _authenticate_guarded(app_limiter, call, is_authorize=state is not None and state.is_authorize)
        if state is not None:
            note_client(state, client, getattr(request, "auth_method", None))
    if endpoint == TOKEN_ENDPOINT or app_limiter is None:
        return client
    if getattr(request, "auth_method", None) != NO_SECRET:
        if endpoint == REVOCATION:
            with app_limiter.fail_open("reuse_failed"):
                app_limiter.forget_tokens(app_limiter.checked_client_id_of(client))
        limit_caller(lambda found: Caller(found.checked_client_id_of(client), None), authlib_name=endpoint)
    return client


def _authenticate_guarded(app_limiter: AppLimiter, call: MethodCall, *, is_authorize: bool) -> Any:
    """Return the client that Authlib authenticates. Name what has checked its secret without being seen."""
    server, hidden = call.method.__self__, ""
    with app_limiter.fail_open("guard_failed"):
        _hook_look_up(server)
        methods = call.argument("methods", ())
        hidden = hidden_check(server, call.method.__wrapped__, methods, app_limiter.unseen_checks)
    client, is_seen = authenticate_guarded(app_limiter, server, call, is_hidden=bool(hidden), is_authorize=is_authorize)
    method = getattr(call.argument("request"), "auth_method", None)
    if not is_seen and not hidden and method != NO_SECRET:
        app_limiter.note_unseen(method if method in methods_of(server) else AUTHENTICATE, SECRETS)
    return client


def _query_client(call: MethodCall) -> Any:
    """Have the guard count a client that Authlib looks up to check its secret."""
    return looked_up(call.argument("client_id"), call())


def _handle_error_response(call: MethodCall) -> Any:
    """Redirect a denial at the authorization endpoint, once its client is known."""
    state, error = current_state(), call.argument("error")
    if state is not None and state.is_authorize and state.client is not None and isinstance(error, RateLimited):
        with state.app_limiter.fail_open("check_failed"):  # without the redirect it is a denial all the same
            _redirect_denial(state, error, call.argument("request"))
    return call()


class RateLimitMixin:
    """Limits of an Authlib server: ``class Server(RateLimitMixin, AuthorizationServer)``.

    ``OAuthRateLimit.init_app`` adds it to a server that does not have it, and without ``init_app`` it does nothing.
    """

    create_token_response: Any = MethodHook(_create_token_response, "request", nests=True)
    get_token_grant: Any = MethodHook(_get_token_grant, "request")
    get_authorization_grant: Any = MethodHook(_get_authorization_grant, "request")
    create_authorization_response: Any = MethodHook(
        _create_authorization_response, "request", "grant_user", "grant", nests=True
    )
    generate_token: Any = MethodHook(_generate_token, "grant_type", "client", "user", "scope", "expires_in")
    save_token: Any = MethodHook(_save_token, "token", "request")
    authenticate_client: Any = MethodHook(_authenticate_client, "request", "methods", "endpoint")
    query_client: Any = MethodHook(_query_client, "client_id")
    handle_error_response: Any = MethodHook(_handle_error_response, "request", "error")


def attach(server: Any) -> None:
    """Put the hooks on the class of this one server, before all that its class and the object define."""
    kind = server.__class__
    hooks = {name: hook for name, hook in vars(RateLimitMixin).items() if isinstance(hook, MethodHook)}
    if all(isinstance(getattr(kind, name), MethodHook) for name in hooks):
        return
    names: dict[str, Any] = {"__module__": kind.__module__}
    if issubclass(kind, RateLimitMixin):  # and overrides its methods
        server.__class__ = type(kind.__name__, (kind,), names | {name: copy(hook) for name, hook in hooks.items()})
    else:
        server.__class__ = type(kind.__name__, (RateLimitMixin, kind), names)


def has_grant(servers: Iterable[Any], grant_type: str) -> bool:
    """Return True if a grant type is registered with one of an application's servers."""
    grants = (grant for server in servers for grant, _ in getattr(server, "_token_grants", ()))
    return any(getattr(grant, "GRANT_TYPE", None) == grant_type for grant in grants)


def _token_of(call: MethodCall, state: RequestState) -> tuple[Any, Any, str, ReuseRequest | None] | None:
    """Return client, user, grant type and how to reuse a token that is to be generated; None if not all is shown."""
    client, grant_type, user = call.argument("client"), call.argument("grant_type"), call.argument("user", call)
    if user is call:  # left out
        user = None
        if not call.shows("user"):
            return None
    if not (isinstance(grant_type, str) and callable(getattr(client, "get_client_id", None))):
        return None
    request = None
    if grant_type == CLIENT_CREDENTIALS and state.grant is not None and not state.is_authorize:
        others = {name: value for name, value in call.named_arguments().items() if name not in DECIDING}
        request = ReuseRequest(call.method.__self__, others, state.grant, state.response.is_seen)
    return client, user, grant_type, request


def _hook_look_up(server: Any) -> None:
    """Put the hook around the look-up of clients that Authlib has kept, which may have been before it was there."""
    kept = client_auth_of(server)
    query = getattr(kept, "query_client", None)
    if query is not None and not isinstance(query, HookedMethod):
        kept.query_client = HookedMethod(RateLimitMixin.query_client, server, query)


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
