"""Number of records that never reach MongoDB."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

INTERVAL_S = 600.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that were lost since the last log entry.

    Args:
        count: Number of lost records.
        reason: Reason for the last loss.
    """

    count: int
    reason: str


class LostRecords:
    """Counts lost records, to be logged at most once in ten minutes. Thread-safe.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the attributes below
        self._count = 0
        self._reason = ""
        self._next_s = -INTERVAL_S

    def add(self, count: int, *, reason: str) -> None:
        """Count lost records."""
        if count:
            with self._lock:
                self._count += count
                self._reason = reason

    def take(self, *, is_final: bool = False) -> Loss | None:
        """Return the loss to log now, None if there is none or if the last entry is too recent.

        Args:
            is_final: True for the last entry, which is never held back.
        """
        with self._lock:
            now_s = self._clock()
            if not self._count or (now_s < self._next_s and not is_final):
                return None
            loss = Loss(self._count, self._reason)
            self._count, self._next_s = 0, now_s + INTERVAL_S
            return loss
