"""Flush and pull: moves hits between the keys of one instance and the store.

Each hit is stored exactly once, whatever fails. A write names the version that was read or, far from a limit, the mark
that this instance left last, so at most one of the writes that name it is applied. It leaves its number in the document
as the new mark, which shows after a lost reply whether it was applied.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import SystemRandom

from oauth_ratelimit.core.key import Key, logged_name
from oauth_ratelimit.counters.key import KeyState
from oauth_ratelimit.counters.pruning import NOTHING_PRUNABLE, prunable_of
from oauth_ratelimit.errors import StoreError, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.process.yielding import collect_young_garbage, yield_between
from oauth_ratelimit.store.base import MAX_WHOLE, TOO_LARGE, CounterStore
from oauth_ratelimit.sync import protocol
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.reading import reads_first

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0  # between two events of a kind about the same document
MAX_BATCH = 400  # documents per round trip; with more, the garbage collector would take its objects for old ones
MAX_COUNTERS = 10_000  # frames written per round trip; a server takes less than a second for them
MIN_COUNTERS = 100  # the same after failures: so few are not the cause of a timeout
FOUND_MEMORY = 20  # first reads and writes that the guess about the next one remembers
FOUND_AT_FIRST = 1 / 2  # of the new keys of an instance that has just started: others may run already
REFRESH_RATIO = 1 / 2  # found documents from which on a read before the write saves operations
REFRESH_RATIO_URGENT = 1 / 10  # of an urgent key: a write that loses the race takes longer and shows nothing
MAX_ROUNDS = 4  # writes per key and cycle; the next cycle tries again
FIRST_PAUSE_S = 0.002  # before the third round, doubled with each further one, with jitter


@dataclass(slots=True, eq=False)
class CycleReport:
    """Results of one cycle."""

    flushed_count: int = 0  # documents written
    pulled_count: int = 0  # documents read
    conflict_count: int = 0  # writes that lost a race
    round_count: int = 0  # rounds of writing that the most contested key needed
    dropped_hits: int = 0  # too many frames waited for the store, or it can no longer show whether it has them
    rejected_count: int = 0  # writes that the store refused, not as a lost race
    error: StoreError | None = None  # the last one
    is_cut_short: bool = False  # the store was not called, or not called again, because it does not answer
    # Hits written above a limit, by policy. Their sum over instances counts each hit once, but those of writes whose
    # answer was lost.
    over_admitted: Counter[str] = field(default_factory=Counter)
    # Of full cycles only
    in_flight_hits: int = 0  # not yet known to have arrived
    quarantined_count: int = 0  # keys that wait for the repair of their document
    key_count: int = 0
    waiting_count: int = 0  # keys far from their limits, at most, whose hits wait for a later cycle


class Flusher:
    """Flushes and pulls keys. Used by one thread at a time. ``writer`` is this instance's name in documents."""

    def __init__(self, store: CounterStore, *, clock: Callable[[], float], server_clock: ServerClock) -> None:
        self._process_id = 0
        self.renew_writer()
        self.store = store
        self._clock = clock
        self.server_clock = server_clock
        self._found_ratio = FOUND_AT_FIRST  # of keys that are new here and have a document
        self._write_number = 0
        self._max_counters = MAX_COUNTERS
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)

    def renew_writer(self) -> bool:
        """Take another name in another process, and return whether it is one. Python may not know of a fork."""
        if self._process_id == os.getpid():
            return False
        self._process_id, self.writer = os.getpid(), secrets.token_hex(6)
        return True

    def flush(
        self, states: Sequence[KeyState], now_s: float, report: CycleReport, *, is_urgent: bool = False
    ) -> set[KeyState]:
        """Send the hits of up to ``MAX_BATCH`` keys. Raises ``StoreError``; all hits are kept then.

        Returns:
            The keys that had hits to send and need no further read: none are left to send, or the document is damaged.
        """
        collect_young_garbage(states)
        for state in yield_between(states):
            report.dropped_hits += protocol.take(state, now_s)
        left = to_send = [state for state in states if state.unsent or state.attempt]
        doubtful = [state for state in to_send if self._is_doubtful(state, is_urgent=is_urgent)]
        self._refresh(doubtful, report)
        for number in range(1, MAX_ROUNDS + 1):
            writable = [state for state in left if (state.unsent or state.attempt) and not state.is_quarantined]
            if not writable:
                break
            report.round_count = max(report.round_count, number)
            lost = self._write(writable, report)
            if not lost or number == MAX_ROUNDS:
                break
            if number > 1:  # after the first round the losers read at once: they know least
                time.sleep(FIRST_PAUSE_S * 2 ** (number - 2) * SystemRandom().random())
            self._refresh(lost, report)
            left = lost
        return {state for state in to_send if state.is_quarantined or not (state.unsent or state.attempt)}

    def _is_doubtful(self, state: KeyState, *, is_urgent: bool) -> bool:
        """Return whether a key is read before it is written, because the write would probably lose the race."""
        if state.attempt or (state.is_stale and not state.goes_by_mark) or state.is_quarantined:
            return True
        if is_urgent and reads_first(
            state.used_ratio,
            writer_count=state.writer_count,
            instance_count=state.client.sharing.max_writer_count,
        ):
            return True
        if state.version is not None:
            return False
        return self._found_ratio > (REFRESH_RATIO_URGENT if state.is_urgent_when_new else REFRESH_RATIO)

    def _refresh(self, states: Sequence[KeyState], report: CycleReport) -> None:
        """Read documents before they are written, and guess whether the next writes need that, too."""
        former = [state.version for state in states]
        self.pull(states, report)
        for state, version in zip(states, former, strict=True):
            has_changed = state.version != version and (version is not None or state.writer_count > 1)
            state.is_stale = has_changed or state.writer_count > 2  # with three writers the last one is mostly another

    def _note_found(self, *, found: bool) -> None:
        self._found_ratio += (found - self._found_ratio) / FOUND_MEMORY

    def pull(self, states: Sequence[KeyState], report: CycleReport) -> None:
        """Read the documents of up to ``MAX_BATCH`` keys and merge them. Raises ``StoreError``."""
        if not states:
            return
        snapshots = self.store.read([state.key for state in states])
        large = []
        for state in yield_between(states):
            snapshot = snapshots.get(state.key)
            if snapshot is not None and snapshot.damage == TOO_LARGE and len(states) > MAX_WHOLE:
                large.append(state)
                continue
            report.dropped_hits += protocol.resolve(state, self.writer, snapshot, self.server_clock.monotonic())
            prunable = NOTHING_PRUNABLE
            if snapshot is not None:
                prunable = prunable_of(snapshot, writer=self.writer, store_time_s=self.server_clock.time_s)
                if snapshot.damage:
                    self._log.error("document_malformed", **_names_of(state.key), field=snapshot.damage)
            is_known = state.version is not None
            now_s = self._clock()  # requests may have begun a new frame while the store was asked
            protocol.merge(state, snapshot, now_s, writer=self.writer, prunable=prunable)
            if not is_known:
                self._note_found(found=snapshot is not None)
        report.pulled_count += len(states) - len(large)
        for start in range(0, len(large), MAX_WHOLE):
            self.pull(large[start : start + MAX_WHOLE], report)

    def _write(self, states: Sequence[KeyState], report: CycleReport) -> list[KeyState]:
        """Write once, part by part, and return the keys that lost the race.

        After an outage keys have many frames to send. A write that outlasts the timeout goes on in the server, where it
        and the next one wait for each other.
        """
        lost: list[KeyState] = []
        part: list[KeyState] = []
        count = 0
        for state in states:
            size = protocol.counters_to_write(state)
            if part and count + size > self._max_counters:
                lost += self._write_part(part, count, report)
                part, count = [], 0
            part.append(state)
            count += size
        return lost + self._write_part(part, count, report)

    def _write_part(self, states: Sequence[KeyState], count: int, report: CycleReport) -> list[KeyState]:
        """Write once, ``count`` frames, and return the keys that lost the race."""
        was_sent_before = {state: state.attempt.was_sent for state in states if state.attempt is not None}
        self._write_number += 1
        begun_s = self.server_clock.monotonic()
        changes = [protocol.begin_write(state, self._write_number, begun_s) for state in yield_between(states)]
        try:
            result = self.store.compare_and_set(self.writer, changes)
        except StoreUnreachable:  # after anything else the server may have applied the changes
            for state in states:
                if state.attempt is not None:
                    state.attempt.was_sent = was_sent_before.get(state, False)
            raise
        except StoreUnavailable:
            self._max_counters = max(MIN_COUNTERS, min(count, self._max_counters) // 2)
            raise
        self._max_counters = min(MAX_COUNTERS, 2 * self._max_counters)
        now_s = self._clock()
        failed = {*result.lost, *result.rejected}
        for index, (state, change) in enumerate(zip(yield_between(states), changes, strict=True)):
            if index in failed:
                protocol.fail_write(state, was_repeated=state in was_sent_before)
                continue
            if change.version is None:
                self._note_found(found=False)
            if over := protocol.commit(state, change, now_s):
                report.over_admitted.update(over)
        for index, reason in result.rejected.items():
            self._log.error("document_rejected", **_names_of(states[index].key), reason=reason)
        report.flushed_count += len(states) - len(failed)
        report.rejected_count += len(result.rejected)
        report.conflict_count += len(result.lost)
        lost = [states[index] for index in result.lost]
        rest = [state for state in was_sent_before if state.attempt is None and state.unsent]
        if rest:  # hits that came after the write of unknown outcome
            lost += self._write(rest, report)
        return lost

    def remove_marks(self, states: Iterable[KeyState], deadline: Deadline) -> None:
        """Remove this instance's marks from documents until a deadline, because it writes no more.

        Marks stay where an outcome is still unknown, and in damaged documents. Raises ``StoreError``.
        """
        marked = [
            state
            for state in dict.fromkeys(states)
            if state.version is not None and state.attempt is None and not state.is_quarantined
        ]
        for start in range(0, len(marked), MAX_BATCH):
            if not deadline.is_over:
                self.store.remove_marks(self.writer, [state.key for state in marked[start : start + MAX_BATCH]])


def _names_of(key: Key) -> dict[str, str | None]:
    """Return the fields of an event about a document, and what is logged once in a while for each."""
    username = None if key.username is None else logged_name(key.username)
    return {"key": repr(key), "client_id": logged_name(key.client_id), "username": username, "scope": key.scope}
