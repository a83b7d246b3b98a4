"""The sync cycle of one limiter: which keys, in which order, and what is said about it."""

import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping

import structlog

from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.counters.registry import ClientRegistry
from oauth_ratelimit.errors import StoreError, StoreUnavailable
from oauth_ratelimit.store.base import CounterStore, Snapshot
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.flusher import CycleReport, Flusher
from oauth_ratelimit.sync.schedule import SyncSchedule

log = structlog.get_logger(__name__)

PART_SIZE = 10_000  # keys
MAX_CLIENTS_SAID = 50
REPEAT_FAILURE_S = 60.0  # a lasting outage is said again this often


class SyncCycle:
    """Flushes and pulls the keys that requests have touched.

    Args:
        store: The shared store; None counts in this process only.
        interval_s: The time between two full cycles.
        places: Whose keys.
    """

    def __init__(self, store: CounterStore | None, *, clients: ClientRegistry, interval_s: float) -> None:
        self.schedule = SyncSchedule(interval_s)
        self._store = store
        self._flusher = Flusher(store) if store else None
        self._clock_watch = ServerClock(store) if store else None
        self._clients = clients
        self._lock = threading.Lock()  # one cycle at a time
        self._failing_since_s: float | None = None
        self._said_s = 0.0
        self._last_s: float | None = None  # when the last full cycle was

    def run(self, now_s: float, *, urgent_only: bool = False) -> CycleReport:
        """Run one cycle. Never raises for what the store does: the report tells.

        Args:
            now_s: The time.
            urgent_only: Only look at keys that requests have marked as urgent.
        """
        report = CycleReport()
        with self._lock:
            urgent = self._clients.dirty_queue.take_urgent()
            if urgent_only:
                for state in urgent:
                    state.reads_first = True  # most are new here, and others know them: reading first saves a write
                self._synchronise(urgent, now_s, report, touched=True)
            else:
                touched = urgent + self._clients.dirty_queue.take_dirty()
                if now_s == self._last_s:  # its owner wants to know now, on a clock that stands
                    touched += self.schedule.all()
                self._last_s = now_s
                touched = self.schedule.take(touched)
                due = self.schedule.due(now_s)
                self._synchronise_in_parts(touched, now_s, report, touched=True)
                self._synchronise_in_parts(due, now_s, report, touched=False)
            self._make_room()
            if not urgent_only:
                self._clients.sweep(now_s)
                report.in_flight_hits = self.schedule.in_flight_hits()
                report.key_count = self._clients.key_count
                if self._clock_watch is not None and (touched or due) and report.error is None:
                    self._clock_watch.look(now_s)
        self._say(report, now_s)
        return report

    def run_for(self, states: Iterable[KeyState], now_s: float) -> CycleReport:
        """Synchronise these keys only."""
        report = CycleReport()
        with self._lock:
            self._synchronise(list(dict.fromkeys(states)), now_s, report, touched=True)
        self._say(report, now_s)
        return report

    @property
    def clock_offset_s(self) -> float:
        """How far the store's clock is ahead of this machine's, as last measured; 0.0 if that does not matter."""
        return self._clock_watch.offset_s if self._clock_watch else 0.0

    def preload(self, count: int, now_s: float) -> int:
        """Learn the keys that were busy last, and return how many there were; 0 if the store did not answer."""
        if self._store is None:
            return 0
        try:
            snapshots = self._store.latest(count)
        except StoreError as exc:
            log.warning("preload_failed", error=str(exc))
            return 0
        states = {}
        for key, snapshot in snapshots.items():
            if key.scope is None:
                with self._clients.held(key.client_id) as client:
                    if client.exempt is not None:
                        continue
                    state = client.keys.get(key.username) or self._clients.add_key(client, key.username, now_s)
                if state is not client.blank:
                    states[state] = snapshot
        self._load(states, now_s)
        return len(states)

    def _load(self, states: Mapping[KeyState, Snapshot], now_s: float) -> None:
        """Take over documents that were read for keys of which nothing is known here yet."""
        with self._lock:
            for state, snapshot in states.items():
                if state.version is None and not state.attempts:
                    state.merge(snapshot, now_s, flush_id=time.time_ns() // 1_000_000)
            self.schedule.add(states)

    def log_undelivered(self) -> None:
        """Log what is still to be sent, by client, because nobody will send it any more."""
        undelivered: Counter[str] = Counter()
        for state in self.schedule.listed():
            undelivered[state.client.client_id] += state.counts().in_flight_hits
        undelivered = +undelivered
        if undelivered:
            log.error(
                "hits_undelivered", hits=undelivered.total(), by_client=dict(undelivered.most_common(MAX_CLIENTS_SAID))
            )

    def _synchronise_in_parts(
        self, states: list[KeyState], now_s: float, report: CycleReport, *, touched: bool
    ) -> None:
        """Flush and pull keys, not all at once: what is remembered of each meanwhile would double their memory."""
        for start in range(0, len(states), PART_SIZE):
            self._synchronise(states[start : start + PART_SIZE], now_s, report, touched=touched)

    def _synchronise(self, states: list[KeyState], now_s: float, report: CycleReport, *, touched: bool) -> None:
        """Flush and pull keys.

        Args:
            states: The keys.
            now_s: The time.
            report: Is added to. If the store has failed in this cycle already, hits are only taken.
            touched: Whether requests have asked for them.
        """
        is_failed = False
        busy, changed = set[KeyState](), set[KeyState]()
        try:
            if self._flusher is None or report.is_cut_short:
                is_failed = report.is_cut_short
                for state in states:
                    report.dropped_hits += state.take(now_s)
                    if self._flusher is None:
                        state.unsent = None
            else:
                busy.update(self._flusher.flush(states, now_s, report))
                to_pull = [
                    state
                    for state in states
                    if state.is_to_be_read(now_s) or (state not in busy and (touched or state.is_followed))
                ]
                changed.update(self._flusher.pull(to_pull, now_s, report))
        except StoreError as exc:
            report.error = exc
            is_failed = report.is_cut_short = True
        except Exception as exc:  # noqa: BLE001  # a bug, but no key may fall off the agenda for it
            log.error("cycle_failed", error=repr(exc), traceback=traceback.format_exc())
            report.error = StoreUnavailable(f"the cycle failed: {type(exc).__name__}")
            is_failed = True
        for state in states:
            if touched:
                state.seen_s = now_s
            is_busy = touched or is_failed or state in busy or (state in changed and state.is_filling)
            if is_busy or state.unsent:
                state.pull_gap = 0
                self.schedule.add((state,))
            elif state.is_idle(now_s) and state.client.forget(state):
                self._clients.count_forgotten()
            else:
                self.schedule.reschedule(state)

    def _make_room(self) -> None:
        """Forget keys before their time, those that have been quiet longest first, if there are nearly too many.

        Costs accuracy when they come again, but no count: what is still to be sent stays.
        """
        excess = self._clients.excess_count
        if not excess:
            return
        for state in self.schedule.all():
            if state.client.forget(state):
                self._clients.count_forgotten()
                excess -= 1
                if not excess:
                    break
        self.schedule.drop_forgotten()

    def _say(self, report: CycleReport, now_s: float) -> None:
        if report.dropped_hits:
            log.warning("hits_dropped", hits=report.dropped_hits, reason="their frames have left every window")
        if report.error is not None:
            if self._failing_since_s is None or now_s - self._said_s >= REPEAT_FAILURE_S:
                since_s = self._failing_since_s = self._failing_since_s or now_s
                self._said_s = now_s
                log.warning("flush_failed", error=str(report.error), failing_for_s=round(now_s - since_s, 1))
        elif self._failing_since_s is not None and (report.flushed_count or report.pulled_count):
            log.info("flush_recovered", failed_for_s=round(now_s - self._failing_since_s, 1))
            self._failing_since_s = None

    def close(self) -> None:
        """Release the store."""
        if self._store is not None:
            self._store.close()
