"""Records of denials on their way to the store, so that each can be explained later."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from oauth_ratelimit.core.denial_record import Denial, DenialRecord
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import LostRecords

MAX_WAITING = 10_000  # records that are not written yet, some MB
MAX_ENTRIES = 15_000
NO_ROOM = "the queue was full; the answers had no decision_id"
WRITE_EVERY_S = 10.0
BATCH = 500  # records; one bulk must not keep the interpreter busy for long


class DenialWriter(Protocol):
    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None: ...


@dataclass(slots=True, eq=False)
class SuppressionPeriod:
    """Time after a denial in which further ones of its key are counted and not logged; all have its id."""

    denial: Denial
    until_s: float  # earliest time of the next event
    unlogged_before: int = 0  # denials before it that no event has counted yet
    suppressed_count: int = 0  # denials since then
    last_at_s: float = 0.0  # time of the last of them, 0.0 if there is none
    written_count: int = -1  # of those, in the record; -1 without one

    @property
    def is_new(self) -> bool:
        return self.written_count < 0

    @property
    def is_due(self) -> bool:
        return self.written_count != self.suppressed_count

    def record(self, instance: str) -> DenialRecord:
        last_at_s = max(self.denial.at_s, self.last_at_s)
        return DenialRecord(self.denial, instance, last_at_s, self.suppressed_count)


class DenialRecorder:
    """Writes one record per key and minute with denials, and updates it while more of them are suppressed.

    Requests fill its queue without a lock; the rest is a task of the background thread. Memory is bounded;
    ``denials_unrecorded`` says how many records are lost.
    """

    def __init__(
        self,
        writer: DenialWriter,
        *,
        instance: Callable[[], str],
        keep_s: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._instance = instance
        self._keep_s = keep_s
        self._clock = clock
        self._queue: deque[SuppressionPeriod] = deque()  # filled by requests
        self._entries: list[SuppressionPeriod] = []
        self._due: list[SuppressionPeriod] = []
        self._unwritten_count = 0  # of the entries, when they were collected
        self._next_s = 0.0
        self._lost = LostRecords("denials_unrecorded")

    def has_room(self) -> bool:
        """Return True if one more denial can be queued, else count it as lost, unless none is kept."""
        has_room = len(self._queue) + self._unwritten_count < MAX_WAITING
        if not has_room and self._keep_s():
            self._lost.add(1, reason=NO_ROOM)
        return has_room

    def put(self, period: SuppressionPeriod) -> None:
        """Add the first denial of a key in a minute."""
        self._queue.append(period)

    def run(self) -> None:
        """Write one bulk at most, because the next sync cycle waits for it."""
        now_s = self._clock()
        if not self._next_s - WRITE_EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + WRITE_EVERY_S
            self._collect_due(now_s)
        if self._due and not self._write_batch():
            self._due = []  # the next round tries again
        self._lost.log()

    def close(self, deadline: Deadline) -> None:
        self._collect_due(self._clock())
        while self._due and not deadline.is_over and self._write_batch():
            pass
        self._lost.add(sum(entry.is_new for entry in self._due), reason="the process has ended")
        self._lost.log(is_final=True)

    def _collect_due(self, now_s: float) -> None:
        """Collect the records to write, new ones first, and drop finished ones."""
        entries = [entry for entry in self._entries if entry.is_due or now_s < entry.until_s]
        entries += [self._queue.popleft() for _ in range(len(self._queue))]
        entries.sort(key=lambda entry: not entry.is_new)
        # Those beyond the maximum are written, without their last count.
        self._entries = entries[:MAX_ENTRIES] if self._keep_s() else []
        self._due = [entry for entry in self._entries if entry.is_due]
        self._unwritten_count = sum(entry.is_new for entry in self._entries)

    def _write_batch(self) -> bool:
        """Write the first due records. Return True if the store answered."""
        batch = self._due[:BATCH]
        records = [entry.record(self._instance()) for entry in batch]
        try:
            self._writer.put(records, keep_s=self._keep_s())
        except StoreUnavailable:
            return False
        except Exception as exc:  # noqa: BLE001  # a record that cannot be written must not block later ones
            self._lost.add(len(batch), reason=str(exc) if isinstance(exc, StoreRejected) else repr(exc))
            rejected = set(batch)
            self._entries = [entry for entry in self._entries if entry not in rejected]
        for entry, record in zip(batch, records, strict=True):
            entry.written_count = record.suppressed_count
        del self._due[:BATCH]
        return True
