"""Records of denials on their way to the store, so that each can be explained later."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from oauth_ratelimit.core.cached_denial import SuppressionPeriod
from oauth_ratelimit.core.denial_record import Denial, DenialRecord
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe.lost_records import LostRecords
from oauth_ratelimit.process.deadline import Deadline

log = structlog.get_logger(__name__)

MAX_QUEUED = 5000  # a few MB
MAX_ENTRIES = 10_000
WRITE_EVERY_S = 10.0
BATCH = 500  # records; one bulk must not keep the interpreter busy for long


class DenialWriter(Protocol):
    """Store of denial records."""

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None: ...


class PendingDenial(NamedTuple):
    """Denial that is not recorded yet, with the count of suppressed denials after it.

    Attributes:
        denial: First denial of its key in a minute.
        period: Counts the denials after it.
        before_count: Count of the period at the first denial; it includes that denial if it was not logged.
    """

    denial: Denial
    period: SuppressionPeriod
    before_count: int


class DenialQueue:
    """Denials that are not recorded yet: filled by requests, emptied by one background thread. Takes no lock."""

    def __init__(self) -> None:
        self._denials: deque[PendingDenial] = deque()
        self._dropped_count = 0

    def has_room(self) -> bool:
        """Return True if one more denial can be queued, else count it as dropped."""
        has_room = len(self._denials) < MAX_QUEUED
        self._dropped_count += not has_room
        return has_room

    def put(self, pending: PendingDenial) -> None:
        """Add a denial."""
        self._denials.append(pending)

    def take(self, max_count: int) -> list[PendingDenial]:
        """Remove and return denials, the oldest first."""
        return [self._denials.popleft() for _ in range(min(max_count, len(self._denials)))]

    def take_dropped_count(self) -> int:
        """Return the number of denials dropped since the last call."""
        count, self._dropped_count = self._dropped_count, 0
        return count

    def clear(self) -> None:
        """Remove all denials."""
        self._denials.clear()
        self._dropped_count = 0


@dataclass(slots=True)
class _Entry:
    """Denial whose record is written, and updated while its count grows."""

    pending: PendingDenial
    seen_count: int  # of suppressed denials
    written_count: int = -1  # not written yet

    @property
    def is_new(self) -> bool:
        return self.written_count < 0

    def is_finished(self, now_s: float) -> bool:
        """Return True if the record is written and will not change again."""
        period = self.pending.period
        return now_s >= period.until_s and self.written_count == period.suppressed_count


class DenialRecorder:
    """Writes one record per key and minute with denials, and updates it while more of them are suppressed.

    A task of the background thread. Memory is bounded here and in the queue; ``denials_unrecorded`` says how many
    records are lost.

    Args:
        queue: Denials to record.
        writer: Store of the records.
        instance: Name of this process.
        keep_s: Returns the seconds to keep records; 0.0 to record none.
        clock: Returns the corrected time, seconds since the epoch.
    """

    def __init__(
        self,
        queue: DenialQueue,
        writer: DenialWriter,
        *,
        instance: str,
        keep_s: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._writer = writer
        self._instance = instance
        self._keep_s = keep_s
        self._clock = clock
        self._entries: list[_Entry] = []
        self._due: list[_Entry] = []
        self._next_s = 0.0
        self._lost = LostRecords()

    def run(self) -> None:
        """Write one bulk at most, because the next sync cycle waits for it."""
        now_s = self._clock()
        if not self._next_s - WRITE_EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + WRITE_EVERY_S
            self._collect_due(now_s)
        if self._due and not self._write_batch():
            self._due = []  # the next round tries again
        self._log_lost()

    def close(self, deadline: Deadline | None = None) -> None:
        """Write the remaining records.

        Args:
            deadline: When to give up; None gives it all the time that a process has to end.
        """
        deadline = deadline or Deadline()
        self._collect_due(self._clock())
        while self._due and not deadline.is_over and self._write_batch():
            pass
        self._lost.add(sum(entry.is_new for entry in self._due), reason="the process has ended")
        self._log_lost(is_final=True)

    def _log_lost(self, *, is_final: bool = False) -> None:
        loss = self._lost.take(is_final=is_final)
        if loss is not None:
            log.warning("denials_unrecorded", count=loss.count, reason=loss.reason)

    def _collect_due(self, now_s: float) -> None:
        """Collect the records to write, new ones first, and drop finished ones."""
        self._entries = [entry for entry in self._entries if not entry.is_finished(now_s)]
        new_count = sum(entry.is_new for entry in self._entries)
        queued = self._queue.take(MAX_ENTRIES - new_count)  # the rest stays in the queue until there is room
        dropped_count = self._queue.take_dropped_count()
        if not self._keep_s():
            self._entries, self._due = [], []
            return
        self._lost.add(dropped_count, reason="the queue was full; the answers had no decision_id")
        self._entries += [_Entry(pending, pending.before_count) for pending in queued]
        for entry in self._entries:
            entry.seen_count = entry.pending.period.suppressed_count
        if len(self._entries) > MAX_ENTRIES:
            self._entries.sort(key=lambda entry: entry.is_new)
            self._entries = self._entries[-MAX_ENTRIES:]  # the dropped ones are written, without their last count
        self._due = [entry for entry in self._entries if entry.seen_count != entry.written_count]
        self._due.sort(key=lambda entry: not entry.is_new)

    def _write_batch(self) -> bool:
        """Write the first due records. Return True if the store answered."""
        batch = self._due[:BATCH]
        try:
            self._writer.put([self._record(entry) for entry in batch], keep_s=self._keep_s())
        except StoreUnavailable:
            return False
        except Exception as exc:  # noqa: BLE001  # a record that cannot be written must not block later ones
            self._lost.add(len(batch), reason=str(exc) if isinstance(exc, StoreRejected) else repr(exc))
            rejected = set(map(id, batch))
            self._entries = [entry for entry in self._entries if id(entry) not in rejected]
        for entry in batch:
            entry.written_count = entry.seen_count
        del self._due[:BATCH]
        return True

    def _record(self, entry: _Entry) -> DenialRecord:
        denial, period, before_count = entry.pending
        return DenialRecord(
            denial,
            instance=self._instance,
            last_at_s=max(denial.at_s, period.last_at_s),
            suppressed_count=entry.seen_count - before_count,
        )
