"""The demo's server with a rate limit, its clock in the test's hands."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import pytest
from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import Clock
from testbed.oauth_server import app as demo_server
from tests.support.apps import app_limiter_of

WINDOW_S = 10
POLL_S = 0.02  # how soon a server notices that it is to end


def config(*, limit: int = 1, window: int = WINDOW_S, mode: str = "enforce", **more: Any) -> dict[str, Any]:
    """Return a configuration with one limit for clients and for users."""
    limits = {kind: [{"limit": limit, "window": window}] for kind in ("client", "user")}
    return {"mode": mode, "limits": limits, **more}


class _QuietHandler(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep requests out of the test's output."""


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    """Serve the application on a free port, one thread per request. Yields the URL without a slash at its end."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="test-server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Site:
    url: str
    app: Flask
    clock: Clock

    def remaining(self, client_id: str, username: str | None = None) -> int:
        return app_limiter_of(self.app).limiter.peek(client_id, username).remaining

    def wait_for_quota(self) -> None:
        """Let everything counted so far leave every window."""
        self.clock.advance(3 * WINDOW_S)


def protect_after(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    app = demo_server.create_app(database)
    app.config["OAUTH_RATELIMIT_CONFIG"] = settings
    extension.init_app(app, app.extensions["authorization_server"])
    return app


def protect_before(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    class AttachedFirst(demo_server.AuthorizationServer):  # type: ignore[misc]
        def __init__(self, app: Flask, **kwargs: Any) -> None:
            super().__init__(app, **kwargs)
            app.config["OAUTH_RATELIMIT_CONFIG"] = settings
            extension.init_app(app, self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_server, "AuthorizationServer", AttachedFirst)
        return demo_server.create_app(database)


@contextmanager
def protected(
    database: str | PathLike[str],
    settings: Mapping[str, Any] | str | PathLike[str] | None,
    *,
    protect: Callable[[str | PathLike[str], Any, OAuthRateLimit], Flask] = protect_after,
    clock: Clock | None = None,
    **options: Any,
) -> Iterator[Site]:
    """Serve the demo's server with a seeded database, protected by a configuration and options of the extension."""
    clock = clock or Clock()
    app = protect(database, settings, OAuthRateLimit(clock=clock, **options))
    try:
        with serving(app) as url:
            yield Site(url, app, clock)
    finally:
        app_limiter_of(app).close()
