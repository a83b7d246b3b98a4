"""For tests of a server that is limited: time that stands still, and counters that nobody else sees.

The pytest plugin makes fixtures of it; see ``docs/testing.md``. Other test runners use it as it is.
"""

from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from flask import Flask

from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.flask_authlib.extension import OAuthRateLimit

MIDNIGHT_S = 1_999_987_200.0  # frames of all lengths begin at midnight, so that no test depends on the hour


class FrozenClock:
    """A clock that stands still until a test moves it. Called, it tells the time.

    Args:
        now_s: Where it stands, seconds since the epoch.
    """

    def __init__(self, now_s: float = MIDNIGHT_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Let time pass.

        Raises:
            ValueError: The duration is negative.
        """
        if duration_s < 0:
            raise ValueError(f"time does not go back: expected 0 seconds or more, got {duration_s}")
        self.now_s += duration_s


class _IdleWorker(Worker):
    """Decides, and starts no background cycle: there is nothing to synchronise with."""

    def start(self) -> None:
        """Start nothing."""


class _FrozenAppLimiter(AppLimiter):
    """Decides by the configuration as it was at the start, without its database."""

    worker_type = _IdleWorker

    def __init__(self, live: LiveSettings, **parts: Any) -> None:
        settings = live.current
        alone = replace(settings, store=replace(settings.store, uri=None))
        super().__init__(LiveSettings(alone, lambda: None), **parts)


class FrozenRateLimit(OAuthRateLimit):
    """An ``OAuthRateLimit`` for one test: on a clock of the test's own, counting in memory alone, without a thread.

    It takes the application's own configuration, except ``store.uri``. An application that is protected already has
    its own protection back after ``close``, or at the end of a ``with`` block.

    Args:
        clock: Tells the time.
        options: What else ``OAuthRateLimit`` takes: ``username_of``, ``on_denied`` and so on.
    """

    _app_limiter_type = _FrozenAppLimiter

    def __init__(self, clock: FrozenClock, **options: Any) -> None:
        super().__init__(clock=clock, **options)
        self._replaced: list[tuple[Flask, object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def init_app(self, app: Flask | None, server: Any) -> None:
        """Protect an application until ``close``. A second time starts it with nothing counted."""
        if app is not None:
            self._replaced.append((app, app.extensions.pop(EXTENSION, None)))
        super().init_app(app, server)

    def close(self) -> None:
        """Leave every application as it was."""
        while self._replaced:
            app, found = self._replaced.pop()
            frozen = app.extensions.pop(EXTENSION, None)
            if isinstance(frozen, _FrozenAppLimiter):
                frozen.close()
            if found is not None:
                app.extensions[EXTENSION] = found
