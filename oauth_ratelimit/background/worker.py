"""The background work of one process: synchronisation, overrides, heartbeats, statistics and records of denials."""

import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

import structlog

from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.background.live_settings import LiveSettings, OverrideCache
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.denials import DenialQueue, DenialRecorder
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import open_metrics
from oauth_ratelimit.observe.observer import Callbacks, Observer
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.store.factory import open_stores
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.scheduler import SyncScheduler, UrgentCycles

log = structlog.get_logger(__name__)

REPEAT_S = 60.0  # between two log entries about the same task
WAITING_SHARE = 1 / 2  # of the time to end, for the tick that runs
TASK_SHARE = 1 / 2  # of the time that is left, for each task that has something to write


class BackgroundTask(Protocol):
    """Regular work with MongoDB besides the counters."""

    def run(self) -> None:
        """Run due work. Called after each full sync cycle that reached MongoDB; may block on it."""

    def close(self, deadline: Deadline) -> None:
        """Finish at process exit, before a deadline. Called after the last flush."""


class Worker:
    """The limiter and the background work of one process. A forked child needs a worker of its own.

    Args:
        live: The settings.
        callbacks: Functions of the application.
        clock: Returns the time in seconds since the epoch.
        trace_of: Returns the trace of the current request.

    Attributes:
        pid: Id of the process.
        limiter: Decides the requests.
        health_monitor: Runs and watches the sync cycle.
        guard: Counts failed authentications.
        observer: Reports the decisions.
        stores: The stores that instances share; None without ``store.uri``.
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
        self._settings = settings  # of limiter and guard
        self._clock = clock
        self._log = ThrottledLog(log, REPEAT_S)
        self.stores = stores = open_stores(settings.store)
        queue = DenialQueue() if stores else None
        events = DenialEvents(settings.events.per_minute, trace_of=trace_of, queue=queue)
        self.limiter = Limiter(
            settings,
            stores and stores.counters,
            clock=clock,
            denial_events=events,
            follows_store_clock=clock is time.time,  # an injected clock is right by definition
        )
        metrics = open_metrics()
        self.guard = Guard(settings, stores and stores.failures, clock=clock, events=events, metrics=metrics)
        self.health_monitor = HealthMonitor(self.limiter, stores and stores.heartbeats, clock=clock, metrics=metrics)
        self._override_cache = OverrideCache(stores and stores.overrides)
        statistics = stores and StatisticsRecorder(
            stores.statistics, settings=lambda: live.current.statistics, clock=self.limiter.now_s
        )
        denials = (
            DenialRecorder(
                queue,
                stores.denials,
                instance=self.health_monitor.instance,
                keep_s=lambda: live.current.events.keep_denials_s,
                clock=self.limiter.now_s,
            )
            if stores and queue
            else None
        )
        self.observer = Observer(callbacks, metrics=metrics, statistics=statistics, clock=self.limiter.now_s)
        self._tasks: list[BackgroundTask] = [task for task in (statistics, denials) if task is not None]
        self._scheduler = SyncScheduler(
            self.health_monitor, interval_s=settings.sync.interval_s, on_cycle=self.after_cycle
        )
        self._failure_cycles: UrgentCycles | None = None  # once the guard is on
        self._is_ending = False
        self._has_preloaded = False
        self._preload_lock = threading.Lock()  # guards the flag; held during a read, so that it happens once

    def start(self) -> None:
        """Start the background threads."""
        self._scheduler.start()
        self._start_failure_cycles()

    def _start_failure_cycles(self) -> None:
        """Start to synchronise urgent failures, if the guard is on and shares them."""
        if self._failure_cycles is None and self.guard.limiter is not None and self.stores is not None:
            self._failure_cycles = UrgentCycles(self.guard.limiter, interval_s=self._settings.sync.interval_s)
            self._failure_cycles.start()

    def preload(self) -> None:
        """Read the most recently used keys, once. Blocks on MongoDB."""
        with self._preload_lock:
            count = 0 if self._has_preloaded else self._live.current.sync.preload_count
            if count:
                self.limiter.preload(count)
                self.guard.preload(count)
            self._has_preloaded = True

    def stop(self, deadline: Deadline | None = None) -> None:
        """Flush for the last time and release everything, within seven seconds.

        Args:
            deadline: When to give up; None gives it all the time that a process has to end.
        """
        deadline = deadline or Deadline()
        self._is_ending = True
        self._scheduler.stop(timeout_s=deadline.part(WAITING_SHARE).remaining_s)
        if self._failure_cycles is not None:
            self._failure_cycles.stop(deadline.part(WAITING_SHARE))
        self.limiter.close(deadline)
        self.guard.close(deadline)
        self._attempt(self.observer.count_noted)
        for task in self._tasks:
            part = deadline.part(TASK_SHARE)
            with self._time_limit(part):
                self._attempt(partial(task.close, part))
        with self._time_limit(deadline):
            self.health_monitor.stop()
            if self.stores is not None:
                self.stores.close()

    def _time_limit(self, deadline: Deadline) -> AbstractContextManager[None]:
        return self.stores.time_limit(deadline.remaining_s) if self.stores else nullcontext()

    def after_cycle(self, report: CycleReport | None) -> None:
        """Apply changes of configuration and overrides, then run the tasks. The scheduler calls this.

        Args:
            report: The report of the sync cycle before; None if none has run yet.
        """
        now_s = self._clock()
        is_reachable = report is None or report.error is None  # else MongoDB would only delay the next cycle
        if is_reachable:
            self._attempt_unless_ending(self.preload)
            self._attempt_unless_ending(self._override_cache.refresh)
        self._attempt_unless_ending(partial(self._update_settings, now_s))
        self._attempt_unless_ending(partial(self.guard.run, is_reachable=is_reachable))
        self._attempt_unless_ending(self.observer.count_noted)
        if is_reachable:
            self._attempt_unless_ending(partial(self.health_monitor.beat, override_count=self._live.override_count))
            for task in self._tasks:
                self._attempt_unless_ending(task.run)

    def _update_settings(self, now_s: float) -> None:
        self._live.update(self._override_cache.active(now_s))
        settings = self._live.current
        if settings is not self._settings:
            self.limiter.reconfigure(settings)
            self.guard.reconfigure(settings)
            self._start_failure_cycles()
            self._settings = settings  # last, so that the next tick tries again after a failure

    def _attempt_unless_ending(self, work: Callable[[], None]) -> None:
        """Run one task, unless the process ends: then the rest of a tick only takes the time of the last flush."""
        if not self._is_ending:
            self._attempt(work)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Run one task and log its failure, so that the other tasks still run."""
        try:
            work()
        except Exception as exc:  # noqa: BLE001  # a bug or an unexpected document
            self._log.error("duty_failed", error=repr(exc), traceback=traceback.format_exc())
