"""Health of one process: how its sync cycle runs, and the heartbeats that report it."""

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.sync.flusher import CycleReport

BEAT_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the synchronisation of one process.

    Attributes:
        instance: Name of the process; None if nothing was started.
        lag_s: Seconds since the last successful full sync cycle, or since the start.
        in_flight_hits: Hits that the last full cycle could not send.
        key_count: Keys in memory.
        quarantined_count: Keys whose hits wait until a damaged document is repaired or removed.
        last_error: Error of the last failed cycle; None if no cycle has failed.
        last_error_ago_s: Seconds since that cycle.
    """

    instance: str | None = None
    lag_s: float = 0.0
    in_flight_hits: int = 0
    key_count: int = 0
    quarantined_count: int = 0
    last_error: str | None = None
    last_error_ago_s: float | None = None


class HealthMonitor:
    """Runs a limiter's sync cycles for the scheduler, sums up their results and reports them as heartbeats.

    Args:
        limiter: The limiter.
        store: The shared heartbeats; None without ``store.uri``.
        clock: Returns the time in seconds since the epoch.
        metrics: Metrics of the cycles.

    Attributes:
        instance: Name of the process.
        is_failing: True if the last access to MongoDB failed.
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
        self._lock = threading.Lock()  # guards the sums, which the threads of full and urgent cycles change
        self._last_success_s = time.monotonic()
        self._longest_lag_s = 0.0  # since the last heartbeat
        self._last_error: tuple[str, float] | None = None  # message and monotonic time
        self._last_full = CycleReport()
        self._started_at_s = clock()
        self._next_beat_s = 0.0
        self._reported: tuple[str, int] | None = None  # mode and number of overrides in the last heartbeat
        self.is_failing = False
        self._flushed_count = self._conflict_count = self._failure_count = self._over_admitted_count = 0
        self.instance = f"{limiter.settings.policies.instance}:{os.getpid()}:{secrets.token_hex(2)}"

    def sync(self) -> CycleReport:
        """Run a full sync cycle."""
        started_s = time.monotonic()
        report = self._limiter.sync(is_scheduled=True)
        self._last_full = report
        if report.error is None:
            now_s = time.monotonic()
            self._longest_lag_s = max(self._longest_lag_s, now_s - self._last_success_s)
            self._last_success_s = now_s
        self._record(report, started_s)
        self.note_state()
        return report

    def sync_urgent(self) -> CycleReport | None:
        """Run a sync cycle of the urgent keys, if there are any."""
        started_s = time.monotonic()
        report = self._limiter.sync_urgent()
        if report is not None:
            self._record(report, started_s)
        return report

    def wait_for_urgent(self) -> None:
        """Block until a key is urgent."""
        self._limiter.wait_for_urgent()

    def wait_for_critical(self, timeout_s: float) -> None:
        """Block until a key is critical, or until the time is over."""
        self._limiter.wait_for_critical(timeout_s)

    def wake(self) -> None:
        """End the waiting of another thread."""
        self._limiter.wake()

    def health(self) -> Health:
        """Return the health of the synchronisation."""
        now_s = time.monotonic()
        message, failed_at_s = self._last_error or (None, None)
        return Health(
            instance=self.instance,
            lag_s=now_s - self._last_success_s,
            in_flight_hits=self._last_full.in_flight_hits,
            key_count=self._last_full.key_count,
            quarantined_count=self._last_full.quarantined_count,
            last_error=message,
            last_error_ago_s=None if failed_at_s is None else now_s - failed_at_s,
        )

    def note_state(self) -> None:
        """Update the metrics. The lag grows while no cycle runs."""
        if self._metrics is not None:
            health = self.health()
            self._metrics.record_state(
                in_flight_hits=health.in_flight_hits, key_count=health.key_count, lag_s=health.lag_s
            )

    def beat(self, *, override_count: int) -> None:
        """Store a heartbeat, if it is due or if the mode or the overrides have changed.

        If MongoDB is unreachable, the next call tries again. If MongoDB refuses, the next heartbeat is due as usual.

        Args:
            override_count: Active overrides.
        """
        now_s = self._clock()
        settings = self._limiter.settings
        reported = (settings.policies.mode.value, override_count)
        is_early = self._next_beat_s - BEAT_INTERVAL_S <= now_s < self._next_beat_s
        if self._store is None or (is_early and reported == self._reported):
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
                    over_admitted_count=self._over_admitted_count,
                    clock_offset_s=self._limiter.clock_offset_s,
                )
            )
        except StoreUnavailable:
            return
        except StoreRejected:
            pass  # without the right to write, operators do not see the instance
        self._next_beat_s, self._reported, self._longest_lag_s = now_s + BEAT_INTERVAL_S, reported, 0.0

    def stop(self) -> None:
        """Remove the heartbeat, unless MongoDB is unreachable. Updates ``is_failing``."""
        if self._metrics is not None:
            self._metrics.record_state(in_flight_hits=0, key_count=0, lag_s=0.0)
        if self._store is None or self.is_failing or not self._next_beat_s:
            return
        try:
            self._store.remove(self.instance)
        except StoreUnavailable:
            self.is_failing = True  # the heartbeat expires by itself
        except StoreRejected:
            pass  # the heartbeat was refused, too

    def _record(self, report: CycleReport, started_s: float) -> None:
        now_s = time.monotonic()
        if self._metrics is not None:
            self._metrics.record_cycle(report, duration_s=now_s - started_s)
        with self._lock:
            self.is_failing = report.error is not None
            if report.error is not None:
                self._last_error = (str(report.error), now_s)
            self._flushed_count += report.flushed_count
            self._conflict_count += report.conflict_count
            self._over_admitted_count += report.over_admitted.total()
            self._failure_count += self.is_failing


def package_version() -> str:
    """Return the version of this package, ``unknown`` if it is not installed."""
    try:
        return version("oauth_ratelimit")
    except PackageNotFoundError:
        return "unknown"
