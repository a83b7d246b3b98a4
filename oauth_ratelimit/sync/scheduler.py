"""Runs the sync cycle in the background: one daemon thread, off the request path."""

import logging
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import structlog
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from oauth_ratelimit.sync.flusher import CycleReport

log = structlog.get_logger(__name__)

TICKS_PER_INTERVAL = 10  # so soon is an urgent key synchronised
SHORTEST_TICK_S = 0.02
LOGGER_NAME = "oauth_ratelimit"  # APScheduler logs each run as "apscheduler.executors.<this>"


class Synchronised(Protocol):
    """What the scheduler drives: a ``Limiter``."""

    def sync(self) -> CycleReport: ...

    def sync_urgent(self) -> CycleReport | None: ...


class SyncScheduler:
    """Drives one limiter. To be started in the process that serves requests, after any fork.

    Args:
        limiter: Synchronised each interval, its urgent keys at each tick between.
        interval_s: The time between two full cycles. The first comes after a random part of it, so that instances
            started together do not write together.
        on_tick: Called after each full cycle, for what else is to be looked at: a changed configuration. Gets the
            cycle's report. The first call comes with the first tick, not to go without overrides for longer; then
            the report may be None.
    """

    def __init__(
        self,
        limiter: Synchronised,
        *,
        interval_s: float,
        on_tick: Callable[[CycleReport | None], None] | None = None,
    ) -> None:
        self._limiter = limiter
        self._on_tick = on_tick
        self._tick_s = max(SHORTEST_TICK_S, interval_s / TICKS_PER_INTERVAL)
        self._ticks_per_cycle = max(1, round(interval_s / self._tick_s))
        self._tick_count = random.randrange(self._ticks_per_cycle)
        self._ticking = threading.Lock()  # held while a tick runs, so that stop() can wait for it
        self._is_first_tick = True
        self._stopped = False
        self._scheduler: BackgroundScheduler | None = None

    def start(self) -> None:
        """Start the thread."""
        # Runs jobs in the scheduler's own thread, so that there is one thread, and none that the exit would wait for.
        executor = DebugExecutor()
        logging.getLogger(f"apscheduler.executors.{LOGGER_NAME}").setLevel(logging.WARNING)
        logger = logging.getLogger(f"apscheduler.scheduler.{LOGGER_NAME}")
        logger.setLevel(logging.WARNING)
        self._scheduler = BackgroundScheduler(
            daemon=True, executors={LOGGER_NAME: executor}, logger=logger, timezone="UTC"
        )
        self._scheduler.add_job(
            self.run_once,
            IntervalTrigger(seconds=self._tick_s, timezone="UTC"),
            executor=LOGGER_NAME,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,  # the default, one second, skips a run that comes late
            # At once: from Python 3.12 on, a process that ends can no longer start the threads of a connection.
            next_run_time=datetime.now(UTC),
        )
        self._scheduler.start()

    def run_once(self) -> None:
        """Run one tick. Whatever goes wrong is logged and the next tick comes all the same."""
        with self._ticking:
            if self._stopped:
                return
            try:
                self._tick_count += 1
                is_full = self._tick_count % self._ticks_per_cycle == 0
                report = self._limiter.sync() if is_full else self._limiter.sync_urgent()
                if self._on_tick is not None and (is_full or self._is_first_tick):
                    self._is_first_tick = False
                    self._on_tick(report)
            except Exception:
                log.exception("cycle_failed")

    def stop(self, *, timeout_s: float = 5.0) -> bool:
        """Let no further tick begin, and wait for the one that runs.

        ``pause`` and not ``shutdown``: under gevent the latter hangs in an exit handler. The thread is a daemon.

        Returns:
            Whether nothing runs any more.
        """
        self._stopped = True
        if self._scheduler is not None:
            self._scheduler.pause()
        is_idle = self._ticking.acquire(timeout=timeout_s)
        if is_idle:
            self._ticking.release()
        return is_idle
