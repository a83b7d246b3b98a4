"""Cached reads from MongoDB that do not hold up token requests.

The page runs in the processes that issue tokens, and a read may block a thread until the timeout of MongoDB. While
MongoDB is unreachable, one request tries it and the others fail at once. Answers for several open pages are read once.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.operations.context import OperatorContext

RETRY_AFTER_S = 3.0  # between two attempts to reach MongoDB
MAX_ANSWERS = 20  # recorded traffic of a week takes some megabytes

Params = Mapping[str, str]
"""The arguments of a request."""

Answer = TypeVar("Answer")


class NothingShared(Exception):
    """There is no shared database to read; the message has the reason."""


class ReadCache:
    """Reads for the page of one application, and their recent answers. Thread-safe.

    Args:
        app_limiter: The extension's part of the application.
    """

    def __init__(self, app_limiter: AppLimiter) -> None:
        self._app_limiter = app_limiter
        self._lock = threading.Lock()  # guards the two below
        self._answers: dict[Hashable, tuple[float, object]] = {}  # with their end, by the monotonic clock
        self._outage: tuple[float, str] | None = None  # next attempt, by the monotonic clock, and the error

    def read(self, query: Callable[[OperatorContext], Answer]) -> Answer:
        """Return the answer to a query.

        Raises:
            NothingShared: There is no shared database.
            StoreError: MongoDB is unreachable, or was a moment ago, or rejects the query.
        """
        self._raise_during_outage()
        try:
            answer = query(self._context())
        except StoreUnavailable as exc:
            with self._lock:
                self._outage = (time.monotonic() + RETRY_AFTER_S, str(exc))
            raise
        with self._lock:
            self._outage = None
        return answer

    def read_cached(self, key: Hashable, query: Callable[[OperatorContext], Answer], *, ttl_s: float) -> Answer:
        """Return the answer to a query, or a recent answer under the same key."""
        with self._lock:
            end_s, answer = self._answers.get(key, (0.0, None))
        if time.monotonic() < end_s:
            return answer  # type: ignore[return-value]  # a key belongs to one query
        fresh = self.read(query)
        with self._lock:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = (time.monotonic() + ttl_s, fresh)
        return fresh

    def clear(self) -> None:
        """Drop all answers."""
        with self._lock:
            self._answers.clear()

    def _raise_during_outage(self) -> None:
        with self._lock:
            if self._outage is not None:
                retry_s, reason = self._outage
                if time.monotonic() < retry_s:
                    raise StoreUnavailable(reason)
                # This request tries; the others keep failing at once in the meantime.
                self._outage = (time.monotonic() + RETRY_AFTER_S, reason)

    def _context(self) -> OperatorContext:
        if self._app_limiter.is_switched_off:
            raise NothingShared("OAUTH_RATELIMIT_MODE=off switches everything off in this process, this page included.")
        context = self._app_limiter.context()
        if context is None:
            raise NothingShared("Counters are not shared: the configuration has no store.uri.")
        return context
