"""The sync cycle of one limiter: the rows that it takes, and when each is taken again.

A row with unsent hits is flushed. A successful compare-and-set needs no read: it proves that no other instance has
written since this one last read or wrote the document; or it went by the mark, far from a limit, where hits of others
may wait. A row is forgotten when its last frame has left every window.
"""

import sqlite3
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from math import inf

from oauth_ratelimit.counters.rules import RuleBook, row_name
from oauth_ratelimit.counters.table import HostTable
from oauth_ratelimit.counters.term import TermOver
from oauth_ratelimit.errors import StoreError, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.sync import reading
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.cycle_log import CycleLog
from oauth_ratelimit.sync.flusher import CycleReport, Flusher
from oauth_ratelimit.sync.pruning import NOTHING_PRUNABLE
from oauth_ratelimit.sync.replica_table import ReplicaTable
from oauth_ratelimit.sync.schedule import Schedule

log = get_logger(__name__)

MAX_BATCH = 250  # documents per round trip; with more, the garbage collector would take its objects for old ones
FAILED_CYCLES = 3  # after which another process may synchronise: this one may fail for reasons of its own
TRY_SHARES = (1 / 2, 1 / 2, 1)  # of the time left at the end: a try that hangs leaves time for the next
MOST_LOOKED_AT = 10  # parts of the rows, when a cycle makes room; the next one goes on
LOCKED_TRIES = 3  # of the last process for the file's lock, of a second each: another one may be stopped with it
LEAVING_SHARE = 1 / 2  # of the time left after the last flush; the rest is for other parts of the process


class SyncCycle:
    """Flush and pull of the rows of one limiter; without a store it only forgets those that are over.

    ``rules`` returns the limits that apply now. ``lock`` is held during a cycle, those of other rows that use the same
    store included. Of the processes that count in one file, one at a time works.
    """

    def __init__(
        self,
        store: CounterStore | None,
        table: HostTable,
        rules: Callable[[], RuleBook],
        *,
        interval_s: float,
        max_interval_s: float,
        clock: Callable[[], float],
        server_clock: ServerClock | None,
        lock: threading.Lock,
    ) -> None:
        self._table = table
        self.host = table.host
        self._rows = ReplicaTable(
            table,
            rules,
            store.progress if store else lambda: None,
            lambda: server_clock.measurement if server_clock else None,
        )
        self._interval_s = interval_s
        self._max_interval_s = max_interval_s
        self._clock = clock
        self._monotonic = table.host.monotonic
        self._schedule = Schedule(
            interval_s=interval_s, max_interval_s=max_interval_s, clock=clock, monotonic=self._monotonic
        )
        self._flusher: Flusher | None = None
        if store is not None and server_clock is not None:
            self._flusher = Flusher(
                store, self._rows, clock=clock, server_clock=server_clock, schedule=self._schedule.put
            )
        self._lock = lock
        self._log = CycleLog(self._monotonic, lambda: self.host.term.synced_s)
        self._last_s: float | None = None  # time of the last full cycle, by the clock that is never set
        self._failure: StoreError | None = None  # of the last cycle
        self._failed_count = 0  # scheduled cycles in a row
        self._has_resigned = False  # because they have failed; until the next cycle

    def run(self, *, error: StoreError | None = None, is_scheduled: bool = False) -> CycleReport:
        """Run one full cycle. Errors of the store and of the host's file are not raised but reported.

        With an ``error`` the store is not called, and memory is bounded all the same. Without ``is_scheduled`` all hits
        are sent, and every key is read if the cycle comes soon after another one; the scheduler's do after a late one.
        """
        report = CycleReport(error=error, is_cut_short=error is not None)
        with self._lock, self._reporting(report):
            now_s = self._monotonic()
            reads_all = not is_scheduled and self._last_s is not None and now_s - self._last_s < self._interval_s / 2
            self._last_s = now_s
            until_s = now_s + self._interval_s / 2  # of two cycles the one that is nearer
            report.lock_timeout_count, self.host.lock_timeout_count = self.host.lock_timeout_count, 0
            if not self._lead():
                report.is_elsewhere = True
                if self._has_resigned:
                    report.error, self._has_resigned = self._failure, False
                    if self.host.may_lead():  # nobody has taken over
                        report.is_elsewhere = False
                        self._count_left(report)
                with self.host.locked():
                    report.key_count = self._table.key_count()
                    self._table.count_waiting(until_s, until_s + self._max_interval_s)
                if report.error is None:
                    self._failure = None
                    self._log.note_elsewhere()
                return report
            self._schedule.begin_full()
            with self.host.locked():
                urgent = self._table.urgent_names(now_s)
                names = self._table.due_names(
                    until_s, hits_until_s=until_s if is_scheduled else until_s + self._max_interval_s
                )
            if reads_all:
                names = list(dict.fromkeys(chain.from_iterable(self._table.all_names())))
            self._synchronise_taken(urgent, names, report, reads_all=reads_all)
            self._make_room()
            self._count_left(report)
            with self.host.locked():
                report.key_count = self._table.key_count()
                report.waiting_count = self._table.count_waiting(until_s, until_s + self._max_interval_s)
            self._log.note(report)
            if report.error is None:
                self.host.term.synced_s = self._monotonic()
            self._failed_count = self._failed_count + 1 if is_scheduled and report.error is not None else 0
            if self._failed_count == FAILED_CYCLES and self.host.is_file:
                self.host.resign()
                self._failed_count, self._has_resigned = 0, True
        return report

    def _count_left(self, report: CycleReport) -> None:
        report.in_flight_hits = sum(self._schedule.left.values())
        report.quarantined_count = len(self._schedule.quarantined)

    @contextmanager
    def _reporting(self, report: CycleReport) -> Iterator[None]:
        """Report what ends a cycle: another process has taken over, or the rows cannot be read or written."""
        try:
            yield
        except TermOver:
            report.is_elsewhere = True
        except Exception as exc:  # noqa: BLE001  # neither a bug nor a damaged file ends what runs after a cycle
            report.error = self._failure = _reported(exc)
            report.is_cut_short = True
            self._log.note(report)
            if isinstance(exc, sqlite3.Error):
                self.host.note_error(exc)
        if report.is_elsewhere:
            synced_s = self.host.term.synced_s
            report.synced_ago_s = None if synced_s is None else self._monotonic() - synced_s

    def _lead(self, *, is_alone: bool = False, is_ending: bool = False) -> bool:
        """Synchronise the rows from now on unless another process does, and return whether this one does."""
        if self._has_resigned and not is_ending:
            return False
        former, is_led = self.host.term.held, self.host.lead(is_alone=is_alone, is_ending=is_ending)
        if is_led and self.host.term.held == former:
            return True
        self._schedule.forget_all()
        if self._flusher and self.host.clock is not None:
            self._flusher.server_clock.adopt(self.host.clock)
        if self._flusher and is_led and self.host.term.progress is not None:
            self._flusher.store.follow(self.host.term.progress)
        return is_led

    def run_urgent(self) -> CycleReport | None:
        """Synchronise the urgent rows; after a failure the next full cycle does. None if there are none."""
        report = CycleReport()
        with self._lock, self._reporting(report):
            if not self.host.term.is_held and not self._lead():
                return None
            if self._failure is not None:
                return CycleReport(error=self._failure, is_cut_short=True)
            with self.host.locked():
                self.host.clear_wake()  # not in full cycles: their thread would forget what wakes the urgent one
                urgent = self._table.urgent_names(self._monotonic())
            if not urgent:
                return None
            self._synchronise_taken(urgent, [], report)
            self._log.note(report)
        return report

    def _synchronise_taken(
        self, urgent: Sequence[str], names: Sequence[str], report: CycleReport, *, reads_all: bool = False
    ) -> None:
        """Synchronise the rows that a cycle has taken, each of them once."""
        self._schedule.begin()
        if urgent or names:
            self._measure_clock(report)
        self._synchronise(urgent, report, is_urgent=True)
        done = set(urgent)
        self._synchronise([name for name in names if name not in done], report, reads_all=reads_all)
        self._failure = report.error

    def _measure_clock(self, report: CycleReport) -> None:
        if self._flusher is None or report.is_cut_short:
            return
        try:
            self._flusher.server_clock.begin_cycle()
        except Exception as exc:  # noqa: BLE001  # a bug must not keep rows from being scheduled
            report.error = _reported(exc)
            report.is_cut_short = True

    def _synchronise(
        self, names: Sequence[str], report: CycleReport, *, is_urgent: bool = False, reads_all: bool = False
    ) -> None:
        """Flush and pull rows part by part, and the urgent ones in between."""
        overtaken = set[str]()
        for start in range(0, len(names), MAX_BATCH):
            if start and not is_urgent and not report.is_cut_short:
                with self.host.locked():
                    urgent = self._table.urgent_names(self._monotonic())
                self._synchronise(urgent, report, is_urgent=True)
                overtaken.update(urgent)
            part = [name for name in names[start : start + MAX_BATCH] if name not in overtaken]
            try:
                rest = self._exchange(part, report, is_urgent=is_urgent, reads_all=reads_all)
            except (TermOver, sqlite3.Error):
                raise
            except Exception as exc:  # noqa: BLE001  # a bug must not keep rows from being scheduled
                report.error = _reported(exc)
                report.is_cut_short = report.is_cut_short or isinstance(exc, StoreError)
                self._leave(part, report, is_failed=True)
            else:
                self._leave(rest, report, is_failed=report.is_cut_short)
            self._rows.release()

    def _exchange(
        self, names: Sequence[str], report: CycleReport, *, is_urgent: bool, reads_all: bool
    ) -> Sequence[str]:
        """Flush rows, pull those whose write did not show the total, and return those that needed neither."""
        if self._flusher is None or report.is_cut_short:
            return names
        replicas = self._rows.take(names)
        current = self._flusher.flush(replicas, report, is_urgent=is_urgent)
        to_pull = [
            replica.name
            for replica in replicas
            if is_urgent or reads_all or not replica.is_idle(self._clock())
            if replica.name not in current or self._schedule.is_overdue(replica)
        ]
        self._flusher.pull(to_pull, report)
        done = current.union(to_pull)
        return [name for name in names if name not in done]

    def _leave(self, names: Sequence[str], report: CycleReport, *, is_failed: bool) -> None:
        """Schedule rows that were neither written nor read."""
        for step in self._rows.steps(names):
            with self._rows.changing(step) as replicas:
                for replica in replicas:
                    report.dropped_hits += replica.note_requests(self._clock())
                    self._schedule.put(replica, is_failed=is_failed)

    def measure_clock(self) -> StoreError | None:
        """Measure the store's clock if it is time to, and return the error if there was no answer.

        All processes of a host go by the measurement of the one that synchronises.
        """
        report = CycleReport()
        with self._lock:
            if self.host.term.is_held or self.host.clock is None:
                self._measure_clock(report)
        return report.error

    def preload(self, count: int, now_s: float, *, scopes: Collection[str | None]) -> int:
        """Read the keys that were busy last and return how many there were.

        That is 0 if the store did not answer, or if another process synchronises the rows.
        """
        flusher = self._flusher
        if flusher is None:
            return 0
        try:
            with self._lock:
                if not self._lead():
                    return 0
                flusher.server_clock.begin_cycle()  # the first urgent key then waits for no connection
            snapshots = flusher.store.latest(count)
        except StoreError as exc:
            log.warning("preload_failed", error=str(exc))
            return 0
        loaded = {row_name(key): snapshot for key, snapshot in snapshots.items() if key.scope in scopes}
        loaded = {name: snapshot for name, snapshot in loaded.items() if self._rows.is_limited(name)}
        with self._lock, self._reporting(CycleReport()):
            for step in self._rows.steps(list(loaded)):
                with self._rows.changing(step, added_at_s=now_s) as replicas:
                    for replica in replicas:
                        if replica.document.version is None and replica.attempt is None:
                            replica.merge(loaded[replica.name], now_s, writer=flusher.writer, prunable=NOTHING_PRUNABLE)
                            # A write needs a version that is not older than what later reads show.
                            replica.document.is_stale = True
        return len(loaded)

    def _make_room(self) -> None:
        """Forget rows if there are nearly too many: first those far below their limits, last those that deny.

        Of each kind those go first that were quiet longest.
        A key that comes again is less accurate at first. No hit is lost: rows with hits to send stay.
        """
        with self.host.locked():
            excess = self._table.excess_count()
        busy_s = self._monotonic() + 2 * self._interval_s  # rows that are due before have had requests lately
        for full_ratio in (reading.FILLING_RATIO, 1.0, inf) if excess else ():
            quiet = self._table.all_names(after_s=busy_s, only_clean=True)
            parts = islice(chain(quiet, self._table.all_names(until_s=busy_s, only_clean=True)), MOST_LOOKED_AT)
            for step in chain.from_iterable(map(self._rows.steps, parts)):
                if excess <= 0:
                    return
                with self._rows.changing(step) as replicas:
                    for replica in replicas:
                        if excess > 0 and replica.is_clean and replica.used_ratio(self._clock()) < full_ratio:
                            replica.is_forgotten = True
                            self._schedule.forget(replica.name)
                            excess -= 1

    def finish(self, *, error: StoreError | None) -> bool:
        """Synchronise rows that nothing counts in any more, and return whether all hits are sent or cannot be read."""
        was_file, is_sent = self.host.is_file, False
        report = self.run(error=error)
        with self._reporting(report):
            is_sent = not report.is_elsewhere and report.error is None and not self._rows.unsent_names()
            if is_sent:
                self.host.resign()
        is_over = is_sent or self.host.is_file is not was_file
        if is_over:
            self.host.close()
        return is_over

    def end(self, deadline: Deadline) -> None:
        """Leave the rows to another process, if there is one. No cycle may follow. ``host`` stays open.

        Who synchronises flushes for the last time. The last process also removes this instance's marks, and logs
        ``hits_undelivered`` and ``hits_unconfirmed`` if hits are left.
        """
        flusher = self._flusher
        if flusher is None:
            self.host.resign()
            return
        is_last, is_idle = self.host.is_last(), False
        with self._reporting(CycleReport()):
            try:
                is_idle = self._lock.acquire(timeout=deadline.remaining_s)  # a cycle that waits for the store has it
                is_able = is_idle and (is_last or self._failure is None)
                tries = range(LOCKED_TRIES if is_last else 1) if is_able else ()
                if any(self._lead(is_alone=is_last, is_ending=True) for _ in tries):
                    self._flush_last(flusher, deadline, is_last=is_last)
                self.host.resign()
            finally:
                if is_idle:
                    self._lock.release()
            if is_last:
                self._log.note_unsent(self._rows.unsent(), is_idle=is_idle)
                host = self.host.given_up()  # a full file, for example: nothing can be changed in it
                if host is not None:
                    with closing(host):
                        self._log.note_unsent(self._rows.of(host).unsent(), is_idle=True)

    def _flush_last(self, flusher: Flusher, deadline: Deadline, *, is_last: bool) -> None:
        """Flush, and read only what that needs. The lock is held.

        The last process tries again if the store fails, and removes the marks. Others leave that to it.
        """
        for share in TRY_SHARES if is_last else TRY_SHARES[:1]:
            names = self._rows.unsent_names()
            if deadline.is_over or not names:
                break
            report = CycleReport()
            with flusher.store.time_limit(deadline.part(share).remaining_s):
                try:
                    if not flusher.server_clock.is_measured:
                        flusher.server_clock.begin_cycle()
                    for start in range(0, len(names), MAX_BATCH):
                        flusher.flush(self._rows.load(names[start : start + MAX_BATCH]), report)
                except (TermOver, sqlite3.Error):
                    raise
                except Exception as exc:  # noqa: BLE001  # a bug must not keep other parts from ending
                    report.error = _reported(exc)
            self._log.note(report)
        if is_last and not deadline.is_over:
            part = deadline.part(LEAVING_SHARE)
            with flusher.store.time_limit(part.remaining_s), suppress(StoreError):  # the next writers remove the marks
                flusher.remove_marks(self._table.all_names(), part)


def _reported(exc: Exception) -> StoreError:
    """Return the error to report for an exception. One that no store raises is a bug, and is logged."""
    if isinstance(exc, StoreError):
        return exc
    if isinstance(exc, sqlite3.Error):
        return StoreUnavailable(f"the file of the host: {type(exc).__name__}: {exc}")
    log.error("cycle_failed", error=repr(exc), traceback=traceback.format_exc())
    return StoreUnavailable(f"the cycle failed: {type(exc).__name__}")
