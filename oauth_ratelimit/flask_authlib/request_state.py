"""What is known of one HTTP request, and how its mark is found again on the way through Authlib."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flask import Flask, current_app, request

from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.responses import Headers, RateLimited, Ruling

PUBLIC = "none"  # how a client without a secret authenticates: not at all
MARK = "oauth_ratelimit.request"  # our place in the WSGI environment; two requests may share flask.g
QUOTA = "oauth_ratelimit.quota"  # the headers that are to be added when the answer leaves the application


@dataclass(slots=True)
class RequestState:
    """What is known of one HTTP request. There is one decision per request, whatever its grant calls.

    Attributes:
        gate: Who decides.
        is_authorize: Whether this is the authorization endpoint, where a denial must go to the redirect URI.
        quota: What will be added to the headers of the answer.
        grant: The grant that the application has chosen there, None if Authlib looks for it.
        client: Who was decided, None before the decision.
        ruling: What it came to, None before the decision.
        claim: What the guard knows of the request, None if it does not look at it.
    """

    gate: AppLimiter
    is_authorize: bool
    quota: Headers
    grant: Any = None
    client: Any = None
    ruling: Ruling | None = None
    claim: Any = None


answering: ContextVar[RequestState | None] = ContextVar("oauth_ratelimit.answering", default=None)
"""The token request that is being answered, because asking Flask for it takes ten times as long."""


def environ_of_request() -> dict[str, Any] | None:
    """Return the WSGI environment of the request being handled. Asks Flask's proxy once, which costs most of it."""
    try:
        environ: dict[str, Any] = request._get_current_object().environ  # type: ignore[attr-defined,unused-ignore]
    except RuntimeError:  # there is none
        return None
    return environ


def current_state() -> RequestState | None:
    """Return the mark of the request being handled, None if it has none."""
    mark = answering.get()
    if mark is not None:
        return mark
    environ = environ_of_request()
    return None if environ is None else environ.get(MARK)


EXTENSION = "oauth_ratelimit"  # our place in app.extensions


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
            return f"{name}"
    raise TypeError(
        f"{type(user).__name__} has no username, get_user_id() or id; "
        "tell OAuthRateLimit(username_of=...) how to name a user"
    )


def begin(*, is_authorize: bool = False, grant: Any = None) -> RequestState | None:
    """Mark the HTTP request as one that may issue a token; None if nothing is decided there."""
    environ = environ_of_request()
    if environ is None:
        return None
    mark: RequestState | None = environ.get(MARK)
    if mark is None:
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined,unused-ignore]  # half the proxy's price
        gate: AppLimiter | None = app.extensions.get(EXTENSION)
        if gate is not None and (gate.authorize_endpoint or not is_authorize):
            mark = environ[MARK] = RequestState(gate, is_authorize, environ.setdefault(QUOTA, []), grant)
    return mark


def decide(grant_type: str | None, client: Any, user: Any) -> None:
    """Raise if this request is denied. The first call decides.

    All by position, here and in ``AppLimiter.decide_request``: Python 3.11 takes twice as long for a call by keyword.
    """
    mark = current_state()
    if mark is None:
        return
    ruling = mark.ruling
    if ruling is None:
        mark.client = client
        username = None if user is None else mark.gate.name_of(user)
        ruling = mark.ruling = mark.gate.decide_request(client, username, grant_type)
        if isinstance(ruling, list) and not mark.is_authorize:
            mark.quota += ruling
    if isinstance(ruling, RateLimited):
        raise ruling


def decide_before_saving(oauth_request: Any) -> None:
    """Catch a grant that makes its token itself: the last moment before the token exists for others."""
    mark = current_state()
    if mark is None or isinstance(mark.ruling, list):
        return
    client = getattr(oauth_request, "client", None) if mark.client is None else mark.client
    if client is not None:
        grant_type = getattr(_payload(oauth_request), "grant_type", None)
        decide(grant_type, client, getattr(oauth_request, "user", None))


def direct(error: Any, oauth_request: Any) -> None:
    """
    Send a denial at the authorization endpoint to the client's redirect URI, which its grant has validated before.
    """
    mark = current_state()
    if mark is None or not mark.is_authorize or not isinstance(error, RateLimited):
        return
    payload = _payload(oauth_request if mark.grant is None else mark.grant.request)
    redirect_uri = payload.redirect_uri or mark.client.get_default_redirect_uri()
    if redirect_uri and mark.client.check_redirect_uri(redirect_uri):  # never redirect on a grant's word alone
        error.redirect_to(redirect_uri, state=payload.state)


def check_decided(mark: RequestState, response: Any) -> Any:
    """Return the answer to a token request as it is, and report it if it is a token that nobody has decided about."""
    if mark.ruling is None and getattr(response, "status_code", None) == 200:
        mark.gate.report_undecided()
    return response


def _payload(oauth_request: Any) -> Any:
    """Return what holds the parameters: the request itself before Authlib 1.6."""
    return getattr(oauth_request, "payload", oauth_request)
