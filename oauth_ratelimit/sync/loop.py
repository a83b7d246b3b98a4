"""Background threads of the sync cycle: one for the full cycles and one for urgent keys, off the request path."""

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from random import SystemRandom
from typing import Protocol

from apscheduler.events import EVENT_JOB_REMOVED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED

from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.signals import background_thread, leave_signals_to_main_thread
from oauth_ratelimit.sync.flusher import CycleReport

log = get_logger(__name__)

SHORTEST_GAP_S = 0.003  # from the begin of one urgent cycle to the next: keys that come meanwhile are collected
LONGEST_REST_S = 0.02
REST_FACTOR = 3  # rest after an urgent cycle, in CPU time that it took: the thread never needs more than a quarter
LONGEST_SLEEP_S = 1.0  # of the thread for full cycles, so that it ends soon after stop()
RETRY_S = 1.0  # between two tries to start what is missing
MISSING = (
    "limits hold; until these run, counts of other hosts, overrides or changes of the file may come late or not at "
    "all; they are tried again each second"
)
LOGGER_NAME = "oauth_ratelimit"  # APScheduler logs each run as "apscheduler.executors.<this>"


class Synchronised(Protocol):
    """Interface of a ``Limiter`` that the threads call. The worker puts its health monitor between the two."""

    def sync(self) -> CycleReport: ...

    def sync_urgent(self) -> CycleReport | None: ...

    def wait_for_urgent(self) -> None: ...

    def wake(self) -> None: ...


class UrgentLoop:
    """Thread that synchronises the urgent keys of one limiter. After a failure it waits an interval."""

    def __init__(self, limiter: Synchronised, *, interval_s: float) -> None:
        self._limiter = limiter
        self._interval_s = interval_s
        self._running = threading.Lock()  # held while a cycle runs, so that stop() can wait for it
        self._stopping = threading.Event()
        self._pause_ends = threading.Event()  # the store answers again, or the thread stops

    def start(self) -> None:
        """Start the thread. Raises ``RuntimeError`` if the process has none left."""
        background_thread(self._run, "urgent").start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._limiter.wait_for_urgent()
            except Exception:  # the clock may be the application's
                log.exception("cycle_failed")
            self._pause_ends.wait(self.run_once())

    def run_once(self) -> float:
        """Synchronise the keys that are due, and return the seconds until the next time. Errors are logged."""
        with self._running:
            if self._stopping.is_set():
                return 0.0
            self._pause_ends.clear()
            began_s, cpu_s = time.monotonic(), time.thread_time()
            try:
                report = self._limiter.sync_urgent()
            except Exception:
                log.exception("cycle_failed")
                return self._interval_s
            if report is not None and report.error is not None:
                return self._interval_s * (1 - SystemRandom().random() / 2)
            rest_s = min(LONGEST_REST_S, REST_FACTOR * (time.thread_time() - cpu_s))
            return max(rest_s, SHORTEST_GAP_S - (time.monotonic() - began_s))

    def resume(self) -> None:
        """End the pause after a failure, because the store answers again."""
        self._pause_ends.set()

    def stop(self, deadline: Deadline) -> bool:
        """Start no further cycle, wait for the one that runs, and return whether it ended before the deadline."""
        self._stopping.set()
        self._pause_ends.set()
        self._limiter.wake()
        if not self._running.acquire(timeout=deadline.remaining_s):
            return False
        self._running.release()
        return True


class Starter:
    """Start of the parts of a worker. What lacks a thread or a descriptor is tried again each second.

    ``missing`` is what does not run yet: by its name what starts it, or raises.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.missing: dict[str, Callable[[], None]] = {}
        self._lock = threading.Lock()  # held while the missing parts are started
        self._again_s = -math.inf
        self._is_logged = False  # the present lack

    def run(self) -> bool:
        """Start what is missing, unless that was tried within a second. Return whether some of it could not start."""
        if self._monotonic() < self._again_s or not self._lock.acquire(blocking=False):
            return False
        error: Exception | None = None
        try:
            for name, start in tuple(self.missing.items()):
                try:
                    start()
                    del self.missing[name]
                except Exception as exc:  # noqa: BLE001  # such as one of an import
                    error = exc
            if error is not None:
                self._again_s = self._monotonic() + RETRY_S
            if error is not None and not self._is_logged:
                trace = "".join(traceback.format_exception(error))
                log.error("start_incomplete", missing=[*self.missing], error=repr(error), traceback=trace, hint=MISSING)
            elif error is None and self._is_logged:
                log.info("start_completed")
            self._is_logged = error is not None
        finally:
            self._lock.release()
        return error is not None


class SyncLoop:
    """Threads that run the sync cycles of one limiter. Start it in the process that serves requests, after any fork.

    Urgent keys are synchronised at once, all others once per interval. The first cycle comes after a random part of it,
    so that instances started together do not write together. ``on_cycle`` is called when the thread has started, with
    None, and with the report after each full cycle.
    """

    def __init__(
        self, limiter: Synchronised, *, interval_s: float, on_cycle: Callable[[CycleReport | None], None] | None = None
    ) -> None:
        self._limiter = limiter
        self._on_cycle = on_cycle
        self._interval_s = interval_s
        self._urgent = UrgentLoop(limiter, interval_s=interval_s)
        self._is_started = False  # the thread for full cycles
        self._full = threading.Lock()  # held while a full cycle runs, so that stop() can wait for it
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the threads. If it raises, for lack of a thread or descriptor, the next call starts the rest."""
        if not self._is_started:
            self._start_full()
            self._is_started = True
        self._urgent.start()  # without it, urgent keys wait for the next full cycle

    def _start_full(self) -> None:
        logging.getLogger(f"apscheduler.executors.{LOGGER_NAME}").setLevel(logging.WARNING)
        logger = logging.getLogger(f"apscheduler.scheduler.{LOGGER_NAME}")
        logger.setLevel(logging.WARNING)
        # The executor runs the job in the scheduler's thread, so there is no other one that the exit would wait for.
        scheduler = BackgroundScheduler(
            daemon=True, executors={LOGGER_NAME: DebugExecutor()}, logger=logger, timezone="UTC"
        )
        # The scheduler plans by the wall clock, which may be set. So it has one job, which has been due since 1970, and
        # which goes by the monotonic clock.
        long_ago = datetime.fromtimestamp(0, UTC)
        scheduler.add_job(self._run, next_run_time=long_ago, executor=LOGGER_NAME, misfire_grace_time=None)

        def end(_: object) -> None:
            scheduler.state = (
                STATE_STOPPED  # shutdown() waits for the thread, and hangs in an exit handler under gevent
            )

        scheduler.add_listener(end, EVENT_JOB_REMOVED)
        scheduler.start()

    def _run(self) -> None:
        """Run a cycle in each interval until ``stop``. After a long one, one that is late follows at once."""
        leave_signals_to_main_thread()
        # At once, because from Python 3.12 on an exiting process cannot start the threads of a connection.
        self.run_once(False)
        next_s = time.monotonic() + SystemRandom().random() * self._interval_s
        while not self._stopping.is_set():
            left_s = next_s - time.monotonic()
            if left_s > 0:
                time.sleep(min(left_s, LONGEST_SLEEP_S))  # waiting for a lock goes by the wall clock on older systems
            else:
                self.run_once()
                next_s += self._interval_s * max(1, (time.monotonic() - next_s) // self._interval_s)

    def run_once(self, synchronises: bool = True) -> None:
        """Run one full cycle, or only call the owner. Errors are logged and do not stop the next one."""
        with self._full:
            if self._stopping.is_set():
                return
            try:
                report = self._limiter.sync() if synchronises else None
                if report is not None and report.error is None:
                    self._urgent.resume()
                if self._on_cycle is not None:
                    self._on_cycle(report)
            except Exception:
                log.exception("cycle_failed")

    def stop(self, *, timeout_s: float = 5.0) -> bool:
        """Start no further cycle, wait for those that run, and return whether they have ended within the timeout."""
        self._stopping.set()
        deadline = Deadline(timeout_s)
        has_ended = self._urgent.stop(deadline)
        if not self._full.acquire(timeout=deadline.remaining_s):
            return False
        self._full.release()
        return has_ended
