"""Tools for tests of a limited server: a clock that stands still, and counters in memory.

The pytest plugin offers them as fixtures, see ``docs/testing.md``. Other test runners use them directly.
"""

from dataclasses import replace
from typing import Any, Self

from flask import Flask

from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.config.settings import OFF
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.flask_authlib.extension import OAuthRateLimit

__all__ = ["MIDNIGHT_S", "FrozenClock", "FrozenRateLimit"]

MIDNIGHT_S = 1_999_987_200.0  # frames of all lengths begin at midnight, so that no test depends on the hour


class FrozenClock:
    """A clock that stands still until a test advances it. Call it to get the time.

    Args:
        now_s: The time at first, seconds since the epoch.
    """

    def __init__(self, now_s: float = MIDNIGHT_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Advance the clock.

        Raises:
            ValueError: The duration is negative.
        """
        if duration_s < 0:
            raise ValueError(f"time does not go back: expected 0 seconds or more, got {duration_s}")
        self.now_s += duration_s


class _IdleWorker(Worker):
    """A worker without a background cycle, because there is nothing to synchronise with."""

    def start(self) -> None:
        """Start nothing."""


class _FrozenAppLimiter(AppLimiter):
    """An ``AppLimiter`` with the configuration as it was at the start, except its database.

    A file that is not valid fails the test.
    """

    worker_type = _IdleWorker

    def __init__(self, live: LiveSettings, **parts: Any) -> None:
        settings = live.current
        if live.file and live.file.rejection:
            raise ConfigError(live.file.rejection.problems, source=live.file.path)
        alone = replace(settings, store=replace(settings.store, uri=None), host=OFF)
        super().__init__(LiveSettings(alone, lambda: None), **parts)

    def report_start(self) -> None:
        """Log nothing: a test starts many times."""


class FrozenRateLimit(OAuthRateLimit):
    """An ``OAuthRateLimit`` for one test, with its own clock, counters in memory and no thread.

    It uses the application's configuration, except ``store.uri``. If the application was protected before, it is again
    after ``close`` or at the end of a ``with`` block.

    Args:
        clock: Returns the time.
        options: Further arguments of ``OAuthRateLimit``, such as ``username_of`` and ``on_denied``.
    """

    _app_limiter_type = _FrozenAppLimiter

    def __init__(self, clock: FrozenClock, **options: Any) -> None:
        super().__init__(clock=clock, **options)
        self._replaced: list[tuple[Flask, object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def init_app(self, app: Flask | None, server: Any) -> None:
        """Protect an application until ``close``. A second call starts with nothing counted."""
        if app is not None:
            self._replaced.append((app, app.extensions.pop(EXTENSION, None)))
        super().init_app(app, server)

    def close(self, app: Flask | None = None) -> None:
        """Restore an application, by default every one."""
        ending = [each for each in self._replaced if app in (None, each[0])]
        self._replaced = [each for each in self._replaced if each not in ending]
        for app, former in reversed(ending):
            frozen = app.extensions.pop(EXTENSION, None)
            if isinstance(frozen, _FrozenAppLimiter):
                frozen.close()
            if former is not None:
                app.extensions[EXTENSION] = former
