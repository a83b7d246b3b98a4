"""What a process tells the operators about itself: that it is there, and how its sync cycle fares."""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.sync.flusher import CycleReport

BEAT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """How the synchronisation of one process fares.

    Attributes:
        instance: The process, None if nothing was started.
        lag_s: Seconds since its last full sync cycle without an error, or since its start.
        in_flight_hits: Requests counted here that the last full cycle could not bring to MongoDB.
        key_count: Keys in memory.
        last_error: Why a cycle has failed last, None if none has.
        last_error_ago_s: How long ago that was.
    """

    instance: str | None = None
    lag_s: float = 0.0
    in_flight_hits: int = 0
    key_count: int = 0
    last_error: str | None = None
    last_error_ago_s: float | None = None


class HealthMonitor:
    """
    Drives a limiter's sync cycle on behalf of the scheduler, adds up what comes of it, and reports that now and then.

    Args:
        limiter: Whose.
        store: Where to; None if nothing is shared.
        clock: Tells the time, seconds since the epoch.
        metrics: Where it is counted, too.

    Attributes:
        is_failing: Whether MongoDB was out of reach when it was last asked: by a cycle, or at the end.
    """

    def __init__(
        self,
        limiter: Limiter,
        store: HeartbeatStore | None,
        *,
        clock: Callable[[], float],
        metrics: Metrics | None = None,
    ) -> None:
        self._limiter = limiter
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._last_success_s = time.monotonic()
        self._longest_lag_s = 0.0  # since the last sign of life
        self._last_error: tuple[str, float] | None = None  # and when, by the monotonic clock
        self._last_full = CycleReport()
        self._started_at_s = clock()
        self._next_beat_s = 0.0
        self._told: tuple[str, int] | None = None  # mode and number of overrides, in the last sign of life
        self.is_failing = False
        self._flushed_count = self._conflict_count = self._failure_count = 0
        self.instance = f"{limiter.settings.policies.instance}:{os.getpid()}:{secrets.token_hex(2)}"

    def sync(self) -> CycleReport:
        """Run a cycle of the limiter."""
        begun_s = time.monotonic()
        report = self._limiter.sync()
        self._last_full = report
        if report.error is None:
            now_s = time.monotonic()
            self._longest_lag_s = max(self._longest_lag_s, now_s - self._last_success_s)
            self._last_success_s = now_s
        self._note(report, begun_s)
        self.note_state()
        return report

    def sync_urgent(self) -> CycleReport | None:
        """Run a cycle for the keys that should not wait."""
        begun_s = time.monotonic()
        report = self._limiter.sync_urgent()
        if report is not None:
            self._note(report, begun_s)
        return report

    def health(self) -> Health:
        """Return how the sync cycle fares now."""
        now_s = time.monotonic()
        message, failed_at_s = self._last_error or (None, None)
        return Health(
            instance=self.instance,
            lag_s=now_s - self._last_success_s,
            in_flight_hits=self._last_full.in_flight_hits,
            key_count=self._last_full.key_count,
            last_error=message,
            last_error_ago_s=None if failed_at_s is None else now_s - failed_at_s,
        )

    def note_state(self) -> None:
        """Bring the metrics up to date: the lag grows while no cycle runs."""
        if self._metrics is not None:
            health = self.health()
            self._metrics.record_state(
                in_flight_hits=health.in_flight_hits, key_count=health.key_count, lag_s=health.lag_s
            )

    def beat(self, *, override_count: int) -> None:
        """Leave a sign of life, if it is time to, or if an operator has just changed what it tells.

        Without an answer the next call tries again; a refusal is not hurried.

        Args:
            override_count: Overrides in force here.
        """
        now_s = self._clock()
        settings = self._limiter.settings
        to_tell = (settings.policies.mode.value, override_count)
        is_early = self._next_beat_s - BEAT_EVERY_S <= now_s < self._next_beat_s
        if self._store is None or (is_early and to_tell == self._told):
            return
        try:
            self._store.put(
                Heartbeat(
                    instance=self.instance,
                    beat_at_s=now_s,
                    started_at_s=self._started_at_s,
                    version=package_version(),
                    mode=settings.policies.mode.value,
                    interval_s=settings.sync.interval_s,
                    lag_s=self._longest_lag_s,
                    override_count=override_count,
                    flushed_count=self._flushed_count,
                    conflict_count=self._conflict_count,
                    failure_count=self._failure_count,
                    clock_offset_s=self._limiter.clock_offset_s,
                )
            )
        except StoreUnavailable:
            return
        except StoreRejected:
            pass  # rights are missing: instances are not seen then, which is all
        self._next_beat_s, self._told, self._longest_lag_s = now_s + BEAT_EVERY_S, to_tell, 0.0

    def stop(self) -> None:
        """Take the sign of life away, unless MongoDB is out of reach anyway. If it is now, ``is_failing`` says so."""
        if self._metrics is not None:
            self._metrics.record_state(in_flight_hits=0, key_count=0, lag_s=0.0)
        if self._store is None or self.is_failing or not self._next_beat_s:
            return
        try:
            self._store.remove(self.instance)
        except StoreUnavailable:
            self.is_failing = True  # the sign is forgotten all the same, only later
        except StoreRejected:
            pass  # nor could it be written

    def _note(self, report: CycleReport, begun_s: float) -> None:
        now_s = time.monotonic()
        self.is_failing = report.error is not None
        if report.error is not None:
            self._last_error = (str(report.error), now_s)
        if self._metrics is not None:
            self._metrics.record_cycle(report, duration_s=now_s - begun_s)
        self._flushed_count += report.flushed_count
        self._conflict_count += report.conflict_count
        self._failure_count += self.is_failing


def package_version() -> str:
    """Return the version of this package, ``unknown`` if it runs from a directory and was never installed."""
    try:
        return version("oauth_ratelimit")
    except PackageNotFoundError:
        return "unknown"
