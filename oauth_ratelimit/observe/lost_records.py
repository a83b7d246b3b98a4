"""Number of records that never reach MongoDB."""

import threading
import time

from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

INTERVAL_S = 600.0  # between two log entries


class LostRecords:
    """Counts lost records, and logs an event about them at most once in ten minutes. Thread-safe."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._lock = threading.Lock()  # guards the attributes below
        self._count = 0
        self._reason = ""
        self._next_s = -INTERVAL_S

    def add(self, count: int, *, reason: str) -> None:
        if count:
            with self._lock:
                self._count += count
                self._reason = reason

    def log(self, *, is_final: bool = False) -> None:
        """Log the number and the last reason, unless none is lost or, before the end, the last entry is too recent."""
        with self._lock:
            now_s = time.monotonic()
            count, reason = self._count, self._reason
            if not count or (now_s < self._next_s and not is_final):
                return
            self._count, self._next_s = 0, now_s + INTERVAL_S
        log.warning(self._event, count=count, reason=reason)
