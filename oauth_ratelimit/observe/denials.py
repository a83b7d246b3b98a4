"""Takes denials to MongoDB, now and then and in bulk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import structlog

from oauth_ratelimit.core.denial_record import DenialRecord
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe.events import DenialEvents, Logged

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 10.0
BATCH = 500  # one bulk must not keep the interpreter busy for long
COMPLAIN_EVERY_S = 600.0
CLOSING_S = 2.0  # the limiter's own last flush takes of the same time
MAX_ENTRIES = 10_000  # twice what may wait in DenialEvents


class DenialWriter(Protocol):
    """Where records go: ``store.denials.DenialStore``."""

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None: ...


@dataclass(slots=True)
class _Entry:
    """A denial whose record may have to be brought up to date."""

    logged: Logged
    last_at_s: float
    seen_count: int = 0  # of suppressed ones, when somebody looked last
    written_count: int = -1

    def look(self, now_s: float) -> None:
        """Note whether more were suppressed."""
        count = self.logged.suppression.suppressed_count
        if count != self.seen_count:
            self.seen_count = count
            self.last_at_s = max(self.last_at_s, min(now_s, self.logged.suppression.until_s))


class DenialRecorder:
    """A duty of the background thread: one record per key and minute, brought up to date while more are suppressed.

    What waits is bounded here and in ``DenialEvents``; what is lost for that is logged with its number.

    Args:
        events: What was denied; it must keep records.
        store: Where records go.
        instance: The name of this process.
        keep_s: Returns how long records are kept; 0.0 for not at all.
        offset_s: Returns how far the right time, which denials go by, is ahead of the clock.
    """

    def __init__(
        self,
        events: DenialEvents,
        store: DenialWriter,
        *,
        instance: str,
        keep_s: Callable[[], float],
        offset_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._events = events
        self._store = store
        self._instance = instance
        self._keep_s = keep_s
        self._offset_s = offset_s
        self._entries: list[_Entry] = []
        self._due: list[_Entry] = []
        self._next_s = 0.0
        self._now_s = 0.0
        self._complain_at_s = 0.0
        self._lost_count = 0

    def run(self, now_s: float) -> None:
        """Write what is new, if it is time to; one bulk at most, because the next sync cycle waits for it."""
        self._now_s = right_s = now_s + self._offset_s()
        if not self._next_s - WRITE_EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + WRITE_EVERY_S
            self._gather(right_s)
        if self._due and not self._write_batch(right_s):
            self._due = []  # the next round tries again

    def close(self) -> None:
        """Write what is left, as far as two seconds go."""
        now_s = self._now_s + WRITE_EVERY_S
        deadline_s = monotonic() + CLOSING_S
        self._gather(now_s)
        while self._due and monotonic() < deadline_s and self._write_batch(now_s):
            pass
        left_count = sum(entry.written_count < 0 for entry in self._due)
        if left_count:
            self._complain_at_s = 0.0
            self._complain(left_count, now_s, reason="the process has ended")

    def _gather(self, now_s: float) -> None:
        """Line up what is to be written, new records first, and forget what has been."""
        self._entries = [
            entry
            for entry in self._entries
            if now_s < entry.logged.suppression.until_s
            or entry.written_count != entry.logged.suppression.suppressed_count
        ]
        self._take(now_s)
        self._due = [entry for entry in self._entries if entry.seen_count != entry.written_count]
        self._due.sort(key=lambda entry: entry.written_count >= 0)

    def _write_batch(self, now_s: float) -> bool:
        """Write the first in line, and return whether there was an answer."""
        batch = self._due[:BATCH]
        try:
            self._store.put([self._record(entry) for entry in batch], keep_s=self._keep_s())
        except StoreUnavailable:
            return False
        except Exception as exc:  # noqa: BLE001  # one that cannot be written must not keep back all that come after it
            self._complain(len(batch), now_s, reason=str(exc) if isinstance(exc, StoreRejected) else repr(exc))
            lost = set(map(id, batch))
            self._entries = [entry for entry in self._entries if id(entry) not in lost]
        for entry in batch:
            entry.written_count = entry.seen_count
        del self._due[:BATCH]
        return True

    def _take(self, now_s: float) -> None:
        """Take over what was denied, and look at what has become of the rest."""
        new_count = sum(entry.written_count < 0 for entry in self._entries)
        new = self._events.take(
            MAX_ENTRIES - new_count
        )  # the rest waits there, where it is known when there is no room
        if not self._keep_s():
            self._entries = []
            return
        self._entries += [_Entry(logged, logged.denial.at_s, logged.before_count) for logged in new]
        for entry in self._entries:
            entry.look(now_s)
        dropped, self._events.dropped_count = self._events.dropped_count, 0
        if len(self._entries) > MAX_ENTRIES:
            self._entries.sort(key=lambda entry: entry.written_count < 0)
            self._entries = self._entries[-MAX_ENTRIES:]  # those in MongoDB are found without their last count, too
        if dropped:
            self._complain(dropped, now_s, reason="more than can wait; the answers had no decision id")

    def _record(self, entry: _Entry) -> DenialRecord:
        return DenialRecord(
            entry.logged.denial,
            instance=self._instance,
            last_at_s=entry.last_at_s,
            suppressed_count=entry.seen_count - entry.logged.before_count,
        )

    def _complain(self, count: int, now_s: float, *, reason: str) -> None:
        """Say how many denials cannot be found again, once in a while."""
        self._lost_count += count
        if not self._complain_at_s - COMPLAIN_EVERY_S <= now_s < self._complain_at_s:
            log.warning("denials_unrecorded", count=self._lost_count, reason=reason)
            self._complain_at_s = now_s + COMPLAIN_EVERY_S
            self._lost_count = 0
