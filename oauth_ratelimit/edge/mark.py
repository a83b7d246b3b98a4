"""
What is known of one HTTP request, and how its mark is found again on the way through Authlib.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flask import request

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.edge.response import Headers, RateLimited
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter

PUBLIC = "none"  # how a client without a secret authenticates: not at all
MARK = "oauth_ratelimit.request"  # our place in the WSGI environment; two requests may share flask.g
QUOTA = "oauth_ratelimit.quota"  # the headers that are to be added when the answer leaves the application


Ruling = Headers | RateLimited
"""
What a decision means for the answer: the quota headers of a request that goes on, or the denial to be raised.
"""


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

    def name_of(self, user: Any) -> str | None:
        """
        Return a user's name; None while nothing is decided.

        Raises:
            TypeError: The user has none.
        """

    def judge(
        self, client: Any, username: str | None, grant_type: str | None = None, endpoint: str = TOKEN_ENDPOINT
    ) -> Ruling:
        """
        Decide and count one request.
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

        quota: What will be added to the headers of the answer.

        grant: The grant that the application has chosen there, None if Authlib looks for it.

        client: Who was decided, None before the decision.

        ruling: What it came to, None before the decision.

        claim: What the guard knows of the request, None if it does not look at it.
    """

    gate: Gate
    is_authorize: bool
    quota: Headers
    grant: Any = None
    client: Any = None
    ruling: Ruling | None = None
    claim: Any = None


answering: ContextVar[Mark | None] = ContextVar("oauth_ratelimit.answering", default=None)
"""
The token request that is being answered, because asking Flask for it takes ten times as long.
"""


def environ_of_request() -> dict[str, Any] | None:
    """
    Return the WSGI environment of the request being handled. Asks Flask's proxy once, which costs most of it.
    """
    try:
        environ: dict[str, Any] = request._get_current_object().environ  # type: ignore[attr-defined,unused-ignore]
    except RuntimeError:  # there is none
        return None
    return environ


def marked() -> Mark | None:
    """
    Return the mark of the request being handled, None if it has none.
    """
    mark = answering.get()
    if mark is not None:
        return mark
    environ = environ_of_request()
    return None if environ is None else environ.get(MARK)
