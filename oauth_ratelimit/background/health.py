"""Health of one process: how its sync cycle runs, and the heartbeats that report it."""

import os
import secrets
import threading
import time
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.diff import fixed_values, values_of
from oauth_ratelimit.config.loader import ConfigFile, Rejection
from oauth_ratelimit.errors import StoreError, StoreRejected, StoreUnavailable
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.process.identity import begun_s
from oauth_ratelimit.store.factory import Reconnector
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore, InstanceEvent
from oauth_ratelimit.sync.flusher import CycleReport

BEAT_INTERVAL_S = 10.0
CUT_OFF_S = 10.0  # between two successful cycles; a longer time is noted in the history


class Health(NamedTuple):
    """Health of the synchronisation of one process."""

    instance: str | None = None  # name of the process; None if nothing was started
    lag_s: float = 0.0  # seconds since the last successful full sync cycle, or since the start
    last_cycle: CycleReport = CycleReport()  # the last full one
    last_error: str | None = None  # code of the last failed cycle's error; None if no cycle has failed
    last_error_ago_s: float | None = None  # seconds since that cycle
    rejection: Rejection | None = None  # what is wrong with the configuration file; None while it is valid
    rejected_at_s: float | None = None  # when that began, seconds since the epoch
    connection_problem: str | None = None  # why a new store.uri is not used; None while it is used
    refused: str | None = None  # what MongoDB refuses for a missing right, such as ``find on ratelimit_overrides``
    host_problem: str | None = None  # why the file of the host is not used; None while it is used


class HealthMonitor:
    """Sync cycles of a limiter for the scheduler, sums of their results, and the heartbeats that report them.

    Heartbeats go by the limiter's clock, which is corrected, so that their ages are right whatever this machine's says.
    """

    def __init__(
        self,
        limiter: Limiter,
        store: HeartbeatStore | None,
        *,
        metrics: Metrics | None = None,
        file: ConfigFile | None = None,
        reconnector: Reconnector | None = None,
    ) -> None:
        self._file = file
        self._reconnector = reconnector
        self._fixed_values = " ".join(map("=".join, fixed_values(limiter.settings).items()))
        self._limiter = limiter
        self.wait_for_urgent, self.wake = limiter.wait_for_urgent, limiter.wake
        self._store = store
        self._metrics = metrics
        self._lock = threading.Lock()  # guards the sums, which the threads of full and urgent cycles change
        self._uptime_s = begun_s() or uptime_s()  # at the start of the process, which may be long before a request
        self._started_at_s: float | None = None  # known with the first heartbeat, when the clock is corrected
        self._last_success_s = time.monotonic()
        self._longest_lag_s = 0.0  # since the last heartbeat
        self._last_error: tuple[str, float] | None = None  # code and monotonic time
        self._last_full = CycleReport()
        self._next_beat_s = 0.0
        self._reported: tuple[object, ...] = ()  # what the last heartbeat said of settings
        self._noted: Settings | None = None  # configuration in the history
        self._is_failing = False  # the last cycle
        self._totals = Counter(flushed_count=0, conflict_count=0, failure_count=0, over_admitted_count=0)
        self.instance = f"{limiter.settings.policies.instance}:{os.getpid()}:{secrets.token_hex(2)}"

    def sync(self) -> CycleReport:
        started_s = time.monotonic()
        report = self._limiter.sync(is_scheduled=True)
        self._last_full = report
        if report.error is None and report.synced_ago_s is not None:
            now_s = time.monotonic() - report.synced_ago_s
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

    def health(self) -> Health:
        now_s = time.monotonic()
        code, failed_at_s = self._last_error or (None, None)
        rejection = self._file.rejection if self._file else None
        return Health(
            instance=self.instance,
            lag_s=now_s - self._last_success_s,
            last_cycle=self._last_full,
            last_error=code,
            last_error_ago_s=None if failed_at_s is None else now_s - failed_at_s,
            rejection=rejection,
            rejected_at_s=rejection and self._time_of(rejection.since_s),
            connection_problem=self._reconnector.problem if self._reconnector else None,
            refused=self._store.refused if self._store else None,
            host_problem=self._limiter.host.problem,
        )

    def _time_of(self, at_uptime_s: float) -> float:
        """Return the time of an earlier moment, by the limiter's clock as it goes now."""
        return self._limiter.now_s() - (uptime_s() - at_uptime_s)

    def note_state(self) -> None:
        """Update the metrics. The lag grows while no cycle runs."""
        if self._metrics is not None:
            found, mode = self.health(), self._limiter.settings.policies.mode
            self._metrics.record_state(
                found.last_cycle,
                lag_s=found.lag_s,
                is_config_valid=found.rejection is None,
                is_refused=found.refused is not None,
                mode=mode,
            )

    def beat(self, *, override_count: int, base: Settings | None = None) -> None:
        """Store a heartbeat, if it is due or if the mode, the overrides or the file have changed, and note what is new.

        If MongoDB is unreachable, the next call tries again. Raises ``StoreRejected`` if MongoDB refuses; the next
        heartbeat is due as usual then. ``base`` is the configuration without overrides.
        """
        now_s = self._limiter.now_s()
        settings = self._limiter.settings
        found = self.health()
        digest = self._file.digest if self._file else None
        problem = found.connection_problem
        mode, is_valid, refused = settings.policies.mode.value, found.rejection is None, found.refused
        host = self._limiter.host.name
        reported = (mode, override_count, digest, is_valid, problem, refused, host)
        is_early = self._next_beat_s - BEAT_INTERVAL_S <= now_s < self._next_beat_s
        if self._store is None or (is_early and reported == self._reported):
            return
        if self._started_at_s is None:
            self._started_at_s = self._time_of(self._uptime_s)
        try:
            self._store.put(
                Heartbeat(
                    instance=self.instance,
                    beat_at_s=now_s,
                    started_at_s=self._started_at_s,
                    version=package_version(),
                    mode=mode,
                    interval_s=settings.sync.interval_s,
                    lag_s=self._longest_lag_s,
                    override_count=override_count,
                    clock_offset_s=self._limiter.clock_offset_s,
                    config_digest=digest,
                    config_file=self._file.path if self._file else None,
                    config_rejected_at_s=found.rejected_at_s,
                    fixed_values=self._fixed_values,
                    connection_problem=problem,
                    refused=refused,
                    host=host,
                    synchronises=not found.last_cycle.is_elsewhere,
                    **self._totals,
                )
            )
            if self._reported and self._longest_lag_s > CUT_OFF_S + settings.sync.interval_s:  # not at its start
                lost_s = now_s - self._longest_lag_s
                self._store.note_event(InstanceEvent(self.instance, lost_s, "cut off", package_version()))
                self._store.note_event(InstanceEvent(self.instance, now_s, "reconnected", package_version()))
                self._longest_lag_s = 0.0
            base = base or settings
            is_noted = base is self._noted or base.is_rejected
            if not is_noted and self._store.note_configuration(self.instance, values_of(base), at_s=now_s):
                if self._noted is None:
                    started = InstanceEvent(self.instance, self._started_at_s, "started", package_version())
                    self._store.note_event(started)
                self._noted = base
        except StoreUnavailable:
            return
        except StoreRejected:
            self._next_beat_s, self._reported = now_s + BEAT_INTERVAL_S, reported
            raise
        self._next_beat_s, self._reported, self._longest_lag_s = now_s + BEAT_INTERVAL_S, reported, 0.0

    def stop(self) -> None:
        """Remove the heartbeat, unless MongoDB is unreachable."""
        if self._metrics is not None:
            self._metrics.record_state(CycleReport(), lag_s=0.0, is_config_valid=True, is_refused=False, mode=None)
        if self._store is None or self._is_failing or not self._next_beat_s:
            return
        with suppress(StoreError):  # the heartbeat expires by itself
            self._store.note_event(InstanceEvent(self.instance, self._limiter.now_s(), "ended", package_version()))
            self._store.remove(self.instance)

    def _record(self, report: CycleReport, started_s: float) -> None:
        now_s = time.monotonic()
        if self._metrics is not None:
            self._metrics.record_cycle(report, duration_s=now_s - started_s)
        with self._lock:
            self._is_failing = report.error is not None
            if report.error is not None:
                self._last_error = (report.error.code, now_s)
            self._totals.update(
                flushed_count=report.flushed_count,
                conflict_count=report.conflict_count,
                over_admitted_count=report.over_admitted.total(),
                failure_count=self._is_failing,
            )


def package_version() -> str:
    """Return the version of this package, ``unknown`` if it is not installed."""
    try:
        return version("oauth_ratelimit")
    except PackageNotFoundError:
        return "unknown"
