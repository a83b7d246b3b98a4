"""One sync cycle: flush what was counted here, pull what was counted elsewhere.

Exactly once, whatever fails: each write names the version that was read, so of all writes that name it one is applied
at most; each leaves its number in the document, so that a lost answer is found again however many others wrote since.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog

from oauth_ratelimit.core.key import Key, visible_name
from oauth_ratelimit.counters.key_state import Attempt, KeyState
from oauth_ratelimit.counters.pruning import MAX_PRUNED, SLACK_S
from oauth_ratelimit.errors import StoreError, StoreRejected
from oauth_ratelimit.process.yielding import gently, sweep_young
from oauth_ratelimit.store.base import UNUSABLE_VERSION, Change, CounterStore

log = structlog.get_logger(__name__)

REPEAT_S = 60.0  # one event of a kind per key and this long
MAX_KEYS = 1000  # a collection full of damaged documents must not fill the log


class Complaints:
    """Says once per key and minute what is wrong with its document. Used by the sync cycle alone."""

    def __init__(self) -> None:
        self._said_s: dict[tuple[str, Key], float] = {}

    def say(self, event: str, key: Key, now_s: float, **facts: Any) -> None:
        """Log a complaint, unless that was done a moment ago or too many were.

        Args:
            event: What the log calls it.
            key: Whose document it is.
            now_s: The time, seconds since the epoch.
            facts: What else the log is told.
        """
        said_s = self._said_s.get((event, key))
        if said_s is not None and said_s <= now_s < said_s + REPEAT_S:
            return
        if len(self._said_s) >= MAX_KEYS:
            self._said_s = {said: at_s for said, at_s in self._said_s.items() if at_s <= now_s < at_s + REPEAT_S}
            if len(self._said_s) >= MAX_KEYS:
                return
        self._said_s[event, key] = now_s
        username = None if key.username is None else visible_name(key.username)
        log.error(event, client_id=visible_name(key.client_id), username=username, scope=key.scope, **facts)


MAX_BATCH = 500  # documents per round trip: of more, some objects would be old to the garbage collector, see courtesy
MAX_ROUNDS = 4  # writes per key and cycle; what still loses then goes with the next cycle
FIRST_PAUSE_S = 0.002  # before a second round, doubled with each further one; jitter sends rivals apart


@dataclass(slots=True)
class CycleReport:
    """What one cycle did.

    Attributes:
        flushed_count: Documents written.
        pulled_count: Documents asked for.
        conflict_count: Writes that lost a race.
        round_count: Rounds of writing that the most contested key needed.
        dropped_hits: Hits given up because their frames have left every window.
        rejected_count: Writes that the store refused for good.
        error: What went wrong, None if nothing did.
        is_cut_short: Whether the store failed, so that it was asked nothing more.
        in_flight_hits: Of a full cycle: hits that it should have sent and that are not yet known to have arrived.
        key_count: Of a full cycle: keys known at its end.
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
    key_count: int = 0


class Flusher:
    """Moves hits between the keys of one instance and the store. One thread at a time.

    Args:
        store: Where to.
        sleep: Waits between two rounds on contested keys.
    """

    def __init__(self, store: CounterStore, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.writer = secrets.token_hex(6)
        self._store = store
        self._sleep = sleep
        self._flush_id = 0
        self._complaints = Complaints()

    def flush(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """Send what the keys have counted.

        Returns:
            The keys whose document is now known to hold nothing that this instance does not know.

        Raises:
            StoreError: The cycle cannot go on. All hits are kept, those of unknown outcome included.
        """
        current: list[KeyState] = []
        lost: list[KeyState] = []
        batches = self._taken(states, now_s, report)
        try:
            for batch in batches:
                doubtful = [state for state in batch if state.attempts or state.reads_first or state.is_quarantined]
                self._read_first(doubtful, now_s, report)
                lost += self._write_round(1, batch, current, now_s=now_s, report=report)
                sweep_young(batch)
        except Exception:
            for _ in batches:
                pass  # the rest is in flight all the same
            raise
        for write_count in range(1, MAX_ROUNDS + 1):
            if not lost:
                break
            self._sleep(FIRST_PAUSE_S * 2 ** (write_count - 1) * random.random())
            self.pull(lost, now_s, report)
            if write_count < MAX_ROUNDS:
                lost = self._write_round(write_count + 1, lost, current, now_s=now_s, report=report)
        return current

    def _taken(self, states: Iterable[KeyState], now_s: float, report: CycleReport) -> Iterator[list[KeyState]]:
        """Take what the keys have counted, and yield those that have something to send, a batch at a time.

        No sooner than the batch is wanted, so that few objects live at a time.
        """
        batch = []
        for state in gently(states):
            report.dropped_hits += state.take(now_s)
            if state.unsent:
                batch.append(state)
                if len(batch) == MAX_BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _read_first(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> None:
        """Read documents that may well be at another version than the one known here."""
        changed = set(self.pull(states, now_s, report))
        for state in states:
            state.reads_first = state in changed

    def _write_round(
        self,
        number: int,
        states: Sequence[KeyState],
        current: list[KeyState],
        *,
        now_s: float,
        report: CycleReport,
    ) -> list[KeyState]:
        """
        Write what is unsent, add the keys that are up to date then to ``current``, and return those that lost the race.
        """
        pending = [state for state in states if state.unsent and not state.is_quarantined]
        if not pending:
            return []
        report.round_count = max(report.round_count, number)
        lost = self._write(pending, now_s, report)
        contested = set(map(id, lost))
        current += [state for state in pending if id(state) not in contested and not state.unsent]
        return lost

    def pull(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """Read documents and merge them.

        Returns:
            The keys whose document has changed since it was last read or written here.

        Raises:
            StoreError: The store did not answer.
        """
        changed = []
        for batch in _batches(states):
            snapshots = self._store.read([state.key for state in batch])
            report.pulled_count += len(batch)
            for state in gently(batch):
                snapshot = snapshots.get(state.key)
                if state.attempts:
                    state.resolve(self.writer, snapshot)
                if snapshot is not None and snapshot.damage:
                    is_usable = snapshot.version != UNUSABLE_VERSION
                    self._complaints.say(
                        "document_malformed", state.key, now_s, fields=snapshot.damage, is_usable=is_usable
                    )
                if state.version != (snapshot.version if snapshot else None):
                    changed.append(state)
                state.merge(snapshot, now_s, flush_id=self._flush_id or _now_ms())
        return changed

    def _write(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """Write once, and return the keys that lost the race."""
        lost: list[KeyState] = []
        for batch in _batches(states):
            flush_id = self._next_flush_id()
            changes = [_change(state, flush_id) for state in gently(batch)]
            try:
                result = self._store.compare_and_set(self.writer, changes)
            except StoreRejected:
                raise
            except Exception:  # whatever it was, the server may have applied them
                for state, change in zip(batch, changes, strict=True):
                    state.attempts += (Attempt(flush_id, change.hits),)
                raise
            failed = {*result.lost, *result.rejected}
            for index, (state, change) in enumerate(zip(gently(batch), changes, strict=True)):
                if index not in failed:
                    state.commit(change.next_version, now_s)
            for index, reason in result.rejected.items():
                self._complaints.say("document_rejected", batch[index].key, now_s, reason=reason)
            report.flushed_count += len(batch) - len(failed)
            report.rejected_count += len(result.rejected)
            for index in result.lost:
                batch[index].reads_first = True
                lost.append(batch[index])
        report.conflict_count += len(lost)
        return lost

    def _next_flush_id(self) -> int:
        """Return a number that grows with every write. It is a time, so that marks of writers long gone can be told."""
        self._flush_id = max(self._flush_id + 1, _now_ms())
        return self._flush_id


def _change(state: KeyState, flush_id: int) -> Change:
    hits = state.unsent or {}
    newest_s = max(max(frames) for frames in hits.values())
    return Change(
        key=state.key,
        version=state.version,
        # A sum has room for one digit more than it needs, which an "or" gives back: 16 bytes per key.
        next_version=_first_version() if state.version is None else (state.version + 1) | 0,
        flush_id=flush_id,
        hits=hits,
        expire_at_s=float(newest_s + state.client.horizon_s + SLACK_S),
        expired_frames=state.prunable.frames[:MAX_PRUNED],
        expired_writers=state.prunable.writers[:MAX_PRUNED],
    )


def _first_version() -> int:
    """
    Return a version that no earlier life of the document has had: 2^51 numbers, of which a life uses a few thousand.
    """
    return secrets.randbelow(2**52) | 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _batches(states: Sequence[KeyState]) -> Iterator[list[KeyState]]:
    rest = iter(states)
    while batch := list(islice(rest, MAX_BATCH)):
        yield batch
