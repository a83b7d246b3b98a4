"""The sync cycle of one limiter: the keys that it takes, and when each is taken again.

A dirty key is flushed, or read if there is nothing to flush. A successful compare-and-set needs no read: it proves that
no other instance has written since this one last read or wrote the document; or it went by the mark, far from a limit,
where hits of others may wait. When a key without requests is read, ``sync/reading.py`` says. It is forgotten when its
last frame has left every window.
"""

import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from math import inf

from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.bucket import Bucket
from oauth_ratelimit.counters.due_queue import Due, DueQueue
from oauth_ratelimit.counters.key import KeyState
from oauth_ratelimit.counters.pruning import NOTHING_PRUNABLE
from oauth_ratelimit.counters.registry import ClientRegistry
from oauth_ratelimit.errors import StoreError, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.yielding import yield_between
from oauth_ratelimit.sync import protocol, reading
from oauth_ratelimit.sync.cycle_log import CycleLog
from oauth_ratelimit.sync.flusher import MAX_BATCH, CycleReport, Flusher

log = get_logger(__name__)

TRY_SHARES = (1 / 2, 1 / 2, 1)  # of the time left at the end: a try that hangs leaves time for the next
LEAVING_SHARE = 1 / 2  # of the time left after the last flush; the rest is for other parts of the process


class SyncCycle:
    """Flushes and pulls the keys of one limiter; without a flusher it counts in this process only."""

    def __init__(
        self, flusher: Flusher | None, *, clients: ClientRegistry, queue: DueQueue, clock: Callable[[], float]
    ) -> None:
        self._flusher = flusher
        self._clients = clients
        self._queue = queue
        self._interval_s = queue.interval_s
        self._clock = clock
        self._lock = threading.Lock()  # guards the due times, the flusher and the log: one cycle at a time
        self._log = CycleLog(clock if flusher is None else flusher.server_clock.monotonic)
        self._last_s: float | None = None  # time of the last full cycle
        self._failure: StoreError | None = None  # of the last cycle

    def run(self, *, error: StoreError | None = None, is_scheduled: bool = False) -> CycleReport:
        """Run one full cycle. Errors of the store are not raised but reported.

        With an ``error`` the store is not called, and memory is bounded all the same. ``is_scheduled`` is for the
        scheduler, whose cycles follow each other at once after a late one. Anybody else wants all hits sent, and who
        asks between two cycles the totals of now: every key is read.
        """
        report = CycleReport(error=error, is_cut_short=error is not None)
        with self._lock, self._restart_on_interrupt():
            now_s = self._clock()
            is_between = self._last_s is not None and 0 <= now_s - self._last_s < self._interval_s / 2
            reads_all = is_between and not is_scheduled
            self._last_s = now_s
            urgent = self._queue.take_urgent(now_s)
            states = self._queue.take(now_s, waits=is_scheduled) + (self._queue.take_all() if reads_all else [])
            now_s = self._synchronise_taken(urgent, states, now_s, report, reads_all=reads_all)
            self._clients.sweep(now_s)
            waiting = self._queue.next_keys()
            for state in yield_between(waiting):
                if not state.is_total:  # a request is in the hits of its key and in those of the total
                    with state.client.lock:
                        report.in_flight_hits += state.request_count(state.in_flight())
                report.quarantined_count += state.is_quarantined
            report.key_count = self._clients.key_count
            report.waiting_count = self._queue.waiting_count
            self._log.note(report)
        return report

    def run_urgent(self) -> CycleReport | None:
        """Synchronise the urgent keys; after a failure the next full cycle does. None if there are none."""
        report = CycleReport()
        with self._lock, self._restart_on_interrupt():
            if self._failure is not None:
                return CycleReport(error=self._failure, is_cut_short=True)
            now_s = self._clock()
            urgent = self._queue.take_urgent(now_s)
            if not urgent:
                return None
            self._synchronise_taken(urgent, [], now_s, report)
            self._log.note(report)
        return report

    def _synchronise_taken(
        self,
        urgent: Sequence[KeyState],
        states: Sequence[KeyState],
        now_s: float,
        report: CycleReport,
        *,
        reads_all: bool = False,
    ) -> float:
        """Synchronise the keys that a cycle has taken, and return the time, which may be corrected now."""
        if urgent or states:
            self._measure_clock(report)
            now_s = self._clock()
        self._synchronise(urgent, now_s, report, is_urgent=True)
        self._synchronise(states, now_s, report, reads_all=reads_all)
        self._make_room()
        self._failure = report.error
        return now_s

    @contextmanager
    def _restart_on_interrupt(self) -> Iterator[None]:
        """Leave all keys to the next cycle if this one is interrupted: Ctrl-C raises in a caller's main thread."""
        self._leave_to_parent()
        try:
            yield
        except BaseException:
            self._clients.drop_retired()
            states = list(self._clients.all_keys())
            for state in states:
                state.is_stale = True  # it may know the version that was read without the hits
            self._queue.restart(states)
            raise

    def _leave_to_parent(self) -> None:
        """In a child that was forked below Python, as by uWSGI: leave to the parent what its cycles have taken."""
        if self._flusher is not None and self._flusher.renew_writer():
            for state in self._clients.all_keys():
                state.unsent = state.attempt = state.mark = None

    def _measure_clock(self, report: CycleReport) -> None:
        if self._flusher is None or report.is_cut_short:
            return
        try:
            self._flusher.server_clock.begin_cycle()
        except Exception as exc:  # noqa: BLE001  # a bug must not drop keys from the queue
            report.error = _reported(exc)
            report.is_cut_short = True

    def _synchronise(
        self,
        states: Sequence[KeyState],
        now_s: float,
        report: CycleReport,
        *,
        is_urgent: bool = False,
        reads_all: bool = False,
    ) -> None:
        """Flush and pull keys part by part, and the urgent keys in between."""
        for start in range(0, len(states), MAX_BATCH):
            if start and not is_urgent and self._queue.has_urgent and not report.is_cut_short:
                started_s = self._clock()
                self._synchronise(self._queue.take_urgent(started_s), started_s, report, is_urgent=True)
            part = [state for state in states[start : start + MAX_BATCH] if state.due is Due.TAKEN]
            known = {
                state: (state.first.full, max(state.requested_s, state.read_s))
                for state in part
                if state.version is not None
            }
            self._exchange(part, now_s, report, is_urgent=is_urgent, reads_all=reads_all)
            for state in yield_between(part):
                full, known_s = known.get(state, (state.first.full, now_s))
                found_rate = reading.found_rate(state.first.full - full, now_s - known_s)
                self._put_back(state, now_s, report, found_rate=found_rate)

    def _exchange(
        self, states: Sequence[KeyState], now_s: float, report: CycleReport, *, is_urgent: bool, reads_all: bool
    ) -> None:
        """Flush a part of the keys, and pull those whose write did not show the total."""
        try:
            if self._flusher is None or report.is_cut_short:
                for state in states:
                    report.dropped_hits += protocol.take(state, now_s)
                    if self._flusher is None:  # the buckets alone hold the hits
                        state.unsent = None
                return
            current = self._flusher.flush(states, now_s, report, is_urgent=is_urgent)
            to_pull = [
                state
                for state in states
                if is_urgent or reads_all or not state.is_idle(now_s)
                if state not in current or self._is_overdue(state, now_s)
            ]
            self._flusher.pull(to_pull, report)
        except Exception as exc:  # noqa: BLE001  # a bug must not drop keys from the queue
            report.error = _reported(exc)
            report.is_cut_short = report.is_cut_short or isinstance(exc, StoreError)

    def _put_back(self, state: KeyState, now_s: float, report: CycleReport, *, found_rate: float) -> None:
        state.requested_s = min(state.requested_s, now_s)  # a clock that was set back must not keep the key for so long
        is_failed = report.is_cut_short or report.error is not None
        if is_failed:
            state.read_s = -inf  # others may have written while the store did not answer
        if is_failed or state.unsent or state.attempt:
            self._queue.put_next(state)
        elif state.is_idle(now_s) and (self._clients.forget(state) or state.due is Due.FORGOTTEN):
            return
        else:
            gap_s = self._read_gap_s(state, now_s, found_rate=found_rate)
            if gap_s <= self._interval_s / 2 and self._queue.put_urgent(state, now_s + gap_s):
                pass
            elif gap_s <= self._interval_s:
                self._queue.put_next(state)
            else:
                idle_after_s = state.requested_s + state.client.horizon_s - now_s + self._interval_s
                self._queue.put_later(state, min(gap_s, idle_after_s))
        if state.has_reached_alert:  # it has already reached the alert that this cycle set
            self._queue.add_urgent(state)

    @staticmethod
    def _is_overdue(state: KeyState, now_s: float) -> bool:
        shortest_window_s = min(bucket.tier.window_s for bucket in state.buckets())
        return reading.is_overdue(
            now_s - state.read_s,
            shortest_window_s=shortest_window_s,
            horizon_s=state.client.horizon_s,
            is_far=state.is_far,
        )

    def _read_gap_s(self, state: KeyState, now_s: float, *, found_rate: float) -> float:
        """Return the seconds until a key is read although it has no requests, ``inf`` if it is not."""
        if self._flusher is None or state.used_ratio < reading.AGAIN_RATIO:  # most keys: without the lock
            return inf
        with state.client.lock:
            at_s = self._clock()  # requests may have begun a new frame since the cycle did
            state.advance(at_s)
            fillings = [_filling_of(bucket, at_s) for bucket in state.buckets()]
        return min(
            reading.read_gap_s(
                filling,
                quiet_s=now_s - state.requested_s,
                found_rate=found_rate,
                writer_count=state.writer_count,
                instance_count=state.expected_writer_count,
                interval_s=self._interval_s,
            )
            for filling in fillings
        )

    def measure_clock(self) -> StoreError | None:
        """Measure the store's clock if it is time to, and return the error if there was no answer."""
        report = CycleReport()
        with self._lock:
            self._measure_clock(report)
        return report.error

    def preload(self, count: int, now_s: float, *, scopes: Collection[str | None]) -> int:
        """Read the keys that were busy last and return how many there were, 0 if the store did not answer."""
        if self._flusher is None:
            return 0
        try:
            with self._lock:
                self._flusher.server_clock.begin_cycle()  # the first urgent key then waits for no connection
            snapshots = self._flusher.store.latest(count)
        except StoreError as exc:
            log.warning("preload_failed", error=str(exc))
            return 0
        loaded_count = 0
        for key, snapshot in snapshots.items():
            if key.scope not in scopes:
                continue
            with self._clients.locked(key.client_id, endpoint=key.scope or TOKEN_ENDPOINT) as client:
                found = None if client.rules.exempt else self._clients.key_of(client, key.username, now_s)
            if found is None:
                continue
            loaded_count += 1
            with self._lock:
                if found.version is None and found.attempt is None:
                    protocol.merge(found, snapshot, now_s, writer=self._flusher.writer, prunable=NOTHING_PRUNABLE)
                    found.is_stale = True  # a write needs a version that is not older than what later reads show
                self._queue.put_next(found)
        return loaded_count

    def _make_room(self) -> None:
        """Evict keys if there are nearly too many, starting with those that are far below their limits.

        An evicted key that comes again is less accurate at first. No hit is lost, because settled keys alone go.
        """
        excess = self._clients.excess_count
        if not excess:
            return
        for key in chain(
            (key for key in yield_between(self._queue) if key.used_ratio < reading.FILLING_RATIO),
            (key for key in yield_between(self._queue) if key.used_ratio >= reading.FILLING_RATIO),
        ):
            if self._clients.forget(key):
                excess -= 1
                if not excess:
                    break
        self._queue.drop_outdated()

    def end(self, deadline: Deadline) -> None:
        """Flush for the last time, remove this instance's marks, and release the store. No cycle may follow.

        Logs ``hits_undelivered`` and ``hits_unconfirmed`` if hits are left.
        """
        flusher = self._flusher
        if flusher is None:
            return
        is_idle = False
        try:
            is_idle = self._lock.acquire(timeout=deadline.remaining_s)  # a cycle that waits for the store may hold it
            if is_idle:
                with self._restart_on_interrupt():
                    self._flush_last(flusher, deadline)
        finally:
            if is_idle:
                self._lock.release()
        self._log.note_unsent(self._clients, is_idle=is_idle)
        with flusher.store.time_limit(deadline.remaining_s):
            flusher.store.close()

    def _flush_last(self, flusher: Flusher, deadline: Deadline) -> None:
        """Flush, with further tries if the store fails, and read only what that needs. The lock is held."""
        now_s = self._clock()
        states = self._queue.take_urgent(now_s) + self._queue.take(now_s)
        for share in TRY_SHARES:
            if deadline.is_over:
                break
            report = CycleReport()
            with flusher.store.time_limit(deadline.part(share).remaining_s):
                try:
                    if states and not flusher.server_clock.is_measured:
                        flusher.server_clock.begin_cycle()
                    for start in range(0, len(states), MAX_BATCH):
                        flusher.flush(states[start : start + MAX_BATCH], self._clock(), report)
                except Exception as exc:  # noqa: BLE001  # a bug must not keep other parts from ending
                    report.error = _reported(exc)
            self._log.note(report)
            if report.error is None and not any(state.unsent or state.attempt for state in states):
                break
        if not deadline.is_over:
            part = deadline.part(LEAVING_SHARE)
            with flusher.store.time_limit(part.remaining_s), suppress(StoreError):  # the next writers remove the marks
                flusher.remove_marks((*states, *self._queue), part)


def _filling_of(bucket: Bucket, now_s: float) -> reading.Filling:
    tier = bucket.tier
    return reading.Filling(
        limit=tier.limit,
        estimate=bucket.estimate(now_s),
        current=bucket.current,
        past=bucket.past,
        frame_count=tier.frame_count,
        frame_s=tier.frame_s,
        left_s=tier.left_s(bucket.frame_end_s, now_s),
        opens_after_s=bucket.retry_after_s(now_s, cost=1) if bucket.denies(now_s, 1) else 0.0,
    )


def _reported(exc: Exception) -> StoreError:
    """Return the error to report for an exception. One that no store raises is a bug, and is logged."""
    if isinstance(exc, StoreError):
        return exc
    log.error("cycle_failed", error=repr(exc), traceback=traceback.format_exc())
    return StoreUnavailable(f"the cycle failed: {type(exc).__name__}")
