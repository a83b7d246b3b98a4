"""Flush and pull: moves hits between the keys of one instance and the store.

Each hit is stored exactly once, whatever fails. A write names the version that was read, so at most one of the writes
that name it is applied. It leaves its number in the document, which shows after a lost reply whether it was applied.
"""

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import structlog

from oauth_ratelimit.core.key import Key, logged_name
from oauth_ratelimit.counters.attempt import Attempt
from oauth_ratelimit.counters.key_state import Due, KeyState
from oauth_ratelimit.counters.pruning import MAX_PRUNED, NOTHING_PRUNABLE, SLACK_S, prunable_of
from oauth_ratelimit.errors import StoreError, StoreUnreachable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.process.yielding import collect_young_garbage, yield_between
from oauth_ratelimit.store.base import ERASURES, UNUSABLE_VERSION, Change, CounterStore, Snapshot
from oauth_ratelimit.sync.clock import ServerClock

log = structlog.get_logger(__name__)

LOG_INTERVAL_S = 60.0  # between two events of a kind about the same document
MAX_BATCH = 400  # documents per round trip; with more, the garbage collector would take its objects for old ones
FOUND_MEMORY = 20  # first reads and writes that the guess about the next one remembers
FOUND_AT_FIRST = 1 / 2  # of the new keys of an instance that has just started: others may run already
READS_FIRST_RATIO = 1 / 2  # found documents from which on a read before the write saves operations
READS_FIRST_RATIO_URGENT = 1 / 10  # of an urgent key: a write that loses the race takes longer and shows nothing
MAX_ROUNDS = 4  # writes per key and cycle; the next cycle tries again
FIRST_PAUSE_S = 0.002  # before the third round, doubled with each further one, with jitter


@dataclass(slots=True)
class CycleReport:
    """Results of one cycle.

    Attributes:
        flushed_count: Documents written.
        pulled_count: Documents read.
        conflict_count: Writes that lost a race.
        round_count: Rounds of writing that the most contested key needed.
        dropped_hits: Hits dropped: too many frames waited for the store, or it can no longer show whether it has them.
        rejected_count: Writes that the store refused for good.
        error: The last error, None if there was none.
        is_cut_short: Whether the store was not called, or not called again, because it does not answer.
        over_admitted: Hits written above a limit, by policy. Their sum over instances counts each hit once.
        in_flight_hits: Hits that are not yet known to have arrived. Full cycles only.
        quarantined_count: Keys that wait for the repair of their document. Full cycles only.
        key_count: Known keys at the end. Full cycles only.
    """

    flushed_count: int = 0
    pulled_count: int = 0
    conflict_count: int = 0
    round_count: int = 0
    dropped_hits: int = 0
    rejected_count: int = 0
    error: StoreError | None = None
    is_cut_short: bool = False
    in_flight_hits: int = 0
    quarantined_count: int = 0
    key_count: int = 0
    over_admitted: Counter[str] = field(default_factory=Counter)


class Flusher:
    """Flushes and pulls keys. Used by one thread at a time.

    Args:
        store: The store.
        clock: Returns the time in seconds since the epoch.
        server_clock: The clock of the store.
        on_erased: Called with the marks of users that were erased.
        sleep: Waits between two rounds on contested keys.

    Attributes:
        remote_hits: Hits of other instances since the last read, by key. Missing for keys that were not read before.
            The cycle clears it.
    """

    def __init__(
        self,
        store: CounterStore,
        *,
        clock: Callable[[], float],
        server_clock: ServerClock,
        on_erased: Callable[[Collection[str]], object],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.writer = secrets.token_hex(6)
        self._store = store
        self._server_clock = server_clock
        self._sleep = sleep
        self.remote_hits: dict[KeyState, int] = {}
        self._found_ratio = FOUND_AT_FIRST  # of keys that are new here and have a document
        self._flush_id = 0
        self._on_erased = on_erased
        self._erasures: Mapping[str, float] = {}  # time of each by its mark, as last read
        self._monotonic = server_clock.monotonic
        self._started_s = self._monotonic()
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)

    def flush(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """Send the hits of keys.

        Returns:
            The keys that are up to date: their document was written last, or is damaged and was read last.

        Raises:
            StoreError: The cycle cannot go on. All hits are kept, those of unknown outcome included.
        """
        current: list[KeyState] = []
        lost: list[KeyState] = []
        collect_young_garbage(states)
        batches = self._taken(states, report)
        try:
            for batch in batches:
                doubtful = [state for state in batch if self._is_doubtful(state)]
                self._read_first(doubtful, now_s, report)
                lost += self._write_round(1, batch, current, now_s=now_s, report=report)
        except Exception:
            for _ in batches:
                pass  # take the hits of the other keys, too
            for state in states:
                state.read_before_write = True  # the user may be erased before the store answers again
            raise
        for number in range(2, MAX_ROUNDS + 1):
            if not lost:
                break
            if number > 2:  # the first loser reads at once: it knows least
                self._sleep(FIRST_PAUSE_S * 2 ** (number - 3) * random.random())
            self._read_first(lost, now_s, report)
            lost = self._write_round(number, lost, current, now_s=now_s, report=report)
        return current

    def _taken(self, states: Iterable[KeyState], report: CycleReport) -> Iterator[list[KeyState]]:
        """Take the fresh hits of keys, and yield those with hits to send, a batch at a time."""
        batch = []
        for state in yield_between(states):
            report.dropped_hits += state.take()
            if state.unsent:
                batch.append(state)
                if len(batch) == MAX_BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _is_doubtful(self, state: KeyState) -> bool:
        """Return whether a key is read before it is written, because the write would probably lose the race."""
        if state.attempt or state.read_before_write or state.is_quarantined:
            return True
        if state.version is not None:
            return False
        return self._found_ratio > (READS_FIRST_RATIO_URGENT if state.is_urgent_unread else READS_FIRST_RATIO)

    def _note_found(self, state: KeyState, *, found: bool) -> None:
        """Note whether there was a document of a key without a known one."""
        if state.version is None:
            self._found_ratio += (found - self._found_ratio) / FOUND_MEMORY

    def _read_first(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> None:
        """Read documents whose version has changed, or probably has."""
        new = {state for state in states if state.version is None}
        changed = set(self.pull(states, now_s, report))
        for state in states:
            # The first read shows no change. With three writers the last one is mostly another.
            state.read_before_write = state.peers > 2 or (state in changed and (state.peers > 1 or state not in new))

    def _write_round(
        self,
        number: int,
        states: Sequence[KeyState],
        current: list[KeyState],
        *,
        now_s: float,
        report: CycleReport,
    ) -> list[KeyState]:
        """Write unsent hits, add the keys that are up to date to ``current``, and return those that lost the race."""
        pending = []
        for state in states:
            if state.is_quarantined:
                current.append(state)
            elif state.unsent:
                pending.append(state)
        if not pending:
            return []
        report.round_count = max(report.round_count, number)
        resent = [state for state in pending if state.attempt is not None]
        lost = self._write(pending, now_s, report)
        rest = [state for state in resent if state.attempt is None and state.unsent]
        if rest:  # hits that came after the write of unknown outcome
            lost += self._write(rest, now_s, report)
        contested = set(map(id, lost))
        current += [state for state in pending if id(state) not in contested and not state.unsent]
        return lost

    def leave(self, states: Iterable[KeyState], deadline: Deadline) -> None:
        """Remove this instance's marks from documents until a deadline, because it writes no more.

        Args:
            states: The keys. Marks stay where an outcome is still unknown, and in damaged documents.
            deadline: When to stop.

        Raises:
            StoreError: The store did not answer.
        """
        marked = [
            state
            for state in dict.fromkeys(states)
            if state.is_marked and state.attempt is None and not state.is_quarantined
        ]
        for batch in _batches(marked):
            if deadline.is_over:
                break
            self._store.leave(self.writer, [state.key for state in batch])
            for state in batch:
                state.is_marked = False

    def pull(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """Read documents and merge them.

        Returns:
            The keys whose document has changed since it was last read or written here.

        Raises:
            StoreError: The store did not answer.
        """
        changed = []
        for batch in _batches(states):
            collect_young_garbage(batch)
            snapshots = self._store.read([state.key for state in batch])
            self._note_erasures(snapshots.get(ERASURES))
            report.pulled_count += len(batch)
            for state in yield_between(batch):
                snapshot = snapshots.get(state.key)
                self._note_found(state, found=snapshot is not None)
                report.dropped_hits += state.resolve(self.writer, snapshot, self._monotonic())
                if snapshot is not None and snapshot.damage:
                    self._log_damage(state.key, snapshot)
                if state.version != (snapshot.version if snapshot else None):
                    changed.append(state)
                prunable = NOTHING_PRUNABLE
                if snapshot is not None:
                    prunable = prunable_of(snapshot, writer=self.writer, store_time_s=self._server_clock.time_s)
                is_known = state.version is not None
                remote_hits = state.merge(snapshot, now_s, writer=self.writer, prunable=prunable)
                if is_known and state.due_cycle is not Due.FORGOTTEN:
                    self.remote_hits[state] = self.remote_hits.get(state, 0) + remote_hits
        return changed

    def _log_damage(self, key: Key, snapshot: Snapshot) -> None:
        is_usable = snapshot.version != UNUSABLE_VERSION
        self._log.error(
            "document_malformed", key=repr(key), **_names_of(key), fields=snapshot.damage, is_usable=is_usable
        )

    def _note_erasures(self, erasures: Snapshot | None) -> None:
        """Drop the keys of users that were erased since the last read, or since the start of this instance."""
        found = erasures.seen if erasures else {}
        if found == self._erasures:
            return
        new = {mark for mark, at_s in found.items() if self._erasures.get(mark) != at_s}
        if not self._erasures:  # what is older concerns no hit of this instance
            # One server may have dated the erasure, and another one the start.
            started_s = self._server_clock.expected_s - (self._monotonic() - self._started_s) - SLACK_S
            new = {mark for mark in new if found[mark] > started_s}
        self._erasures = found
        if new:
            self._on_erased(new)
            for state in [state for state in self.remote_hits if state.due_cycle is Due.FORGOTTEN]:
                del self.remote_hits[state]

    def _write(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """Write once, and return the keys that lost the race."""
        lost: list[KeyState] = []
        for batch in _batches(states):
            flush_id = self._next_flush_id()
            changes = [_change(state, flush_id) for state in yield_between(batch)]
            begun_s = self._monotonic()
            try:
                result = self._store.compare_and_set(self.writer, changes)
            except BaseException as exc:  # the server may have applied the changes, whatever ends the call
                was_sent = not isinstance(exc, StoreUnreachable)
                for state, change in zip(batch, changes, strict=True):
                    if state.attempt is None:
                        state.attempt = Attempt(
                            change.flush_id, change.version, change.hits, begun_s, state.longest_s, was_sent
                        )
                    elif was_sent:
                        state.attempt = replace(state.attempt, was_sent=True)
                raise
            failed = {*result.lost, *result.rejected}
            for index, (state, change) in enumerate(zip(yield_between(batch), changes, strict=True)):
                if index not in failed:
                    if change.version is None:
                        self._note_found(state, found=False)
                        state.read_before_write = state.client.peers.most_count > 2  # others will probably have written
                    over = state.commit(change.next_version, change.hits, now_s)
                    if over:
                        report.over_admitted.update(over)
            for index, reason in result.rejected.items():
                batch[index].read_before_write = True  # it may have been damaged since it was read
                key = batch[index].key
                self._log.error("document_rejected", key=repr(key), **_names_of(key), reason=reason)
            report.flushed_count += len(batch) - len(failed)
            report.rejected_count += len(result.rejected)
            for index in result.lost:
                batch[index].read_before_write = True
                lost.append(batch[index])
        report.conflict_count += len(lost)
        return lost

    def _next_flush_id(self) -> int:
        """Return a number that grows with every write. It is a time, by which earlier versions recognise old marks."""
        self._flush_id = max(self._flush_id + 1, time.time_ns() // 1_000_000)
        return self._flush_id


def _names_of(key: Key) -> dict[str, str | None]:
    """Return the names in a key as logs show them."""
    username = None if key.username is None else logged_name(key.username)
    return {"client_id": logged_name(key.client_id), "username": username, "scope": key.scope}


def _change(state: KeyState, flush_id: int) -> Change:
    hits = state.unsent or {}
    if state.attempt is not None:  # the same write once more: its outcome shows whether either was applied
        flush_id, hits = state.attempt.flush_id, state.attempt.hits
    horizons = state.raise_horizons()
    return Change(
        key=state.key,
        version=state.version,
        # The "or" makes the number 16 bytes smaller.
        next_version=_first_version() if state.version is None else (state.version + 1) | 0,
        flush_id=flush_id,
        hits=hits,
        expire_at_s=float(state.end_s(hits) + SLACK_S),
        expired_frames=state.prunable.frames[:MAX_PRUNED],
        expired_writers=state.prunable.writers[:MAX_PRUNED],
        horizons=horizons,
    )


def _first_version() -> int:
    """Return a version that no earlier document of the key has had, by chance: one of 2^51 numbers."""
    return secrets.randbelow(2**52) | 1


def _batches(states: Sequence[KeyState]) -> Iterator[list[KeyState]]:
    rest = iter(states)
    while batch := list(islice(rest, MAX_BATCH)):
        yield batch
