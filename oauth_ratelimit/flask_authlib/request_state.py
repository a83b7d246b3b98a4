"""Facts of one decision, from the first hook to the response.

Each ``create_token_response`` has a state of its own, and so has each endpoint: a request may ask for several tokens.
Hooks find the state of a token in a context variable, which is reset whatever happens.
"""

from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from flask import Flask, current_app, request

from oauth_ratelimit.core.decision import DecidedRequest
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter, HeldHit, LimitAnswer
from oauth_ratelimit.flask_authlib.responses import Headers, QuotaHeaders, RateLimited, with_headers
from oauth_ratelimit.flask_authlib.token_reuse import ReuseRequest, TokenReuse

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

NO_SECRET = "none"  # authentication method of a public client
RESPONSE_KEY = "oauth_ratelimit.response"  # in the WSGI environment, because two requests may share flask.g


class Unsettled(Protocol):
    """Request or guess that is counted, and may be taken back once its response is known."""

    def settle(self, *, is_failed: bool) -> None:
        """Take it back if the server has failed."""


class ResponseState:
    """State of an HTTP request that its decisions leave for the response."""

    quota_headers: QuotaHeaders = ()
    wait_headers: QuotaHeaders = ()  # of a denial, for a response that is one
    reuses: tuple[TokenReuse, ...] = ()  # tokens that are given out again, or kept once the response is a 200
    states: "Mapping[tuple[object, str | None], RequestState]" = MappingProxyType({})  # by application and endpoint
    is_awaited: bool = False  # True while the middleware waits for the response
    hits: tuple[Unsettled, ...] = ()  # to be settled once the response is known

    @property
    def is_seen(self) -> bool:
        """True if the middleware sees the response that goes to the client."""
        return self.is_awaited and current_environ().get(RESPONSE_KEY) is self

    def settle(self, *, is_failed: bool) -> None:
        """Settle the requests that were counted, before the first byte of the response leaves."""
        hits, self.hits = self.hits, ()  # first, because an exception such as a timeout of gevent may come anywhere
        for hit in hits:
            hit.settle(is_failed=is_failed)

    def close(self) -> None:
        """Free the request: the grant refers to it, and so does a denial's traceback, which only a collection finds."""
        for reuse in self.reuses:
            reuse.release()
        for state in self.states.values():
            state.close()
        self.states = {}


class RequestState:
    """Facts of one token or one endpoint, which is decided only once, even if its grant calls several hooks."""

    client: Any = None  # None before the decision
    is_decided: bool = False
    denial: RateLimited | None = None  # to raise
    authenticated: tuple[str, str | None] = ("", NO_SECRET)  # client and authentication method, once they are known
    hooked: Any = None  # the grant, or the one behind a proxy, whose methods ask the guard
    hooks: Collection[str] = ()  # their names
    is_user_seen: bool = False  # True once the grant has asked for a user with a password
    unseen: Any = None  # guess at a password that the grant may check unseen
    reuse: TokenReuse | None = None  # the token that is given out again or may be kept
    record: DecidedRequest | None = None  # for statistics
    hit: HeldHit | None = None  # to be settled once the response is known

    def __init__(self, app_limiter: AppLimiter, response: ResponseState, is_authorize: bool, grant: Any) -> None:
        self.app_limiter = app_limiter
        self.response = response
        self.is_authorize = is_authorize  # at the authorization endpoint, where a denial goes to the redirect URI
        self.grant = grant  # of a token request, or chosen by the application at the authorization endpoint

    def limit(
        self,
        client: Any,
        user: Any,
        grant_type: str | None,
        reuse_request: ReuseRequest | None = None,
        *,
        is_last: bool = True,
    ) -> None:
        """Decide a token request, unless that was done before, and raise if it is denied.

        If client or user have no name, a later hook decides, unless ``is_last``: it may get others in their place.
        """
        if not self.is_decided:
            self.client = client
            self.is_decided = True
            source = "client_id_of"
            try:
                client_id = self.app_limiter.checked_client_id_of(client)
                source = "username_of"
                username = None if user is None else self.app_limiter.checked_username_of(user)
            except Exception as exc:  # noqa: BLE001  # under the client alone, nameless users would use up its limit
                self.is_decided = is_last
                if is_last:
                    self.app_limiter.log_uncounted(source, exc)
            else:
                self.follow(
                    self.app_limiter.check(
                        client_id,
                        username,
                        client=client,
                        grant_type=grant_type,
                        reuse_request=reuse_request,
                        holds=self.response.is_seen,
                        is_cross_site=self.is_authorize and is_cross_site(),
                    )
                )
        if self.denial is not None:
            raise self.denial

    def follow(self, answer: LimitAnswer) -> None:
        """Keep the answer to this request, and leave for the response what concerns it."""
        self.denial, self.reuse, self.record, headers, self.hit = answer
        if not self.is_authorize:  # a browser receives that response, not the client
            self.response.quota_headers = headers
        self.response.wait_headers = () if self.denial is None else self.denial.wait_headers()
        if self.reuse is not None:
            self.response.reuses += (self.reuse,)
        if self.hit is not None:
            self.response.hits += (self.hit,)

    def note_lifetime(self, token: object) -> None:
        """Note the lifetime of the token that was issued, to be counted."""
        if self.record is not None and isinstance(token, dict):  # it may be any object of the application
            self.app_limiter.note_lifetime(self.record, dict.get(token, "expires_in"))

    def close(self) -> None:
        """End the token request. A copy of its context, such as another thread's, finds nothing left to decide."""
        for name in self.hooks:
            getattr(self.hooked, "__dict__", {}).pop(name, None)  # it refers to the grant, which refers to the request
        if self.unseen is not None and not self.response.is_seen:
            self.unseen.settle(is_failed=False)
        self.is_decided = True
        self.client = self.denial = self.reuse = self.record = self.hit = (
            None  # the traceback of a denial refers to this state
        )


TOKEN_STATE: ContextVar[RequestState | None] = ContextVar("oauth_ratelimit_token", default=None)


def current_environ() -> dict[str, Any]:
    """Return the WSGI environment of the current request, without the cost of Werkzeug's proxy."""
    environ: dict[str, Any] = request._get_current_object().environ  # type: ignore[attr-defined,unused-ignore]
    return environ


def limited_request() -> tuple[AppLimiter, ResponseState] | None:
    """Return the limiter of the current request's application and the state of its response.

    None if the application is not limited, or outside of a request. A context without the middleware has a response
    state of its own.
    """
    try:
        environ = current_environ()
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined,unused-ignore]
    except RuntimeError:
        return None
    app_limiter: AppLimiter | None = app.extensions.get(EXTENSION)
    if app_limiter is None:
        return None
    return app_limiter, environ.get(RESPONSE_KEY) or environ.setdefault(RESPONSE_KEY, ResponseState())


def is_cross_site() -> bool:
    """Return True if a browser says that a page of another site has caused the current request.

    Only browsers send this header of fetch metadata, over HTTPS and to the machine itself, and pages cannot change it.
    """
    return current_environ().get("HTTP_SEC_FETCH_SITE") == "cross-site"


def current_state() -> RequestState | None:
    """Return the state of the current token request, None if it is not limited."""
    return TOKEN_STATE.get() or kept_state(None)


def kept_state(endpoint: str | None) -> RequestState | None:
    """Return the state that the current request has kept for an endpoint (None: for a token), None without one."""
    found = limited_request()
    if found is None:
        return None
    app_limiter, response = found
    return response.states.get((app_limiter, endpoint))


def new_state(*, is_authorize: bool = False, grant: Any = None) -> RequestState | None:
    """Return a state for the current request, None if the application does not limit it."""
    found = limited_request()
    if found is None or (is_authorize and not found[0].authorize_endpoint):
        return None
    return RequestState(*found, is_authorize, grant)


def keep_state(state: RequestState, endpoint: str | None) -> None:
    """Keep a state until the end of its HTTP request. An application inside another one has states of its own."""
    state.response.states = {**state.response.states, (state.app_limiter, endpoint): state}


def with_quota_headers(wsgi_app: "WSGIApplication") -> "WSGIApplication":
    """Return a WSGI application (PEP 3333) that adds quota headers to responses, and settles what is held until then.

    Response objects check and copy each header, which would nearly double the cost of a limited request.
    """

    def respond(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        outer = environ.get(RESPONSE_KEY)
        state = environ[RESPONSE_KEY] = ResponseState()  # an application inside another has its own
        state.is_awaited = True

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            state.settle(is_failed=status.startswith("5"))
            for reuse in state.reuses:
                reuse.finish(status)
            ours = state.wait_headers if status.startswith("429") else state.quota_headers
            headers = with_headers(headers, ours) if ours else headers
            if exc_info is None:  # not every middleware accepts the third argument
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        is_failed = True
        try:
            response = wsgi_app(environ, start)
            is_failed = False
            return response
        finally:
            state.is_awaited = False
            if state.hits:
                state.settle(is_failed=is_failed)  # no response has started; one that starts later counts
            if state.reuses or state.states:
                state.close()
            if outer is not None:
                environ[RESPONSE_KEY] = outer

    return respond
