"""
One HTTP request on its way: marked where tokens are issued, decided once, finished with its quota in the headers.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flask import Flask, after_this_request, current_app, has_request_context, request
from werkzeug.wrappers import Response

from oauth_ratelimit.config import Settings
from oauth_ratelimit.edge.response import Headers, RateLimited
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter

EXTENSION = "oauth_ratelimit"  # our place in app.extensions

_MARK = "oauth_ratelimit.request"  # our place in the WSGI environment; two requests may share flask.g


class Verdict(NamedTuple):
    """
    What a decision means for the answer.

    Attributes:
        denial: To be raised; None if the request may go on.

        headers: To be added to the answer of a request that goes on; a denial has its own.
    """

    denial: RateLimited | None = None
    headers: Headers = []  # noqa: RUF012  # a default that nobody changes


class Caller(NamedTuple):
    """
    Who asks at another endpoint than the token endpoint.

    Attributes:
        client_id: The client.

        username: The user, None if there is none.
    """

    client_id: str
    username: str | None

    def get_client_id(self) -> str:
        """
        Return the client's id, as Authlib's clients do.
        """
        return self.client_id


class Gate(Protocol):
    """
    The part of an application's extension that requests meet.
    """

    @property
    def authorize_endpoint(self) -> bool:
        """
        Whether tokens from the authorization endpoint are decided, too.
        """

    @property
    def settings(self) -> Settings:
        """
        What applies now.
        """

    @property
    def caller_of(self) -> Callable[[Any], Caller | None]:
        """
        Tells whose a token is.
        """

    def judge(self, grant_type: str | None, client: Any, *, user: Any) -> Verdict:
        """
        Decide and count one request.
        """

    def judge_at(self, endpoint: str, caller: Caller) -> Verdict:
        """
        Decide and count one request for another endpoint.
        """

    def report_undecided(self) -> None:
        """
        Say that a token was issued without a decision.
        """

    @property
    def limiter(self) -> Limiter:
        """
        This process's limiter.
        """

    @property
    def guard(self) -> Guard | None:
        """
        What counts failed authentications in this process, None while that is off.
        """

    def report(self, event: str, **facts: Any) -> None:
        """
        Log a trouble that may come with every request, once in a while.
        """


@dataclass(slots=True)
class Mark:
    """
    What is known of one HTTP request. There is one decision per request, whatever its grant calls.

    Attributes:
        gate: Who decides.

        is_authorize: Whether this is the authorization endpoint, where a denial must go to the redirect URI.

        grant: The grant that the application has chosen there, None if Authlib looks for it.

        client: Who was decided, None before the decision.

        verdict: The outcome, None before the decision.

        claim: What the guard knows of the request, None if it does not look at it.
    """

    gate: Gate
    is_authorize: bool
    grant: Any = None
    client: Any = None
    verdict: Verdict | None = None
    claim: Any = None

    def judge(self, grant_type: str | None, client: Any, *, user: Any) -> None:
        """
        Have this request decided.
        """
        self.client = client
        self.verdict = self.gate.judge(grant_type, client, user=user)

    def enforce(self) -> None:
        """
        Raise if this request was denied.
        """
        if self.verdict is not None and self.verdict.denial is not None:
            raise self.verdict.denial


def username_of(user: Any) -> str:
    """
    Return who a user is: ``username``, else ``get_user_id()``, else ``id``, the first that is neither None nor empty.

    Raises:
        TypeError: The user has none of them. Counting such users under the client alone would hide them all.
    """
    for attribute in ("username", "get_user_id", "id"):
        name = getattr(user, attribute, None)
        if callable(name):
            name = name()
        if name is not None and name != "":
            return str(name)
    raise TypeError(
        f"{type(user).__name__} has no username, get_user_id() or id; "
        "tell OAuthRateLimit(username_of=...) how to name a user"
    )


_answering: ContextVar[Mark | None] = ContextVar("oauth_ratelimit_answering", default=None)
"""
The token request that is being answered: found at a tenth of the price of asking Flask for the environment.
"""


def answer(inner: Callable[[Any], Any], oauth_request: Any) -> Any:
    """
    Return the answer to a token request, with its quota in the headers.

    Args:
        inner: Makes the answer.

        oauth_request: What the request is to Authlib, or None.
    """
    mark = begin()
    if mark is None:
        return inner(oauth_request)
    token = _answering.set(mark)
    try:
        response = inner(oauth_request)
    finally:
        _answering.reset(token)
    return finish(mark, response)


def begin(*, is_authorize: bool = False, grant: Any = None) -> Mark | None:
    """
    Mark the HTTP request as one that may issue a token; None if nothing is decided there.
    """
    environ = environ_of_request()
    if environ is None:
        return None
    mark: Mark | None = environ.get(_MARK)
    if mark is None:
        gate = _gate()
        if gate is not None and (gate.authorize_endpoint or not is_authorize):
            mark = environ[_MARK] = Mark(gate, is_authorize, grant)
    return mark


def begin_late() -> None:
    """
    Mark a token request that an unshadowed ``create_token_response`` answers: a route got hold of it before we came.
    """
    if current_mark() is None:
        mark = begin()
        if mark is not None:
            after_this_request(lambda response: finish(mark, response))


def decide(grant_type: str | None, client: Any, *, user: Any) -> None:
    """
    Raise if this request is denied. The first call decides.
    """
    mark = current_mark()
    if mark is not None:
        if mark.verdict is None:
            mark.judge(grant_type, client, user=user)
        mark.enforce()


def decide_before_saving(oauth_request: Any) -> None:
    """
    Catch a grant that makes its token itself: the last moment before the token exists for others.
    """
    mark = current_mark()
    if mark is not None:
        if mark.verdict is None:
            client = getattr(oauth_request, "client", None)
            if client is not None:
                grant_type = getattr(_payload(oauth_request), "grant_type", None)
                mark.judge(grant_type, client, user=getattr(oauth_request, "user", None))
        mark.enforce()


def direct(error: Any, oauth_request: Any) -> None:
    """
    Send a denial at the authorization endpoint to the client's redirect URI, which its grant has validated before.
    """
    mark = current_mark()
    if mark is None or not mark.is_authorize or not isinstance(error, RateLimited):
        return
    payload = _payload(oauth_request if mark.grant is None else mark.grant.request)
    redirect_uri = payload.redirect_uri or mark.client.get_default_redirect_uri()
    if redirect_uri and mark.client.check_redirect_uri(redirect_uri):  # never redirect on a grant's word alone
        error.redirect_to(redirect_uri, state=payload.state)


def finish(mark: Mark, response: Any) -> Any:
    """
    Return the answer with the quota headers, added now or, if it is no response object, when Flask has made one of it.
    """
    if mark.verdict is None:
        if getattr(response, "status_code", None) == 200:
            mark.gate.report_undecided()
    elif isinstance(response, Response):
        for name, value in mark.verdict.headers:  # faster than extend()
            response.headers.add(name, value)
    elif mark.verdict.headers:
        after_this_request(lambda made: finish(mark, made))
    return response


def environ_of_request() -> dict[str, Any] | None:
    """
    Return the WSGI environment of the request being handled. Asks Flask's proxy once, which costs most of it.
    """
    if not has_request_context():
        return None
    environ: dict[str, Any] = request._get_current_object().environ  # type: ignore[attr-defined,unused-ignore]
    return environ


def _gate() -> Gate | None:
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined,unused-ignore]  # half the proxy's price
    gate: Gate | None = app.extensions.get(EXTENSION)
    return gate


def current_mark() -> Mark | None:
    """
    Return the mark of the request being handled, None if it has none.
    """
    mark = _answering.get()
    if mark is None:
        environ = environ_of_request()
        mark = None if environ is None else mark_of(environ)
    return mark


def mark_of(environ: dict[str, Any]) -> Mark | None:
    """
    Return the mark of a request, None if it has none.
    """
    return environ.get(_MARK)


def put_mark(environ: dict[str, Any], gate: Gate) -> Mark:
    """
    Mark a request that issues no token.
    """
    mark = environ[_MARK] = Mark(gate, is_authorize=False)
    return mark


def _payload(oauth_request: Any) -> Any:
    """
    Return what holds the parameters: the request itself before Authlib 1.6.
    """
    return getattr(oauth_request, "payload", oauth_request)
