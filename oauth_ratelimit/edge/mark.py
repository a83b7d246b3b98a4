"""
What is known of one HTTP request, and how its mark is found again on the way through Authlib.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flask import current_app, has_request_context, request

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.edge.response import Header, Headers, RateLimited
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter

PUBLIC = "none"  # how a client without a secret authenticates: not at all
EXTENSION = "oauth_ratelimit"  # our place in app.extensions
MARK = "oauth_ratelimit.request"  # our place in the WSGI environment; two requests may share flask.g


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

        is_begun: Whether something is decided in this request.

        is_authorize: Whether this is the authorization endpoint, where a denial must go to the redirect URI.

        grant: The grant that the application has chosen there, None if Authlib looks for it.

        client: Who was decided, None before the decision.

        ruling: What it came to, None before the decision.

        quota: What will be added to the headers of the answer.

        claim: What the guard knows of the request, None if it does not look at it.
    """

    gate: Gate
    is_begun: bool = False
    is_authorize: bool = False
    grant: Any = None
    client: Any = None
    ruling: Ruling | None = None
    quota: Sequence[Header] = ()
    claim: Any = None


current_mark: ContextVar[Mark | None] = ContextVar("oauth_ratelimit.mark", default=None)
"""
The mark of the request being handled, because asking Flask for it takes ten times as long.
"""


def mark_of_request() -> Mark | None:
    """
    Return the mark of the request being handled; None if there is none, or if its application is not protected.
    """
    return current_mark.get() or _mark_in_environment()


def _mark_in_environment() -> Mark | None:
    """
    Return the mark of a request that does not come from ``edge.wsgi``, such as one that a test has made up, or that
    middleware handles only when its answer is read.
    """
    gate = current_app.extensions.get(EXTENSION) if has_request_context() else None
    if gate is None:
        return None
    mark: Mark = request.environ.setdefault(MARK, Mark(gate))
    return mark


def begun() -> Mark | None:
    """
    Return the mark of the request being handled if tokens are decided there, else None.
    """
    mark = current_mark.get() or _mark_in_environment()  # as above, without a call: this is asked five times a request
    return mark if mark is not None and mark.is_begun else None
