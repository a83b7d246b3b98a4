"""How the page reads MongoDB: never for long, and not more often than somebody could look.

The page runs in the processes that issue tokens. A request for it may keep one of their threads waiting for the timeout
of the database, so while MongoDB is out of reach one request finds that out and the others are told at once; and what
several open pages ask for is read once.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.operations.context import OperatorContext

DOWN_S = 3.0  # so long nobody asks again
KEPT_COUNT = 20  # answers; what was recorded of a week takes some megabytes

Question = Mapping[str, str]
"""The arguments of a request."""

Found = TypeVar("Found")


class NothingToRead(Exception):
    """There is no database to read; the message says why."""


class ReadCache:
    """What one application's page has read. Thread-safe.

    Args:
        gate: The application's part of the extension.
    """

    def __init__(self, gate: AppLimiter) -> None:
        self._gate = gate
        self._lock = threading.Lock()  # guards the two below
        self._kept: dict[Hashable, tuple[float, object]] = {}  # when it is too old, by the monotonic clock; the answer
        self._down: tuple[float, str] | None = None  # until when, by the monotonic clock; why

    def read(self, look: Callable[[OperatorContext], Found]) -> Found:
        """Return what a look at the database finds.

        Raises:
            NothingToRead: There is none.
            StoreError: It does not answer, or did not a moment ago.
        """
        self._refuse_while_down()
        try:
            found = look(self._context())
        except StoreUnavailable as exc:
            with self._lock:
                self._down = (time.monotonic() + DOWN_S, str(exc))
            raise
        with self._lock:
            self._down = None
        return found

    def read_once(self, name: Hashable, look: Callable[[OperatorContext], Found], *, keep_s: float) -> Found:
        """Return what a look finds, or what one of the same name has found a moment ago."""
        now_s = time.monotonic()
        with self._lock:
            until_s, kept = self._kept.get(name, (0.0, None))
        if now_s < until_s:
            return kept  # type: ignore[return-value]  # a name stands for one look
        found = self.read(look)
        with self._lock:
            if len(self._kept) >= KEPT_COUNT:
                self._kept.clear()
            self._kept[name] = (time.monotonic() + keep_s, found)
        return found

    def forget(self) -> None:
        """Forget all answers: something was changed."""
        with self._lock:
            self._kept.clear()

    def _refuse_while_down(self) -> None:
        with self._lock:
            if self._down is not None:
                until_s, reason = self._down
                if time.monotonic() < until_s:
                    raise StoreUnavailable(reason)
                # This request finds out; those that come meanwhile are still told what was known.
                self._down = (time.monotonic() + DOWN_S, reason)

    def _context(self) -> OperatorContext:
        if self._gate.is_switched_off:
            raise NothingToRead("OAUTH_RATELIMIT_MODE=off switches everything off in this process, this page included.")
        context = self._gate.context()
        if context is None:
            raise NothingToRead("Counters are not shared: the configuration has no store.uri.")
        return context
