"""The background work of one process: synchronisation, overrides, heartbeats, statistics and records of denials."""

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from random import SystemRandom
from typing import Any

from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.background.live_settings import FRESH_S, MAX_AWAITED_S, LiveSettings, OverrideCache
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, active
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.counters.host_place import HostPlace
from oauth_ratelimit.errors import StoreError, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents, DenialRecorder
from oauth_ratelimit.observe.metrics import open_metrics
from oauth_ratelimit.observe.observer import Callbacks, Observer
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline, uptime_s
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.process.signals import background_thread
from oauth_ratelimit.store.factory import Reconnector, Stores, open_stores
from oauth_ratelimit.store.mongo.overrides import pack_overrides, unpack_overrides
from oauth_ratelimit.store.mongo.rollups import RollupStore
from oauth_ratelimit.store.mongo.statistics import Step
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.loop import Starter, SyncLoop, UrgentLoop
from oauth_ratelimit.token_cache import TokenCache

log = get_logger(__name__)

DERIVING_S = 0.3  # of one run, because the next sync cycle waits for it
REFUSED_INTERVAL_S = 600.0  # between log entries about rollups

WATCH_S = 0.5  # at most, between two looks at the file; a change applies when two find the same
TASKS_S = 1.0  # after which no further task begins in a cycle
REPEAT_S = 60.0  # between two log entries about the same task
WAITING_SHARE = 1 / 2  # of the time to end, for the tick that runs
TASK_SHARE = 1 / 2  # of the time that is left, for each task that has something to write


class RollupTask:
    """Task that derives the rollups that no other instance has derived.

    Each process looks once a minute, at a second of its own, so the others mostly find nothing to do. Two that derive a
    step at once write the same.
    """

    def __init__(
        self, store: RollupStore, *, settings: Callable[[], StatisticsSettings], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._second = SystemRandom().uniform(0, MINUTE_S)
        self._next_s = 0.0
        self._work: Iterator[Step] | None = None
        self._log = ThrottledLog(log, REFUSED_INTERVAL_S)

    def run(self) -> None:
        """Derive steps for some tenths of a second."""
        now_s, keep_s = self._clock(), self._settings().keep_s
        if not keep_s:
            return
        end_s = time.monotonic() + DERIVING_S
        try:
            if self._work is None and not self._next_s - MINUTE_S <= now_s < self._next_s:
                self._next_s = (now_s - self._second) // MINUTE_S * MINUTE_S + MINUTE_S + self._second
                self._work = self._store.derive_due(now_s, keep_s=keep_s)
            while self._work is not None and time.monotonic() < end_s:
                if next(self._work, None) is None:
                    self._work = None
        except StoreError as exc:
            self._work = None  # the next look finds the rest again
            if not isinstance(exc, StoreUnreachable):
                self._log.warning("rollups_refused", error=str(exc))

    def close(self, deadline: Deadline) -> None:
        """Leave the rest to other instances."""


class Worker:
    """The limiter and the background work of one process. A forked child needs a worker of its own.

    One thread applies changes of the configuration file and ends of overrides, one ``mode: off`` before the rest of the
    file is read. They wait neither for MongoDB nor for a lock that is held meanwhile, so these take effect at once,
    whatever MongoDB does. All times are the limiter's. Nobody is denied before overrides are known, for 15 seconds at
    most: one may switch limits off. Only the guard denies. A worker that starts beside others of its host goes by the
    overrides that these have read.

    ``is_outdated`` is True if another worker has to take over, because this one uses another store than the settings
    name. Until then it admits as before. ``missing`` is what does not run yet, see ``Starter``. ``place`` is the file
    in which it counts with others, as of ``Limiter``. Once ``is_needed`` returns False the worker stops by itself.
    """

    is_outdated = _is_ending = _is_closed = _has_preloaded = False
    _is_watched = False  # whether a thread reads the file when it changes
    _turn = 0  # number of the next task
    _failure_loop: UrgentLoop | None = None  # once the guard is on
    _shared_overrides: tuple[Override, ...] | None = None
    _share_again_s = 0.0  # by the monotonic clock
    _is_held = False  # whether limits deny nobody because overrides are not known yet

    def __init__(
        self,
        live: LiveSettings,
        *,
        callbacks: Callbacks,
        clock: Callable[[], float],
        trace_of: Callable[[], Trace] = Trace,
        is_needed: Callable[[], bool] = lambda: True,
        place: HostPlace | None = None,
    ) -> None:
        self._settings = settings = live.use()  # of limiter and guard
        self.pid = os.getpid()
        self._live = live
        self._is_needed = is_needed
        self._log = ThrottledLog(log, REPEAT_S)
        self.stores = stores = open_stores(settings.store)
        denials = stores and self._denial_recorder(stores)
        events = DenialEvents(settings.events.per_minute, trace_of=trace_of, recorder=denials)
        follows_store_clock = clock is time.time  # an injected clock is right by definition
        self.limiter = Limiter(
            settings,
            stores and stores.counters,
            clock=clock,
            denial_events=events,
            follows_store_clock=follows_store_clock,
            place=place,
        )
        self._reconnector = stores and Reconnector(stores, settings.store)
        metrics = open_metrics()
        of_statistics: Any = {"settings": lambda: live.current.statistics, "clock": self.limiter.now_s}
        statistics = stores and StatisticsRecorder(stores.statistics, **of_statistics)
        rollups = stores and RollupTask(stores.rollups, **of_statistics)
        self.guard = Guard(
            settings,
            stores and stores.failures,
            clock=self.limiter.now_s,
            events=events,
            metrics=metrics,
            statistics=statistics,
            place=self.limiter.place,
        )
        self._override_cache = OverrideCache(stores and stores.overrides)
        self.tokens = TokenCache(
            lambda: live.current.reuse,
            may_reuse=self._may_reuse,
            notices=stores and stores.revocations,
            clock=uptime_s if follows_store_clock else clock,
        )
        heartbeats = stores and stores.heartbeats
        self.health_monitor = HealthMonitor(
            self.limiter, heartbeats, metrics=metrics, file=live.file, reconnector=self._reconnector
        )
        self.observer = Observer(callbacks, metrics=metrics, statistics=statistics, clock=self.limiter.now_s)
        self._recorders = [each for each in (statistics, denials, rollups) if each is not None]
        self._loop = SyncLoop(self.health_monitor, interval_s=settings.sync.interval_s, on_cycle=self.after_cycle)
        self._starter = Starter()
        self.missing = self._starter.missing
        self._poll_lock = threading.Lock()  # held while the file is read
        self._look_lock = threading.Lock()  # held during a look at it, or an earlier one could undo a later one
        self._settings_lock = threading.Lock()  # guards ``live``; never held while MongoDB is asked
        self._preload_lock = threading.Lock()  # guards the flag; held during a read, so that it happens once

    def _denial_recorder(self, stores: Stores) -> DenialRecorder:
        return DenialRecorder(
            stores.denials,
            instance=lambda: self.health_monitor.instance,
            keep_s=lambda: self._live.current.events.keep_denials_s,
            clock=lambda: self.limiter.now_s(),
        )

    def start(self) -> None:
        """Start the threads, of which some may be missing for now: it decides and counts without them."""
        self.missing["look for mode: off"] = partial(self._start_watch, self.look_for_off)
        self.missing["watch of the configuration file"] = partial(self._start_watch, self.look_at_file)
        self.missing["synchronisation"] = self._loop.start
        with self._settings_lock:
            self._add_failure_loop()
        self._attempt(self._adopt_overrides)
        self._attempt(self._apply_settings)
        self.start_missing()

    def start_missing(self) -> None:
        """Start what does not run yet, if a try is due. Requests call this, and the threads that run."""
        if not self._is_ending and self._starter.run():
            self.look_for_off()  # maybe nobody but requests can

    def _adopt_overrides(self) -> None:
        known = self.limiter.host.overrides()
        if known is not None:
            packed, age_s = known
            self._override_cache.adopt(unpack_overrides(packed), age_s=age_s)

    def _share_overrides(self) -> None:
        """Let workers of the host that start later know the overrides."""
        overrides, now_s = self._override_cache.overrides, time.monotonic()
        is_due = overrides is not self._shared_overrides or now_s >= self._share_again_s
        if is_due and self.limiter.host.note_overrides(pack_overrides(overrides)):
            self._shared_overrides, self._share_again_s = overrides, now_s + FRESH_S / 4

    def _start_watch(self, look: Callable[[], None]) -> None:
        background_thread(partial(self._watch, look), "file" if look == self.look_at_file else "mode").start()
        self._is_watched |= look == self.look_at_file

    def _add_failure_loop(self) -> None:
        if self._failure_loop is None and self.guard.limiter is not None and self.stores is not None:
            self._failure_loop = UrgentLoop(self.guard.limiter, interval_s=self._settings.sync.interval_s)
            self.missing["synchronisation of failures"] = self._failure_loop.start

    def preload(self) -> None:
        """Read overrides and the most recently used keys, once. Blocks on MongoDB, at most for ``store.timeout``."""
        with self._preload_lock, self._time_limit():
            if self._override_cache.is_awaited:
                self._refresh()
                self._attempt(self._apply_settings)
            count = 0 if self._has_preloaded else self._live.current.sync.preload_count
            if count:
                self.limiter.preload(count)
                self.guard.preload(count)
            self._has_preloaded = True

    def stop(self, deadline: Deadline | None = None) -> None:
        """Flush for the last time and release everything, by default within seven seconds."""
        deadline = deadline or Deadline()
        with self._settings_lock:
            self._is_ending = True
        self._loop.stop(timeout_s=deadline.part(WAITING_SHARE).remaining_s)
        if self._failure_loop is not None:
            self._failure_loop.stop(deadline.part(WAITING_SHARE))
        self.limiter.close(deadline)
        self.guard.close(deadline)
        self._count_noted()
        for task in (self.tokens, *self._recorders):
            part = deadline.part(TASK_SHARE)
            with self._time_limit(part):
                self._attempt(partial(task.close, part))
        with self._time_limit(deadline):
            self.health_monitor.stop()
            self._is_closed = True
            if self.stores is not None:
                self.stores.close()
        if self._reconnector is not None:
            self._reconnector.stop(deadline)

    def _time_limit(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Let operations end before a deadline, by default after ``store.timeout`` together."""
        deadline = deadline or Deadline(self._settings.store.timeout_s)
        return self.stores.time_limit(deadline.remaining_s) if self.stores else nullcontext()

    def _may_reuse(self, client_id: str) -> bool:
        """Return whether tokens of a client may be kept somewhere. Without limits here, others may have theirs."""
        policies = self._settings.policies
        return policies.mode is Mode.OFF or policies.may_reuse(client_id)

    def _refresh(self) -> StoreError | None:
        """Read changed overrides, and the clock that their ends and heartbeats go by.

        Returns the error if MongoDB did not answer.
        """
        # The first operation that fails is the last. A slow MongoDB never answers all of them within the time of one.
        try:
            with self._time_limit(Deadline(MAX_AWAITED_S)):
                is_complete = self._override_cache.refresh()
                if is_complete:
                    self._attempt(self._share_overrides)
                return self.limiter.cycle.measure_clock()
        except StoreUnavailable as exc:
            return exc
        except Exception as exc:  # noqa: BLE001  # a bug must not keep other work from being done
            self._log_failure(exc)
        return None

    def after_cycle(self, report: CycleReport | None) -> None:
        """Apply changes of configuration and overrides, then run the tasks.

        The scheduler calls this with the report of the sync cycle before; None if none has run yet. Overrides are read
        unless no server was found: counters that cannot be written must not keep an operator's change from instances.
        """
        error = None if report is None else report.error
        if not isinstance(error, StoreUnreachable):
            error = self._refresh()
        tasks = self._run_tasks if error is None else partial(self.guard.run, error=error)
        if self.missing:
            self.start_missing()
        look = self._apply_settings if self._is_watched else self.look_at_file
        for step in (look, self._count_noted, self.tokens.purge, tasks):
            if not self._is_ending:  # else it would only take the time of the last flush
                self._attempt(step)
        if self._is_closed and self.stores is not None:  # ``stop`` has not waited for this thread, which connects anew
            self.stores.close()

    def _run_tasks(self) -> None:
        """Run the tasks that ask MongoDB, those for revoked tokens first.

        If one is slow, so is MongoDB, or it is gone: at least one of the others runs, and the rest after later cycles.
        """
        end_s = time.monotonic() + TASKS_S
        with self._time_limit():
            self._attempt(self.tokens.run)
        tasks = [self.preload, self.guard.run, self._beat, *(recorder.run for recorder in self._recorders)]
        with self._time_limit():
            for _ in tasks:
                self._turn += 1
                self._attempt(tasks[(self._turn - 1) % len(tasks)])
                if self._is_ending or time.monotonic() >= end_s:
                    break

    def _beat(self) -> None:
        self.health_monitor.beat(override_count=len(self._live.overrides), base=self._live.base)

    def _watch(self, look: Callable[[], None]) -> None:
        while not self._is_ending:
            if look == self.look_at_file and not self._is_needed():
                self._attempt(self.stop)
                return
            look()
            if self.missing:
                self.start_missing()
            time.sleep(min(WATCH_S, self._settings.sync.interval_s))

    def look_at_file(self) -> None:
        """Apply the configuration file if it has changed, and end overrides whose time is over."""
        with self._poll_lock:
            self._attempt(self._live.poll)
        self.look_for_off()

    def look_for_off(self) -> None:
        """Apply ``mode: off`` in the file although the rest of it is still to be read."""
        with self._look_lock:
            self._attempt(self._live.look_for_off)
        self._attempt(self._apply_settings)

    def _apply_settings(self) -> None:
        with self._settings_lock:
            if self._is_ending:
                return
            is_outdated = self._live.update(active(self._override_cache.overrides, self.limiter.now_s()))
            if is_outdated:
                self.is_outdated = self._is_ending = True
            settings, is_held = self._live.current, self._override_cache.is_late
            if self._reconnector is not None and not is_outdated:
                self._reconnector.follow(settings.store)
            if (settings is not self._settings or is_held is not self._is_held) and not is_outdated:
                ceiling = Mode.DRY_RUN if is_held else settings.policies.ceiling
                applied = replace(settings, policies=settings.policies._replace(ceiling=ceiling))
                self.limiter.reconfigure(applied)
                self.guard.reconfigure(settings)  # else a guesser goes free while a new worker waits for MongoDB
                self._add_failure_loop()
                if settings is not self._settings:
                    self.tokens.note_change()  # before the cache goes by the new limits
                self._settings, self._is_held = settings, is_held  # last, so that after a failure it is tried again
        self._live.log_changes()

    def _count_noted(self) -> None:
        self._attempt(self.observer.count_noted, "observer_failed")  # as if a request or a scrape counted them

    def _attempt(self, work: Callable[[], object], event: str = "task_failed") -> None:
        """Run one task and log its failure, so that the other tasks still run."""
        try:
            work()
        except StoreError as exc:
            self._log.error("task_failed", key=str(exc), error=str(exc))
        except Exception as exc:  # noqa: BLE001  # a bug or an unexpected document
            self._log_failure(exc, event)

    def _log_failure(self, error: Exception, event: str = "task_failed") -> None:
        self._log.error(event, error=repr(error), traceback=traceback.format_exc())
