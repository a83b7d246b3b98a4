"""The demo's server with a rate limit, its clock in the test's hands."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import pytest
from flask import Flask

from demo import server as demo_server
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from tests.support.apps import app_limiter_of
from tests.support.helpers import Clock
from tests.support.serving import serving

WINDOW_S = 10


def config(*, limit: int = 1, window: int = WINDOW_S, mode: str = "enforce", **more: Any) -> dict[str, Any]:
    """Return a configuration with one limit for clients and for users."""
    limits = {kind: [{"limit": limit, "window": window}] for kind in ("client", "user")}
    return {"mode": mode, "limits": limits, **more}


@dataclass(frozen=True)
class Site:
    """A protected server that is being served."""

    url: str
    app: Flask
    clock: Clock

    @property
    def app_limiter(self) -> AppLimiter:
        """The application's limiter."""
        return app_limiter_of(self.app)

    def remaining(self, client_id: str, username: str | None = None) -> int:
        """Return what is left of a quota."""
        return self.app_limiter.limiter.peek(client_id, username).remaining

    def wait_for_quota(self) -> None:
        """Let everything counted so far leave every window."""
        self.clock.advance(3 * WINDOW_S)


def protect_after(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    """Attach to a server that has its grants."""
    app = demo_server.create_app(database)
    app.config["OAUTH_RATELIMIT_CONFIG"] = settings
    extension.init_app(app, app.extensions["authorization_server"])
    return app


def protect_before(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    """Attach to a server that has no grants yet."""

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
    """Serve the demo's server, protected.

    Args:
        database: A seeded database.
        settings: What stands in ``OAUTH_RATELIMIT_CONFIG``.
        protect: When to attach.
        clock: Moved by the test.
        options: For ``OAuthRateLimit``.
    """
    clock = clock or Clock()
    app = protect(database, settings, OAuthRateLimit(clock=clock, **options))
    try:
        with serving(app) as url:
            yield Site(url, app, clock)
    finally:
        app.extensions["oauth_ratelimit"].close()
