"""Logger of structlog if the application has configured it, else of the standard library; and a throttled one."""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

MAX_KEYS = 1000  # of a throttled log
LOST_INTERVAL_S = 600.0  # between two log entries about lost records

left_out: ContextVar[str | None] = ContextVar("left_out", default=None)  # an event that is reported in another way


class _Log:
    def __init__(self, name: str) -> None:
        self._name = name
        self._plain = logging.getLogger(name)

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **facts: Any) -> None:
            if event == left_out.get():
                return
            with suppress(Exception):  # processors and handlers are the application's; an entry may be lost, no request
                structlog = _used_structlog()
                if structlog is not None and structlog.is_configured():
                    getattr(structlog.get_logger(self._name), level)(event, **facts)
                else:
                    # The event is the constant part, by which Sentry groups.
                    extra = {"oauth_ratelimit": {"event": event, **facts}}
                    getattr(self._plain, level)(f"{event} %s", _as_text(facts), extra=extra, stacklevel=2)

        return write


def get_logger(name: str) -> "FilteringBoundLogger":
    """Return the logger of a name. What it cannot write is lost, and it raises nothing.

    A record of the standard library has the event and its values as text, and as a mapping ``record.oauth_ratelimit``.
    """
    return cast("FilteringBoundLogger", _Log(name))


def bound_values() -> Mapping[str, Any]:
    """Return what the application has bound to structlog's context."""
    structlog = _used_structlog()
    return structlog.contextvars.get_contextvars() if structlog else {}


def _used_structlog() -> Any:
    """Return structlog if the application uses it: whoever has configured it has imported it. It takes 20 ms."""
    return sys.modules.get("structlog")


def _as_text(facts: Mapping[str, Any]) -> str:
    """Return ``name=value`` for each fact, on one line as logfmt has it: a value with other characters is quoted."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in sorted(facts.items()))


def _quoted(value: object) -> str:
    text = "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
    if text.isprintable() and not set(text) & set(' ="\\'):
        return text
    # Some characters beyond ASCII also begin a line or control a terminal, and some have no encoding.
    has_others = not text.replace("\n", "").replace("\t", "").isprintable()
    return json.dumps(text, ensure_ascii=has_others).replace("\x7f", r"\u007f")


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


class ErrorsLogged:
    """Context that logs an error and ends without it, unless it is one that passes."""

    __slots__ = ("_log_error", "_passing")

    def __init__(self, log_error: Callable[[Exception], None], passing: type[Exception]) -> None:
        self._log_error = log_error
        self._passing = passing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: object) -> bool:
        if not isinstance(exc, Exception) or isinstance(exc, self._passing):
            return False
        self._log_error(exc)
        return True


class LostRecords:
    """Number of lost records, logged at most once in ten minutes. Thread-safe."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._lock = threading.Lock()  # guards the attributes below
        self._count = 0
        self._reason = ""
        self._next_s = -LOST_INTERVAL_S

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
            self._count, self._next_s = 0, now_s + LOST_INTERVAL_S
        get_logger(__name__).warning(self._event, count=count, reason=reason)
