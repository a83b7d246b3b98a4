"""
WSGI entry of the demo's servers: the demo's OAuth server, which also marks the answers that enforce would have denied.

With it the demo keeps its own books: it adds up the answers as it gets them, one by one, and compares the sum with what
MongoDB holds. Under enforce the status alone tells what was counted: 200 was, 429 was not. In a dry run both get their
token, so the answer needs a mark. It is made from the limiter's own log event, which is written while the request is
being decided, before anything is flushed, merged or stored. So every later step is under test.

Environment: see ``demo.wsgi``.
"""

import logging

import structlog
from flask import Response, g, has_request_context
from structlog.typing import EventDict, WrappedLogger

from demo.tally import WOULD_DENY_HEADER
from demo.wsgi import app
from oauth_ratelimit.observe import events

__all__ = ["app"]

events.REPEAT_S = 0.0  # one event per request: for the books one per minute is not enough


def note_would_deny(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Remember that the request being handled is over a limit."""
    if event["event"] == "request_would_be_denied" and has_request_context():
        g.would_deny = True
    return event


@app.after_request
def mark_would_deny(response: Response) -> Response:
    """Tell the client."""
    if g.get("would_deny"):
        response.headers[WOULD_DENY_HEADER] = "1"
    return response


structlog.configure(
    processors=[
        note_would_deny,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.JSONRenderer(),
    ],
    wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
)
