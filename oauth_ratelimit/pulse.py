"""
What a process tells the operators about itself: that it is there, and how its sync cycle fares.
"""

import os
import secrets
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.sync.flusher import CycleReport

BEAT_EVERY_S = 10.0


class Pulse:
    """
    Drives a limiter's sync cycle on behalf of the scheduler, adds up what comes of it, and reports that now and then.

    Args:
        limiter: Whose.

        store: Where to; None if nothing is shared.

        clock: Tells the time, seconds since the epoch.
    """

    def __init__(self, limiter: Limiter, store: HeartbeatStore | None, *, clock: Callable[[], float]) -> None:
        self._limiter = limiter
        self._store = store
        self._clock = clock
        self._started_at_s = clock()
        self._next_beat_s = 0.0
        self._is_failing = False
        self._flushed_count = self._conflict_count = self._failure_count = 0
        self.instance = f"{limiter.settings.policies.instance}:{os.getpid()}:{secrets.token_hex(2)}"

    def sync(self) -> CycleReport:
        """
        Run a cycle of the limiter.
        """
        report = self._limiter.sync()
        self._note(report)
        return report

    def sync_urgent(self) -> CycleReport | None:
        """
        Run a cycle for the keys that should not wait.
        """
        report = self._limiter.sync_urgent()
        if report is not None:
            self._note(report)
        return report

    def beat(self, *, override_count: int) -> None:
        """
        Leave a sign of life, if it is time to. Without an answer the next call tries again.

        Args:
            override_count: Overrides in force here.
        """
        now_s = self._clock()
        if self._store is None or self._next_beat_s - BEAT_EVERY_S <= now_s < self._next_beat_s:
            return
        settings = self._limiter.settings
        try:
            self._store.put(
                Heartbeat(
                    instance=self.instance,
                    beat_at_s=now_s,
                    started_at_s=self._started_at_s,
                    version=package_version(),
                    mode=settings.policies.mode.value,
                    interval_s=settings.sync.interval_s,
                    override_count=override_count,
                    flushed_count=self._flushed_count,
                    conflict_count=self._conflict_count,
                    failure_count=self._failure_count,
                    clock_offset_s=self._limiter.clock_offset_s,
                )
            )
        except StoreError:
            return
        self._next_beat_s = now_s + BEAT_EVERY_S

    def stop(self) -> None:
        """
        Take the sign of life away, unless MongoDB is out of reach anyway.
        """
        if self._store is None or self._is_failing or not self._next_beat_s:
            return
        try:
            self._store.remove(self.instance)
        except StoreError:
            return  # it is forgotten all the same, only later

    def _note(self, report: CycleReport) -> None:
        self._is_failing = report.error is not None
        self._flushed_count += report.flushed_count
        self._conflict_count += report.conflict_count
        self._failure_count += self._is_failing


def package_version() -> str:
    """
    Return the version of this package, ``unknown`` if it runs from a directory and was never installed.
    """
    try:
        return version("oauth_ratelimit")
    except PackageNotFoundError:
        return "unknown"
