"""Flush and pull: moves hits between the host table and the store.

Each hit is stored exactly once, whatever fails. A write names the version that was read or, far from a limit, the mark
that this instance left last, so at most one of the writes that name it is applied. It leaves its number in the document
as the new mark, which shows after a lost reply whether it was applied.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import SystemRandom
from typing import NamedTuple

from oauth_ratelimit.core.key import Key, logged_name
from oauth_ratelimit.counters.rules import key_of
from oauth_ratelimit.errors import StoreError, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.store.base import MAX_WHOLE, TOO_LARGE, Change, CounterStore, Snapshot
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.pruning import NOTHING_PRUNABLE, Prunable, prunable_of
from oauth_ratelimit.sync.replica import Replica
from oauth_ratelimit.sync.replica_table import ReplicaTable

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0  # between two events of a kind about the same document
MAX_COUNTERS = 10_000  # frames written per round trip; a server takes less than a second for them
MIN_COUNTERS = 100  # the same after failures: so few are not the cause of a timeout
FOUND_MEMORY = 20  # first reads and writes that the guess about the next one remembers
FOUND_AT_FIRST = 1 / 2  # of the new keys of an instance that has just started: others may run already
REFRESH_RATIO = 1 / 2  # found documents from which on a read before the write saves operations
REFRESH_RATIO_URGENT = 1 / 10  # of an urgent key: a write that loses the race takes longer and shows nothing
MAX_ROUNDS = 4  # writes per key and cycle; the next cycle tries again
FIRST_PAUSE_S = 0.002  # before the third round, doubled with each further one, with jitter


class Remote(NamedTuple):
    """Hits of other instances that a read has shown."""

    hits: int
    passed_s: float  # seconds since the document was known before


class Begun(NamedTuple):
    """Write that was recorded."""

    change: Change
    is_repeat: bool  # of a write whose outcome is unknown
    was_sent: bool  # by an earlier try
    writer: str  # name of the rows in documents


@dataclass(slots=True, eq=False)
class CycleReport:
    """Results of one cycle."""

    flushed_count: int = 0  # documents written
    pulled_count: int = 0  # documents read
    conflict_count: int = 0  # writes that lost a race
    round_count: int = 0  # rounds of writing that the most contested key needed
    dropped_hits: int = 0  # too many frames waited for the store, or it can no longer show whether it has them
    error: StoreError | None = None  # the last one
    is_elsewhere: bool = False  # another process synchronises the rows, so nothing was done
    synced_ago_s: float | None = 0.0  # since the last full cycle without an error, of any process; None if unknown
    is_cut_short: bool = False  # the store was not called, or not called again, because it does not answer
    # Hits written above a limit, by policy. Their sum over instances counts each hit once, but those of writes whose
    # answer was lost.
    over_admitted: Counter[str] = field(default_factory=Counter)
    # Of full cycles only
    in_flight_hits: int = 0  # not yet known to have arrived
    quarantined_count: int = 0  # keys that wait for the repair of their document
    key_count: int = 0
    lock_timeout_count: int = 0  # requests that did not get the lock of the host's file
    waiting_count: int = 0  # keys far from their limits, at most, whose hits wait for a later cycle


class Flusher:
    """Flush and pull of given rows. Used by one thread at a time.

    ``schedule`` is called with each replica whose write was applied or rejected, or whose document was read, before it
    is stored: it decides when the row is taken next. Its second argument is the hits of other instances that were new.
    """

    def __init__(
        self,
        store: CounterStore,
        rows: ReplicaTable,
        *,
        clock: Callable[[], float],
        server_clock: ServerClock,
        schedule: Callable[..., None],
    ) -> None:
        self.store = store
        self._rows = rows
        self._clock = clock
        self._schedule = schedule
        self.server_clock = server_clock
        self._found_ratio = FOUND_AT_FIRST  # of keys that are new here and have a document
        self._max_counters = MAX_COUNTERS
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)

    @property
    def writer(self) -> str:
        """This instance's name in documents."""
        return self._rows.table.host.term.writer

    def flush(self, replicas: Sequence[Replica], report: CycleReport, *, is_urgent: bool = False) -> set[str]:
        """Send the hits of a part of the rows. Raises ``StoreError``; all hits are kept then.

        Returns the names of the rows that had hits and need no further read: all are sent, or the document is damaged.
        """
        to_send = [replica for replica in replicas if not replica.is_clean]
        names = left = [replica.name for replica in to_send]
        doubtful = [each.name for each in to_send if self._is_doubtful(each, is_urgent=is_urgent)]
        self.pull(doubtful, report, is_refresh=True)
        for number in range(1, MAX_ROUNDS + 1):
            if not left:
                break
            report.round_count = max(report.round_count, number)
            left = self._write(left, report)
            if not left or number == MAX_ROUNDS:
                break
            if number > 1:  # after the first round the losers read at once: they know least
                time.sleep(FIRST_PAUSE_S * 2 ** (number - 2) * SystemRandom().random())
            self.pull(left, report, is_refresh=True)
        return set(names).difference(left)

    def _is_doubtful(self, replica: Replica, *, is_urgent: bool) -> bool:
        """Return whether a row is read before it is written, because the write would probably lose the race."""
        document, now_s = replica.document, self._clock()
        if replica.attempt or document.is_quarantined:
            return True
        if document.is_stale and not replica.goes_by_mark(now_s):
            return True
        if is_urgent and replica.writer_count > 1:  # one read gives both their hits and the version
            return True
        if document.version is not None:
            return False
        return self._found_ratio > (REFRESH_RATIO_URGENT if replica.is_urgent_when_new else REFRESH_RATIO)

    def _note_found(self, *, found: bool) -> None:
        self._found_ratio += (found - self._found_ratio) / FOUND_MEMORY

    def pull(self, names: Sequence[str], report: CycleReport, *, is_refresh: bool = False) -> None:
        """Read the documents of a part of the rows and merge them. Raises ``StoreError``.

        ``is_refresh`` is a read before a write, by which it guesses whether the next writes need that, too.
        """
        if not names:
            return
        snapshots = self.store.read([key_of(name) for name in names])
        large = []
        if len(names) > MAX_WHOLE:
            large = [key for key, snapshot in snapshots.items() if snapshot.damage == TOO_LARGE]
        read = [name for name in names if key_of(name) not in large] if large else names
        prunable = {key: self._prunable_of(key, snapshot) for key, snapshot in snapshots.items() if key not in large}
        for step in self._rows.steps(read):
            with self._rows.changing(step) as replicas:
                for replica in replicas:
                    snapshot = snapshots.get(replica.key)
                    self._merge(replica, snapshot, prunable.get(replica.key, NOTHING_PRUNABLE), report, is_refresh)
        report.pulled_count += len(read)
        rest = [name for name in names if key_of(name) in large]
        for start in range(0, len(rest), MAX_WHOLE):
            self.pull(rest[start : start + MAX_WHOLE], report, is_refresh=is_refresh)

    def _prunable_of(self, key: Key, snapshot: Snapshot) -> Prunable:
        if snapshot.damage:
            self._log.error("document_malformed", **_names_of(key), field=snapshot.damage)
        return prunable_of(snapshot, writer=self.writer, store_time_s=self.server_clock.time_s)

    def _merge(
        self, replica: Replica, snapshot: Snapshot | None, prunable: Prunable, report: CycleReport, is_refresh: bool
    ) -> None:
        now_s = self._clock()
        former = replica.document
        report.dropped_hits += replica.note_requests(now_s)
        report.dropped_hits += replica.resolve(self.writer, snapshot, self.server_clock.monotonic())
        new_hits = replica.merge(snapshot, now_s, writer=self.writer, prunable=prunable)
        self._rows.table.host.max_writer_count = max(self._rows.table.host.max_writer_count, replica.writer_count)
        if former.version is None:
            self._note_found(found=snapshot is not None)
        if is_refresh:
            has_changed = replica.document.version != former.version
            # With three writers the last one is mostly another.
            is_others = former.version is not None or replica.writer_count > 1
            replica.document.is_stale = (has_changed and is_others) or replica.writer_count > 2
        remote = None
        if former.version is not None and former.known_s is not None:
            remote = Remote(new_hits, now_s - former.known_s)
        self._schedule(replica, remote)

    def _write(self, names: Sequence[str], report: CycleReport) -> list[str]:
        """Write once, part by part, and return the rows that lost the race.

        After an outage rows have many frames to send. A write that outlasts the timeout goes on in the server, where it
        and the next one wait for each other.
        """
        lost: list[str] = []
        left = list(names)
        while left:
            begun, left = self._begin(left, report)
            if begun:
                lost += self._send(begun, report)
        return lost

    def _begin(self, names: Sequence[str], report: CycleReport) -> tuple[dict[str, Begun], list[str]]:
        """Record attempts for one round trip. Returns them by row, and the rows for which it has no room."""
        begun: dict[str, Begun] = {}
        count = 0
        write_number = self._rows.table.host.term.next_write_number()
        begun_s = self.server_clock.monotonic()
        for step in self._rows.steps(names):
            with self._rows.changing(step) as replicas:
                for replica in replicas:
                    report.dropped_hits += replica.note_requests(self._clock())
                    if replica.is_clean or replica.document.is_quarantined:
                        continue
                    attempt = replica.attempt
                    size = sum(map(len, (attempt.hits if attempt else replica.unsent).values()))
                    if begun and count + size > self._max_counters:
                        return begun, [name for name in names if name not in begun]
                    count += size
                    was_sent = attempt is not None and attempt.was_sent
                    change = replica.begin_write(write_number, self._clock(), begun_s)
                    begun[replica.name] = Begun(change, attempt is not None, was_sent, self.writer)
        return begun, []

    def _send(self, begun: dict[str, Begun], report: CycleReport) -> list[str]:
        """Send writes, and return the rows that lost the race."""
        names = list(begun)
        changes = [each.change for each in begun.values()]
        try:
            result = self.store.compare_and_set(begun[names[0]].writer, changes)
        except StoreUnreachable:  # nothing was sent; after any other error the changes may have been applied
            self._note_unreached(begun)
            raise
        except StoreUnavailable:
            count = sum(len(frames) for change in changes for frames in change.hits.values())
            self._max_counters = max(MIN_COUNTERS, min(count, self._max_counters) // 2)
            raise
        self._max_counters = min(MAX_COUNTERS, 2 * self._max_counters)
        lost = [names[index] for index in result.lost]
        failed = {*lost, *(names[index] for index in result.rejected)}
        repeated = [name for name in names if begun[name].is_repeat]
        rest: list[str] = []  # with hits that came after a write of unknown outcome
        for step in self._rows.steps(names):
            with self._rows.changing(step) as replicas:
                for replica in replicas:
                    if replica.name in failed:
                        replica.fail_write(was_repeated=replica.name in repeated)
                        if replica.name not in lost:  # rejected, and again if it were tried at once
                            self._schedule(replica, None, is_rejected=True)
                    else:
                        self._commit(replica, begun[replica.name].change, report)
                        if replica.has_unsent and replica.name in repeated:
                            rest.append(replica.name)
        for index, reason in result.rejected.items():
            self._log.error("document_rejected", **_names_of(changes[index].key), reason=reason)
        report.flushed_count += len(names) - len(failed)
        report.conflict_count += len(lost)
        return lost + (self._write(rest, report) if rest else [])

    def _note_unreached(self, begun: dict[str, Begun]) -> None:
        for step in self._rows.steps(list(begun)):
            with self._rows.changing(step) as replicas:
                for replica in replicas:
                    if replica.attempt is not None:
                        replica.attempt.was_sent = begun[replica.name].was_sent

    def _commit(self, replica: Replica, change: Change, report: CycleReport) -> None:
        if change.version is None:
            self._note_found(found=False)
        report.over_admitted.update(replica.commit(change, self._clock()))
        self._schedule(replica, None)

    def remove_marks(self, parts: Iterable[Sequence[str]], deadline: Deadline) -> None:
        """Remove this instance's marks from documents until a deadline, because it writes no more.

        Marks stay where an outcome is still unknown, and in damaged documents. Raises ``StoreError``.
        """
        for step in chain.from_iterable(map(self._rows.steps, parts)):
            if deadline.is_over:
                break
            marked = {
                replica.key: replica.document.mark
                for replica in self._rows.load(step)
                if replica.document.mark is not None and replica.attempt is None and not replica.document.is_quarantined
            }
            if marked:
                self.store.remove_marks(self.writer, marked)


def _names_of(key: Key) -> dict[str, str | None]:
    """Return the fields of an event about a document, and what is logged once in a while for each."""
    username = None if key.username is None else logged_name(key.username)
    return {"key": repr(key), "client_id": logged_name(key.client_id), "username": username, "scope": key.scope}
