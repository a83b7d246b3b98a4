"""
What is known of one HTTP request, and how its mark is found again on the way through Authlib.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flask import request

from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.responses import Headers, Ruling

PUBLIC = "none"  # how a client without a secret authenticates: not at all
MARK = "oauth_ratelimit.request"  # our place in the WSGI environment; two requests may share flask.g
QUOTA = "oauth_ratelimit.quota"  # the headers that are to be added when the answer leaves the application


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

    gate: AppLimiter
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
