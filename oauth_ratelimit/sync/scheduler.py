"""Background scheduler of the sync cycle: one daemon thread, off the request path."""

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

TICKS_PER_INTERVAL = 10  # urgent keys are synchronised at each tick
SHORTEST_TICK_S = 0.02
LOGGER_NAME = "oauth_ratelimit"  # APScheduler logs each run as "apscheduler.executors.<this>"


class Synchronised(Protocol):
    """Interface of a ``Limiter`` that the scheduler calls."""

    def sync(self) -> CycleReport: ...

    def sync_urgent(self) -> CycleReport | None: ...


class SyncScheduler:
    """Runs the sync cycles of one limiter. Start it in the process that serves requests, after any fork.

    Args:
        limiter: The limiter. Its urgent keys are synchronised at each tick, all others once per interval.
        interval_s: Seconds between two full cycles. The first one comes after a random part of it, so that instances
            started together do not write together.
        on_tick: Called with the report after each full cycle, and after the first tick, with None if nothing was
            urgent.
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
        # It runs jobs in the scheduler's thread, so there is no other one that the exit would wait for.
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
            misfire_grace_time=None,  # the default skips a run that is a second late
            # At once, because from Python 3.12 on an exiting process cannot start the threads of a connection.
            next_run_time=datetime.now(UTC),
        )
        self._scheduler.start()

    def run_once(self) -> None:
        """Run one tick. Errors are logged and do not stop the next tick."""
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
        """Start no further tick, and wait for the one that runs.

        Returns:
            Whether it has ended within the timeout.
        """
        self._stopped = True
        if self._scheduler is not None:
            self._scheduler.pause()  # shutdown() hangs in an exit handler under gevent
        is_idle = self._ticking.acquire(timeout=timeout_s)
        if is_idle:
            self._ticking.release()
        return is_idle
