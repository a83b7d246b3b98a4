"""
Attaching to an Authlib server: where a request becomes (client, user), and where a denial becomes its answer.

Every grant passes ``generate_token`` after client and user are proven and before anything is saved, deleted or revoked.
So a request that fails earlier costs nobody anything, and a denied one burns no code and no refresh token.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from authlib.oauth2.rfc6749 import OAuth2Request
from flask import after_this_request, current_app, has_request_context, request
from werkzeug.wrappers import Response

from oauth_ratelimit.edge.response import Headers, RateLimited

EXTENSION = "oauth_ratelimit"  # our place in app.extensions

_MARK = "oauth_ratelimit.request"  # our place in the WSGI environment; two requests may share flask.g
_ATTACHED = "_oauth_ratelimit_attached"  # on the server


class Verdict(NamedTuple):
    """
    What a decision means for the answer.

    Attributes:
        denial: To be raised; None if the request may go on.

        headers: To be added to the answer of a request that goes on.
    """

    denial: RateLimited | None = None
    headers: Headers = []  # noqa: RUF012  # a default that nobody changes


class Gate(Protocol):
    """
    The part of an application's extension that requests meet.
    """

    @property
    def authorize_endpoint(self) -> bool:
        """
        Whether tokens from the authorization endpoint are decided, too.
        """

    def judge(self, grant_type: str | None, client: Any, *, user: Any) -> Verdict:
        """
        Decide and count one request.
        """

    def report_undecided(self) -> None:
        """
        Say that a token was issued without a decision.
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
    """

    gate: Gate
    is_authorize: bool
    grant: Any = None
    client: Any = None
    verdict: Verdict | None = None


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


class RateLimitMixin:
    """
    The typed way in: ``class Server(RateLimitMixin, AuthorizationServer)``.

    Does what ``OAuthRateLimit.init_app`` does to any other server. The application still needs ``init_app``.
    """

    def create_token_response(self, request: Any = None) -> Any:
        """
        Answer a token request, with its quota in the headers.
        """
        return _answer_token_request(super().create_token_response, request)  # type: ignore[misc]

    def get_token_grant(self, request: Any) -> Any:
        """
        Choose the grant of a token request, also of one that an early reference to the plain method answers.
        """
        _begin_late()
        return super().get_token_grant(request)  # type: ignore[misc]

    def create_authorization_response(
        self, request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """
        Answer an authorization request; tokens that it issues are decided if the application asked for that.
        """
        _begin(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
        return super().create_authorization_response(request, grant_user, *args, **kwargs)  # type: ignore[misc]

    def generate_token(self, grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        """
        Decide, then generate a token.
        """
        _decide(grant_type, client, user=user)
        return super().generate_token(grant_type, client, user, *args, **kwargs)  # type: ignore[misc]

    def save_token(self, token: Any, request: Any) -> Any:
        """
        Decide if that was not done yet, then save a token.
        """
        _decide_before_saving(request)
        return super().save_token(token, request)  # type: ignore[misc]

    def handle_error_response(self, request: Any, error: Any) -> Any:
        """
        Answer an error; a denial goes where the client waits for it.
        """
        _direct(error, request)
        return super().handle_error_response(request, error)  # type: ignore[misc]


def attach(server: Any) -> None:
    """
    Shadow the server's methods, on this instance only. A server that is attached already stays as it is.

    Raises:
        TypeError: This is no Authlib authorization server.
    """
    shadows: Sequence[tuple[str, Callable[[Any], Any]]] = (
        ("create_token_response", _shadow_token_response),
        ("get_token_grant", _shadow_token_grant),
        ("create_authorization_response", _shadow_authorization_response),
        ("generate_token", _shadow_generate_token),
        ("save_token", _shadow_save_token),
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


def _shadow_token_response(inner: Any) -> Any:
    def create_token_response(request: Any = None) -> Any:
        return _answer_token_request(inner, request)

    return create_token_response


def _shadow_token_grant(inner: Any) -> Any:
    def get_token_grant(request: Any) -> Any:
        _begin_late()
        return inner(request)

    return get_token_grant


def _shadow_authorization_response(inner: Any) -> Any:
    def create_authorization_response(request: Any = None, grant_user: Any = None, *args: Any, **kwargs: Any) -> Any:
        _begin(is_authorize=True, grant=args[0] if args else kwargs.get("grant"))
        return inner(request, grant_user, *args, **kwargs)

    return create_authorization_response


def _shadow_generate_token(inner: Any) -> Any:
    def generate_token(grant_type: str, client: Any, user: Any = None, *args: Any, **kwargs: Any) -> Any:
        _decide(grant_type, client, user=user)
        return inner(grant_type, client, user, *args, **kwargs)

    return generate_token


def _shadow_save_token(inner: Any) -> Any:
    def save_token(token: Any, request: Any) -> Any:
        _decide_before_saving(request)
        return inner(token, request)

    return save_token


def _shadow_error_response(inner: Any) -> Any:
    def handle_error_response(request: Any, error: Any) -> Any:
        _direct(error, request)
        return inner(request, error)

    return handle_error_response


def _begin(*, is_authorize: bool, grant: Any = None) -> Mark | None:
    """
    Mark the HTTP request as one that may issue a token; None if nothing is decided there.
    """
    gate: Gate | None = current_app.extensions.get(EXTENSION) if has_request_context() else None
    if gate is None or (is_authorize and not gate.authorize_endpoint):
        return None
    mark: Mark = request.environ.setdefault(_MARK, Mark(gate, is_authorize, grant))
    return mark


def _current_mark() -> Mark | None:
    return request.environ.get(_MARK) if has_request_context() else None


def _begin_late() -> None:
    """
    Mark a token request that an unshadowed ``create_token_response`` answers: a route got hold of it before we came.
    """
    if has_request_context() and _MARK not in request.environ:
        mark = _begin(is_authorize=False)
        if mark is not None:
            after_this_request(lambda response: _finish(mark, response))


def _answer_token_request(inner: Callable[[Any], Any], oauth_request: Any) -> Any:
    mark = _begin(is_authorize=False)
    response = inner(oauth_request)
    return response if mark is None else _finish(mark, response)


def _finish(mark: Mark, response: Any) -> Any:
    """
    Return the answer with the quota headers, added now or, if it is no response object, when Flask has made one of it.
    """
    if mark.verdict is None:
        if getattr(response, "status_code", None) == 200:
            mark.gate.report_undecided()
    elif isinstance(response, Response):
        for name, value in mark.verdict.headers:
            response.headers[name] = value
    elif mark.verdict.headers:
        after_this_request(lambda made: _finish(mark, made))
    return response


def _decide(grant_type: str | None, client: Any, *, user: Any) -> None:
    """
    Raise if this request is denied. The first call decides.
    """
    mark = _current_mark()
    if mark is None:
        return
    if mark.verdict is None:
        mark.client = client
        mark.verdict = mark.gate.judge(grant_type, client, user=user)
    if mark.verdict.denial is not None:
        raise mark.verdict.denial


def _decide_before_saving(oauth_request: Any) -> None:
    """
    Catch a grant that makes its token itself: the last moment before the token exists for others.
    """
    client = getattr(oauth_request, "client", None)
    if client is not None and _current_mark() is not None:
        grant_type = getattr(_payload(oauth_request), "grant_type", None)
        _decide(grant_type, client, user=getattr(oauth_request, "user", None))


def _direct(error: Any, oauth_request: Any) -> None:
    """
    Send a denial at the authorization endpoint to the client's redirect URI, which its grant has validated before.
    """
    mark = _current_mark()
    if mark is None or not mark.is_authorize or not isinstance(error, RateLimited):
        return
    payload = _payload(oauth_request if mark.grant is None else mark.grant.request)
    redirect_uri = payload.redirect_uri or mark.client.get_default_redirect_uri()
    if redirect_uri and mark.client.check_redirect_uri(redirect_uri):  # never redirect on a grant's word alone
        error.redirect_to(redirect_uri, state=payload.state)


def _payload(oauth_request: OAuth2Request) -> Any:
    """
    Return what holds the parameters: the request itself before Authlib 1.5.
    """
    return getattr(oauth_request, "payload", oauth_request)
