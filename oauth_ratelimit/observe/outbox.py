"""
What statistics are on their way to MongoDB, in bulks, and how many were lost.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

import structlog

from oauth_ratelimit.core.statistics import Share
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe.minute import OpenMinute
from oauth_ratelimit.process.yielding import gently

log = structlog.get_logger(__name__)

BATCH = 500  # one bulk must not keep the interpreter busy for long
COMPLAIN_EVERY_S = 600.0


class StatisticsWriter(Protocol):
    """
    Where statistics go: ``store.statistics.StatisticsStore``.
    """

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> Sequence[int]: ...


class Entry(NamedTuple):
    """
    What is to be written of a client.

    Attributes:
        writer: Under whose name.

        minute_s: When the minute began, seconds since the epoch.

        client: The counts.

        is_complete: Whether the minute is over, so that they stay as they are.
    """

    writer: str
    minute_s: int
    client: OpenMinute
    is_complete: bool


class Outbox:
    """
    A line of entries. The background thread alone uses it, but for ``lose``.

    Args:
        store: Where statistics go.

        lock: Guards the counts of clients in a minute that is not over.
    """

    def __init__(self, store: StatisticsWriter, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock
        self._queue: deque[Entry] = deque()
        self._complain_at_s = 0.0
        self._loss_lock = threading.Lock()  # guards what follows
        self._lost_count = 0
        self._reason = ""

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def complete(self) -> list[Entry]:
        """
        The entries in line whose minute is over.
        """
        return [entry for entry in self._queue if entry.is_complete]

    def refill(self, entries: Iterable[Entry]) -> None:
        """
        Take these entries instead of those in line.
        """
        self._queue = deque(entries)

    def write_batch(self, *, keep_s: float) -> bool:
        """
        Write the first in line, and return whether there was an answer.
        """
        batch = self._take_batch()
        shares: list[Share] = []
        counts: list[int] = []
        for entry in gently(batch):
            with self._lock if not entry.is_complete else nullcontext():  # requests have no hold of one that is over
                counts.append(entry.client.count)
                minute = entry.client.minute(entry.minute_s, is_complete=entry.is_complete)
            shares.append(Share(minute, entry.is_complete))
        try:
            refused = self._store.put(batch[0].writer, shares, keep_s=keep_s)
        except StoreUnavailable:
            self._queue.extendleft(reversed(batch))
            return False
        except StoreRejected as exc:
            self._lose_entries(batch, reason=str(exc))
            return False
        self._lose_entries([batch[index] for index in refused], reason="something else is in their place")
        for entry, count in zip(batch, counts, strict=True):
            entry.client.written_count = count
        return True

    def _take_batch(self) -> list[Entry]:
        """
        Return the first in line that one writer has, out of it.
        """
        batch = [self._queue.popleft()]
        while self._queue and len(batch) < BATCH and self._queue[0].writer == batch[0].writer:
            batch.append(self._queue.popleft())
        return batch

    def lose(self, count: int, *, reason: str | None = None) -> None:
        """
        Note that the minutes of so many clients are lost; without a reason, for the last one given.
        """
        with self._loss_lock:
            self._lost_count += count
            self._reason = reason or self._reason

    def _lose_entries(self, entries: Sequence[Entry], *, reason: str) -> None:
        count = sum(entry.is_complete for entry in entries)  # the others come again
        if count:
            self.lose(count, reason=reason)

    def complain(self, now_s: float) -> None:
        """
        Say how many minutes of clients are missing, once in a while; at infinity whatever was said before.
        """
        if not self._lost_count or self._complain_at_s - COMPLAIN_EVERY_S <= now_s < self._complain_at_s:
            return
        self._complain_at_s = now_s + COMPLAIN_EVERY_S
        with self._loss_lock:
            count, self._lost_count = self._lost_count, 0
        log.warning("statistics_unrecorded", count=count, reason=self._reason)
