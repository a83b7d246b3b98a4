"""Log entries about lasting problems, at most one per interval."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

MAX_KEYS = 1000


@dataclass(slots=True, eq=False)
class _Entry:
    logged_at_s: float
    suppressed_count: int = 0


class ThrottledLog:
    """A log that writes each event and key at most once per interval. Thread-safe.

    The next entry carries the number of those left out since, as ``suppressed_count``. Beyond ``MAX_KEYS`` events and
    keys, further ones of the same event share one interval.
    """

    def __init__(
        self, log: "FilteringBoundLogger", interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()  # guards _entries
        self._entries: dict[tuple[str, str | None], _Entry] = {}

    def error(self, event: str, *, key: str | None = None, **facts: Any) -> None:
        """Log an error, unless the same event and key was logged within the interval."""
        self._write(self._log.error, event, key, facts)

    def warning(self, event: str, *, key: str | None = None, **facts: Any) -> None:
        """Log a warning, unless the same event and key was logged within the interval."""
        self._write(self._log.warning, event, key, facts)

    def _write(self, write: Callable[..., None], event: str, key: str | None, facts: dict[str, Any]) -> None:
        suppressed_count = self._admit(event, key)
        if suppressed_count is not None:
            write(event, **facts, **({"suppressed_count": suppressed_count} if suppressed_count else {}))

    def _admit(self, event: str, key: str | None) -> int | None:
        """Return the number of entries left out before this one, None if it is left out, too."""
        now_s = self._clock()
        with self._lock:
            entry = self._entries.get((event, key))
            if entry is None:
                if len(self._entries) >= MAX_KEYS:
                    self._entries = {name: kept for name, kept in self._entries.items() if self._is_recent(kept, now_s)}
                    key = key if len(self._entries) < MAX_KEYS else None
                entry = self._entries.get((event, key))
            if entry is None or not self._is_recent(entry, now_s):
                self._entries[event, key] = _Entry(now_s)
                return entry.suppressed_count if entry else 0
            entry.suppressed_count += 1
            return None

    def _is_recent(self, entry: _Entry, now_s: float) -> bool:
        return entry.logged_at_s <= now_s < entry.logged_at_s + self._interval_s
