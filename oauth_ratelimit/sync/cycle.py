"""The sync cycle of one limiter: the keys that it takes, and when each is taken again."""

import math
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import structlog

from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.key_state import Due, KeyState
from oauth_ratelimit.counters.registry import ClientRegistry
from oauth_ratelimit.errors import StoreError, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.base import CounterStore, Snapshot
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.cycle_log import CycleLog
from oauth_ratelimit.sync.flusher import MAX_BATCH, CycleReport, Flusher
from oauth_ratelimit.sync.schedule import EarlyReads, SyncSchedule

log = structlog.get_logger(__name__)

PART_SIZE = MAX_BATCH  # keys; urgent ones do not wait for more
TRY_SHARES = (1 / 2, 1 / 2, 1)  # of the time left at the end: a try that hangs leaves time for the next
LEAVING_SHARE = 1 / 2  # of the time left after the last flush; the rest is for other parts of the process


class SyncCycle:
    """Flushes and pulls the keys of one limiter.

    Args:
        store: The shared store; None counts in this process only.
        clients: The clients and keys of the limiter.
        interval_s: Seconds between two full cycles.
        clock: Returns the time in seconds since the epoch.
        server_clock: The clock of the store; None without a store.
    """

    def __init__(
        self,
        store: CounterStore | None,
        *,
        clients: ClientRegistry,
        interval_s: float,
        clock: Callable[[], float],
        server_clock: ServerClock | None,
    ) -> None:
        self.schedule = SyncSchedule(interval_s)
        self._early_reads = EarlyReads(interval_s)
        self._store = store
        self._clock = clock
        self._server_clock = server_clock
        self._flusher = (
            Flusher(
                store,
                clock=clock,
                server_clock=server_clock,
                on_erased=self._erase,
            )
            if store and server_clock
            else None
        )
        self._clients = clients
        self._lock = threading.Lock()  # guards the schedule and the flusher: one cycle at a time
        self._log = CycleLog(clock)
        self._last_s: float | None = None  # time of the last full cycle

    def run(self, *, is_reachable: bool = True, is_scheduled: bool = False) -> CycleReport:
        """Run one full cycle. Errors of the store are not raised but reported.

        Args:
            is_reachable: False if the store is known not to answer. Then it is not called, and memory is bounded.
            is_scheduled: True for the scheduler, whose cycles follow each other at once after a late one. Anybody else
                who asks between two cycles wants the totals of now: every key is read.
        """
        report = CycleReport(is_cut_short=not is_reachable)
        with self._lock:
            now_s = self._clock()
            next_urgent_s = self._early_reads.next_s
            requested = self._clients.dirty_queue.take_urgent() + self._clients.dirty_queue.take_dirty()
            is_between = self._last_s is not None and 0 <= now_s - self._last_s < self.schedule.interval_s / 2
            reads_all = is_between and not is_scheduled
            self._last_s = now_s
            requested = self.schedule.take(requested)
            due = self.schedule.due(now_s)
            if reads_all:
                due += self.schedule.take(self.schedule.all())
            with self._kept(requested + due):
                now_s = self._begin(requested or due, now_s, report)
                self._synchronise_in_parts(requested, now_s, report, requested=True)
                self._synchronise_in_parts(due, now_s, report, requested=False, reads_all=reads_all)
            self._make_room()
            self._clients.sweep(now_s)
            report.in_flight_hits = self.schedule.in_flight_hits()
            report.quarantined_count = self.schedule.quarantined_count()
            report.key_count = self._clients.key_count
            if self._early_reads.next_s < next_urgent_s:
                self._clients.dirty_queue.wake_for_urgent()
        self._log.note(report, now_s)
        return report

    def run_urgent(self) -> CycleReport | None:
        """Synchronise the urgent keys and those that others are filling up. None if there are none."""
        report = CycleReport()
        with self._lock:
            now_s = self._clock()
            if not self._synchronise_urgent(now_s, report):
                return None
        self._log.note(report, now_s)
        return report

    def _synchronise_urgent(self, now_s: float, report: CycleReport) -> bool:
        """Synchronise the urgent keys and those that others are filling up, and return whether there were any."""
        urgent = self._clients.dirty_queue.take_urgent()
        requested = set(urgent)
        due = [state for state in self._early_reads.take(now_s) if state not in requested]
        if not urgent and not due:
            return False
        with self._kept(urgent + due):
            now_s = self._begin(urgent or due, now_s, report)
            passed_s = {state: self._early_reads.gap_s(state) for state in due}
            passed_s.update((state, min(now_s - state.seen_s, self._early_reads.gap_s(state))) for state in urgent)
            for state in urgent:
                # Others have probably written meanwhile, and the one read gives both their hits and the version.
                others_write = state.peers > 1 or (state.is_filling and state.client.peers.most_count > 1)
                state.read_before_write = state.read_before_write or others_write
            remote_hits = self._flusher.remote_hits if self._flusher else {}
            remote_hits.clear()
            self._synchronise(urgent, now_s, report, requested=True)
            self._synchronise(due, now_s, report, requested=False, reads_all=True)
        if report.error is None:  # in an outage no key can be forgotten, and the next full cycle tries
            for state, seconds in passed_s.items():
                self._early_reads.plan(state, now_s, passed_s=seconds, remote_hits=remote_hits.get(state))
            self._make_room()
        return True

    @property
    def next_urgent_s(self) -> float:
        """Time at which the next key is urgent: ``-inf`` now, ``inf`` never."""
        return -math.inf if self._clients.dirty_queue.has_urgent else self._early_reads.next_s

    def wait_for_urgent(self) -> None:
        """Block until a key is urgent, or the queue is woken."""
        self._clients.dirty_queue.wait_for_urgent(self._early_reads.wait_s(self._clock()))

    def run_for(self, states: Iterable[KeyState]) -> CycleReport:
        """Synchronise these keys only."""
        report = CycleReport()
        requested = list(dict.fromkeys(states))
        with self._lock, self._kept(requested):
            now_s = self._begin(requested, self._clock(), report)
            self._synchronise(requested, now_s, report, requested=True)
        self._log.note(report, now_s)
        return report

    @contextmanager
    def _kept(self, states: Iterable[KeyState]) -> Iterator[None]:
        """Leave keys to the next cycle if this one is interrupted: Ctrl-C raises in a caller's main thread."""
        try:
            yield
        except BaseException:
            self.schedule.add(states)
            raise

    def _begin(self, states: list[KeyState], now_s: float, report: CycleReport) -> float:
        """Measure the store's clock if it is time to, and return the time, which may be corrected now."""
        if not states or self._server_clock is None or report.is_cut_short:
            return now_s
        try:
            self._server_clock.begin_cycle()
        except Exception as exc:  # noqa: BLE001  # a bug must not drop keys from the schedule
            report.error = _reported(exc)
            report.is_cut_short = True
        return self._clock()

    @property
    def clock_offset_s(self) -> float:
        """Seconds that the store's clock was ahead when last measured, 0.0 if they hardly differ."""
        return self._server_clock.offset_s if self._server_clock else 0.0

    def preload(self, count: int, now_s: float, *, scopes: Collection[str | None]) -> int:
        """Read the keys that were busy last and return how many there were, 0 if the store did not answer."""
        if self._store is None:
            return 0
        try:
            if self._server_clock is not None:
                with self._lock:
                    self._server_clock.begin_cycle()  # the first urgent key then waits for no connection or index
            snapshots = self._store.latest(count)
        except StoreError as exc:
            log.warning("preload_failed", error=str(exc))
            return 0
        states = {}
        for key, snapshot in snapshots.items():
            if key.scope in scopes:
                with self._clients.locked(key.client_id, endpoint=key.scope or TOKEN_ENDPOINT) as client:
                    state = None if client.exempt else self._clients.key_of(client, key.username, now_s)
                if state is not None:
                    states[state] = snapshot
        self._load(states, now_s)
        return len(states)

    def _erase(self, marks: Collection[str]) -> None:
        """Drop the keys of erased users everywhere, so that nothing holds their names."""
        self._clients.erase(marks)
        self.schedule.drop_forgotten()
        self._early_reads.drop_forgotten()

    def _load(self, states: Mapping[KeyState, Snapshot], now_s: float) -> None:
        """Take over documents of keys that were not read before."""
        if self._flusher is None:
            return
        with self._lock:
            for state, snapshot in states.items():
                if state.version is None and state.attempt is None:
                    state.merge(snapshot, now_s, writer=self._flusher.writer)
                    # A write needs a version that is not older than what later reads show.
                    state.read_before_write = True
            self.schedule.add(states)

    def _synchronise_in_parts(
        self, states: list[KeyState], now_s: float, report: CycleReport, *, requested: bool, reads_all: bool = False
    ) -> None:
        """Flush and pull keys part by part, and the urgent keys in between."""
        remote_hits = self._flusher.remote_hits if self._flusher else {}
        for start in range(0, len(states), PART_SIZE):
            if start and self._clients.dirty_queue.has_urgent and report.error is None and not report.is_cut_short:
                self._synchronise_urgent(self._clock(), report)
            part = [state for state in states[start : start + PART_SIZE] if state.due_cycle is Due.TAKEN]
            remote_hits.clear()
            self._synchronise(part, now_s, report, requested=requested, reads_all=reads_all)
            for state, hits in remote_hits.items():
                if hits:
                    self._early_reads.plan(state, now_s, passed_s=self.schedule.interval_s, remote_hits=hits)

    def _synchronise(
        self,
        states: list[KeyState],
        now_s: float,
        report: CycleReport,
        *,
        requested: bool,
        reads_all: bool = False,
    ) -> None:
        """Flush and pull keys.

        Args:
            states: The keys.
            now_s: The time.
            report: The report of the cycle. If it is cut short, hits are taken and not sent.
            requested: Whether the keys are dirty or urgent; else they are due.
            reads_all: Read all keys whose write does not show the total.
        """
        if self._flusher is None:
            self._keep_here(states, now_s, requested=requested)
            return
        busy: set[KeyState] | None = None
        try:
            if report.is_cut_short:
                self._take_only(states, report)
            else:
                busy = self._exchange(self._flusher, states, now_s, report, reads_all=requested or reads_all)
        except Exception as exc:  # noqa: BLE001  # a bug must not drop keys from the schedule
            report.error = _reported(exc)
            report.is_cut_short = report.is_cut_short or isinstance(exc, StoreError)
        for state in states:
            if requested:
                state.seen_s = now_s
            if busy is None:
                state.pull_gap = 0
                self.schedule.add((state,))
                continue
            is_filling_up = (requested or state in busy) and self.schedule.follows(state)
            if state.unsent or is_filling_up or (requested and self.schedule.reads_again(state)):
                state.pull_gap = 0
                self.schedule.add((state,))
            elif not (state.is_idle(now_s) and self._clients.forget(state)):
                self.schedule.reschedule(state)
            self._mark_if_urgent(state)

    def _exchange(
        self, flusher: Flusher, states: list[KeyState], now_s: float, report: CycleReport, *, reads_all: bool
    ) -> set[KeyState]:
        """Flush keys, and pull those whose write did not show the total.

        Args:
            flusher: The flusher.
            states: The keys.
            now_s: The time.
            report: The report of the cycle.
            reads_all: Pull them all; else those that were busy lately or are filling up.

        Returns:
            The busy keys: their document was written here, or others have changed it.

        Raises:
            StoreError: The store did not answer.
        """
        busy = set(flusher.flush(states, now_s, report))
        to_pull = [
            state
            for state in states
            if (state.must_read(now_s) and (reads_all or not state.is_idle(now_s)))
            or (state not in busy and (reads_all or self.schedule.needs_pull(state)))
        ]
        busy.update(flusher.pull(to_pull, now_s, report))
        return busy

    @staticmethod
    def _take_only(states: Iterable[KeyState], report: CycleReport) -> None:
        """Take the hits of keys, which bounds the memory that they need, and send nothing."""
        for state in states:
            report.dropped_hits += state.take()
            state.read_before_write = True  # the user may be erased before the store answers again

    def _keep_here(self, states: Iterable[KeyState], now_s: float, *, requested: bool) -> None:
        """Forget idle keys. Without a store nothing is sent: the buckets alone hold the hits."""
        for state in states:
            state.take()
            state.unsent = None
            if requested:
                state.seen_s = now_s
            if not (state.is_idle(now_s) and self._clients.forget(state)):
                self.schedule.reschedule(state)

    def _mark_if_urgent(self, state: KeyState) -> None:
        """Mark a key as urgent that has already reached the alert which this cycle set."""
        if state.has_reached_alert and not state.client.peers.reserves:
            self._clients.dirty_queue.mark_urgent(state)

    def _make_room(self) -> None:
        """Evict keys if there are nearly too many, starting with those that are far below their limits.

        An evicted key that comes again is less accurate at first. No hit is lost, because settled keys alone go.
        """
        excess = self._clients.excess_count
        if not excess:
            return
        for state in self.schedule.dispensable():
            if self._clients.forget(state):
                excess -= 1
                if not excess:
                    break
        self.schedule.drop_forgotten()

    def end(self, deadline: Deadline) -> None:
        """Flush for the last time, remove this instance's marks, and release the store. No cycle may follow.

        Logs ``hits_undelivered`` and ``hits_unconfirmed`` if hits are left.

        Args:
            deadline: When to give up.
        """
        store, flusher = self._store, self._flusher
        if store is None or flusher is None:
            return
        is_idle = self._lock.acquire(timeout=deadline.remaining_s)  # a cycle that waits for the store may hold it
        if is_idle:
            try:
                self._flush_last(store, flusher, deadline)
            finally:
                self._lock.release()
        self._log.note_unsent(self._clients, is_idle=is_idle)
        with store.time_limit(deadline.remaining_s):
            store.close()

    def _flush_last(self, store: CounterStore, flusher: Flusher, deadline: Deadline) -> None:
        """Flush, with further tries if the store fails, and read only what that needs. The lock is held."""
        queue = self._clients.dirty_queue
        states = list(dict.fromkeys(queue.take_urgent() + queue.take_dirty() + self.schedule.listed()))
        for share in TRY_SHARES:
            if deadline.is_over:
                break
            report = CycleReport()
            with store.time_limit(deadline.part(share).remaining_s):
                try:
                    if states and self._server_clock and not self._server_clock.is_measured:
                        self._server_clock.begin_cycle()
                    for start in range(0, len(states), PART_SIZE):
                        flusher.flush(states[start : start + PART_SIZE], self._clock(), report)
                except Exception as exc:  # noqa: BLE001  # a bug must not keep other parts from ending
                    report.error = _reported(exc)
            self._log.note(report, self._clock())
            if report.error is None and not any(state.unsent for state in states):
                break
        if not deadline.is_over:
            part = deadline.part(LEAVING_SHARE)
            with store.time_limit(part.remaining_s), suppress(StoreError):  # the next writers remove the marks
                flusher.leave(states + self.schedule.all(), part)


def _reported(exc: Exception) -> StoreError:
    """Return the error to report for an exception. One that no store raises is a bug, and is logged."""
    if isinstance(exc, StoreError):
        return exc
    log.error("cycle_failed", error=repr(exc), traceback=traceback.format_exc())
    return StoreUnavailable(f"the cycle failed: {type(exc).__name__}")
