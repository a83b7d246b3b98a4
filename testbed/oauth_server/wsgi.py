"""WSGI entry point: ``gunicorn testbed.oauth_server.wsgi:app``.

Environment:
    DEMO_DATABASE: The SQLite file; it is filled with the demo's clients and users if it holds no clients.
    DEMO_SECRET_KEY: The same for all instances; without it there is no admin page.
    DEMO_MARKS: Set to mark the answers that would have been denied under enforce, and the tokens above a limit.
    OAUTH_RATELIMIT_CONFIG: Path of the rate limiter's YAML file; without it the server is unprotected.
    OAUTH_RATELIMIT_MONGO_URI: Replaces the store's address in that file.

The demo adds up the answers and compares the sum with MongoDB. Under enforce the status shows what was counted. In a
dry run every request gets a token, so the answer needs a mark. The mark comes from the limiter's log event, which is
written before anything is flushed, merged or stored: the comparison covers all of these steps.
"""

import logging
import os

import structlog
from flask import Flask, Response, g, has_request_context, request
from structlog.typing import EventDict, WrappedLogger

from oauth_ratelimit.flask_authlib.request_state import RESPONSE_KEY
from oauth_ratelimit.observe import events
from testbed.deployment import REUSE_HEADER, WOULD_DENY_HEADER
from testbed.oauth_server.app import add_admin_page, create_app
from testbed.oauth_server.database import seed_if_empty


def mark_would_deny(app: Flask) -> None:
    """Add a header to the answers that would have been denied, and log JSON lines."""
    events.REPEAT_S = 0.0  # one event per request

    def set_mark(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if event["event"] == "request_would_be_denied" and has_request_context():
            g.would_deny = True
        return event

    def add_header(response: Response) -> Response:
        if g.get("would_deny"):
            response.headers[WOULD_DENY_HEADER] = "1"
        for reuse in request.environ[RESPONSE_KEY].reuses:
            if reuse.is_over_limit:
                response.headers[REUSE_HEADER] = "reused" if reuse.is_reused else "issued"
        return response

    app.after_request(add_header)
    structlog.configure(
        processors=[
            set_mark,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


def app_from_environment() -> Flask:
    """Return the server that the environment describes."""
    database_path = os.environ["DEMO_DATABASE"]
    seed_if_empty(database_path)
    app = create_app(
        database_path,
        ratelimit_config=os.environ.get("OAUTH_RATELIMIT_CONFIG") or None,
        mongo_uri=os.environ.get("OAUTH_RATELIMIT_MONGO_URI"),
    )
    secret_key = os.environ.get("DEMO_SECRET_KEY")
    if secret_key and "oauth_ratelimit" in app.extensions:
        add_admin_page(app, secret_key)
    if os.environ.get("DEMO_MARKS"):
        mark_would_deny(app)
    return app


app = app_from_environment()
