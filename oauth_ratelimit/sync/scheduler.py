"""Background threads of the sync cycle: one for the full cycles and one for urgent keys, off the request path."""

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.sync.flusher import CycleReport

log = structlog.get_logger(__name__)

SHORT_GAP_S = 0.003  # from one urgent cycle to the next: keys that come meanwhile are collected
LONG_GAP_S = 0.02  # the same in a storm of new keys, which saves CPU time
SHORT_GAPS = 300  # in a row
SHORT_GAPS_PER_S = 1 / LONG_GAP_S  # regained: as many as keep the gaps of a storm even
MAX_DOUBLINGS = 30  # of the gap while the store fails; the interval is reached long before
LOGGER_NAME = "oauth_ratelimit"  # APScheduler logs each run as "apscheduler.executors.<this>"


class Urgent(Protocol):
    """Interface of a ``Limiter`` that urgent cycles call."""

    def sync_urgent(self) -> CycleReport | None: ...

    def wait_for_urgent(self) -> None: ...

    def wait_for_critical(self, timeout_s: float) -> None: ...

    def wake(self) -> None: ...


class Synchronised(Urgent, Protocol):
    """Interface of a ``Limiter`` that the scheduler calls."""

    def sync(self) -> CycleReport: ...


class Pacing:
    """Gaps between the beginnings of urgent cycles: short as a rule, long while new keys never end or the store fails.

    Args:
        interval_s: Seconds between two full cycles: the longest gap.
        clock: Returns the time of a clock that is never set, in seconds.
    """

    def __init__(self, interval_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._long_gap_s = min(LONG_GAP_S, interval_s / 10)
        self._short_gap_s = SHORT_GAP_S
        self._failure_count = 0
        self._clock = clock
        self._credit = float(SHORT_GAPS)
        self._began_s = clock() - interval_s

    def begin(self) -> None:
        """Note that an urgent cycle begins."""
        now_s = self._clock()
        regained = (now_s - self._began_s) * SHORT_GAPS_PER_S
        self._credit = min(float(SHORT_GAPS), max(0.0, self._credit + regained - 1))
        self._began_s = now_s

    def pauses_s(self) -> tuple[float, float]:
        """Return the seconds until a critical key may be synchronised, and the further ones until any other may."""
        passed_s = self._clock() - self._began_s
        short_s = max(0.0, self._short_gap_s - passed_s)
        has_credit = self._credit + passed_s * SHORT_GAPS_PER_S >= 1
        return short_s, 0.0 if has_credit else max(0.0, self._long_gap_s - passed_s - short_s)

    @property
    def is_failing(self) -> bool:
        """True if the store has not answered since it failed."""
        return self._failure_count > 0

    def fail(self) -> None:
        """Note that the store has failed: the gap doubles up to the interval, with jitter."""
        self._failure_count += 1
        doubled_s = SHORT_GAP_S * 2 ** min(self._failure_count, MAX_DOUBLINGS)
        self._short_gap_s = min(self._interval_s, doubled_s) * (1 - random.random() / 2)

    def succeed(self) -> None:
        """Note that the store has answered."""
        self._failure_count, self._short_gap_s = 0, SHORT_GAP_S


class UrgentCycles:
    """Synchronises the urgent keys of one limiter, in a thread of its own.

    Args:
        limiter: The limiter.
        interval_s: Seconds between two full cycles.
    """

    def __init__(self, limiter: Urgent, *, interval_s: float) -> None:
        self._limiter = limiter
        self._pacing = Pacing(interval_s)
        self._running = threading.Lock()  # held while a cycle runs, so that stop() can wait for it
        self._stopping = threading.Event()
        self._no_pause = threading.Event()  # the store answers again, or the thread stops

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="oauth_ratelimit-urgent", daemon=True).start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._limiter.wait_for_urgent()
            short_s, further_s = self._pacing.pauses_s()
            if short_s:
                self._no_pause.wait(short_s)
            if further_s:
                self._limiter.wait_for_critical(further_s)
            self.run_once()

    def run_once(self) -> None:
        """Synchronise the urgent keys. Errors are logged."""
        with self._running:
            if self._stopping.is_set():
                return
            self._pacing.begin()
            self._no_pause.clear()
            try:
                report = self._limiter.sync_urgent()
            except Exception:
                log.exception("cycle_failed")
                self._pacing.fail()
                return
            if report is not None and report.error is not None:
                self._pacing.fail()
            elif report is not None:
                self._pacing.succeed()

    def resume(self) -> None:
        """End the pause after a failure, because the store answers again."""
        if self._pacing.is_failing:
            self._pacing.succeed()
            self._no_pause.set()

    def stop(self, deadline: Deadline) -> bool:
        """Start no further cycle, wait for the one that runs, and return whether it ended before the deadline."""
        self._stopping.set()
        self._no_pause.set()
        self._limiter.wake()
        if not self._running.acquire(timeout=deadline.remaining_s):
            return False
        self._running.release()
        return True


class SyncScheduler:
    """Runs the sync cycles of one limiter. Start it in the process that serves requests, after any fork.

    Args:
        limiter: The limiter. Its urgent keys are synchronised at once, all others once per interval.
        interval_s: Seconds between two full cycles. The first one comes after a random part of it, so that instances
            started together do not write together.
        on_cycle: Called when the thread has started, with None, and with the report after each full cycle.

    Attributes:
        urgent: The cycles of urgent keys.
    """

    def __init__(
        self,
        limiter: Synchronised,
        *,
        interval_s: float,
        on_cycle: Callable[[CycleReport | None], None] | None = None,
    ) -> None:
        self._limiter = limiter
        self._on_cycle = on_cycle
        self._interval_s = interval_s
        self.urgent = UrgentCycles(limiter, interval_s=interval_s)
        self._full = threading.Lock()  # held while a full cycle runs, so that stop() can wait for it
        self._stopping = threading.Event()
        self._scheduler: BackgroundScheduler | None = None

    def start(self) -> None:
        """Start the threads."""
        # It runs jobs in the scheduler's thread, so there is no other one that the exit would wait for.
        executor = DebugExecutor()
        logging.getLogger(f"apscheduler.executors.{LOGGER_NAME}").setLevel(logging.WARNING)
        logger = logging.getLogger(f"apscheduler.scheduler.{LOGGER_NAME}")
        logger.setLevel(logging.WARNING)
        self._scheduler = BackgroundScheduler(
            daemon=True, executors={LOGGER_NAME: executor}, logger=logger, timezone="UTC"
        )
        # At once, because from Python 3.12 on an exiting process cannot start the threads of a connection.
        self._scheduler.add_job(self._begin, executor=LOGGER_NAME, misfire_grace_time=None)
        self._scheduler.add_job(
            self.run_once,
            IntervalTrigger(seconds=self._interval_s, timezone="UTC"),
            executor=LOGGER_NAME,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,  # the default skips a run that is a second late
            next_run_time=datetime.now(UTC) + timedelta(seconds=random.random() * self._interval_s),
        )
        self._scheduler.start()
        self.urgent.start()

    def _begin(self) -> None:
        with self._full:
            if not self._stopping.is_set() and self._on_cycle is not None:
                self._run_logged(lambda: None)

    def run_once(self) -> None:
        """Run one full cycle. Errors are logged and do not stop the next one."""
        with self._full:
            if not self._stopping.is_set():
                self._run_logged(self._limiter.sync)

    def _run_logged(self, cycle: Callable[[], CycleReport | None]) -> None:
        try:
            report = cycle()
            if report is not None and report.error is None:
                self.urgent.resume()
            if self._on_cycle is not None:
                self._on_cycle(report)
        except Exception:
            log.exception("cycle_failed")

    def stop(self, *, timeout_s: float = 5.0) -> bool:
        """Start no further cycle, and wait for those that run.

        Returns:
            Whether they have ended within the timeout.
        """
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.pause()  # shutdown() hangs in an exit handler under gevent
        deadline = Deadline(timeout_s)
        has_ended = self.urgent.stop(deadline)
        if not self._full.acquire(timeout=deadline.remaining_s):
            return False
        self._full.release()
        return has_ended
