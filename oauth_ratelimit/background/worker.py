"""What a process starts for itself: the limiter, its background cycle, and what else is to be done now and then."""

import math
import os
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.background.live_settings import LiveSettings, OverrideCache
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.denials import DenialRecorder
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import open_metrics
from oauth_ratelimit.observe.observer import Callbacks, Observer
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.store.factory import open_connection
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.scheduler import SyncScheduler

log = structlog.get_logger(__name__)

REPEAT_S = 60.0  # a lasting trouble is said again this often


class BackgroundTask(Protocol):
    """Something to be done with MongoDB in the background, besides the counters."""

    def run(self, now_s: float) -> None:
        """Do what is due. Called after each full sync cycle that reached MongoDB; may block on it, raises nothing."""

    def close(self) -> None:
        """Do what is left, once, when the process ends. Called after the last flush, if that reached MongoDB."""


class Worker:
    """One process's share of the work. A fork must not use it: its thread, locks and connections stay with the parent.

    Args:
        live: The configuration.
        callbacks: Functions of the application.
        clock: Tells the time, seconds since the epoch.
        trace_of: Returns the trace of the request at hand.

    Attributes:
        pid: The process.
        limiter: Decides its requests.
        pulse: How its sync cycle fares.
        guard: Counts failed authentications.
        connection: To what is in MongoDB beside the counters; None if nothing is shared.
        observer: Reports its decisions.
    """

    def __init__(
        self,
        live: LiveSettings,
        *,
        callbacks: Callbacks,
        clock: Callable[[], float],
        trace_of: Callable[[], Trace] = Trace,
    ) -> None:
        settings = live.current
        self.pid = os.getpid()
        self._live = live
        self._settings = settings  # those that limiter and guard have
        self._clock = clock
        self.connection = open_connection(settings.store)
        denial_events = DenialEvents(
            settings.events.per_minute, trace_of=trace_of, keeps_records=self.connection is not None
        )
        self.limiter = Limiter(settings, clock=clock, denial_events=denial_events)
        self._override_cache = OverrideCache(OverrideStore(self.connection) if self.connection else None)
        heartbeats = HeartbeatStore(self.connection) if self.connection else None
        metrics = open_metrics()
        self.health_monitor = HealthMonitor(self.limiter, heartbeats, clock=clock, metrics=metrics)
        self.guard = Guard(settings, clock=clock, events=denial_events, metrics=metrics)
        statistics = self._statistics(self.connection) if self.connection else None
        self.observer = Observer(callbacks, metrics=metrics, statistics=statistics)
        self._duties: tuple[BackgroundTask, ...] = ()
        if self.connection and statistics:
            self._duties = (statistics, self._denial_recorder(self.connection))
        self._scheduler = SyncScheduler(self.health_monitor, interval_s=settings.sync.interval_s, on_tick=self._tick)
        self._has_preloaded = False
        self._complained_s = -math.inf  # monotonic
        self._preloading = threading.Lock()  # held while MongoDB is asked, guards the flag

    def start(self) -> None:
        """Start the background cycle."""
        self._scheduler.start()

    def preload(self) -> None:
        """Learn the keys that were busy last, once. Blocks on MongoDB."""
        with self._preloading:
            count = 0 if self._has_preloaded else self._live.current.sync.preload_count
            if count:
                self.limiter.preload(count)
            self._has_preloaded = True

    def stop(self) -> None:
        """Flush for the last time and release everything."""
        self._scheduler.stop()
        self.limiter.close()
        self.health_monitor.stop()
        self.guard.close(is_failing=self.health_monitor.is_failing)
        if not self.health_monitor.is_failing:
            for duty in self._duties:
                self._attempt(duty.close)
        if self.connection is not None:
            self.connection.close()

    def _statistics(self, connection: Connection) -> StatisticsRecorder:
        return StatisticsRecorder(
            StatisticsStore(connection),
            settings=lambda: self._live.current.statistics,
            clock=self._clock,
            offset_s=self._offset_s,
        )

    def _denial_recorder(self, connection: Connection) -> DenialRecorder:
        return DenialRecorder(
            self.limiter.denial_events,
            DenialStore(connection),
            instance=self.health_monitor.instance,
            keep_s=lambda: self._live.current.events.keep_denials_s,
            offset_s=self._offset_s,
        )

    def _offset_s(self) -> float:
        return self.limiter.clock_offset_s if self._clock is time.time else 0.0  # as _tick corrects the limiter

    def _tick(self, report: CycleReport | None) -> None:
        """Take over a changed configuration, and overrides that came or went; then do what else is due."""
        now_s = self._clock()
        if self._clock is time.time:  # an injected clock is right by definition
            self.limiter.correct_clock(self.limiter.clock_offset_s)
        has_answer = report is None or report.error is None  # else MongoDB would only keep the next cycle waiting
        if has_answer:
            self._attempt(self.preload)
            self._attempt(self._override_cache.refresh)
        self._attempt(partial(self._update_settings, now_s))
        if has_answer:
            self._attempt(partial(self.health_monitor.beat, override_count=self._live.override_count))
            self._attempt(self.guard.run)
            for duty in self._duties:
                self._attempt(partial(duty.run, now_s))

    def _update_settings(self, now_s: float) -> None:
        self._live.update(self._override_cache.active(now_s))
        settings = self._live.current
        if settings is not self._settings:
            self.limiter.reconfigure(settings)
            self.guard.reconfigure(settings)
            self._settings = settings  # only now: else what failed would not be tried again

    def _attempt(self, work: Callable[[], None]) -> None:
        """
        Do one thing of several. What goes wrong with it is said once a minute, and the others are done all the same.
        """
        try:
            work()
        except Exception as exc:  # noqa: BLE001  # a bug, or a document that nobody has thought of
            if time.monotonic() - self._complained_s >= REPEAT_S:
                self._complained_s = time.monotonic()
                log.error("duty_failed", error=repr(exc), traceback=traceback.format_exc())
