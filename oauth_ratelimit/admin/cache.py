"""Sources of the page: reads from MongoDB that hold up no token request, and checked arguments.

The page runs in the processes that issue tokens, and a read may block a thread until the timeout of MongoDB. While
MongoDB is unreachable, one request tries it and the others fail at once. Answers for several open pages are read once.
"""

import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from oauth_ratelimit.config.errors import show
from oauth_ratelimit.errors import StoreError, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.status import is_lagging

RETRY_AFTER_S = 3.0  # between two attempts to reach MongoDB
MAX_ANSWERS = 40  # recorded traffic of a week takes some megabytes
WAIT_S = 5.0  # for another request that reads the same

MAX_TIME_S = 10**11

Answer = TypeVar("Answer")
Params = Mapping[str, str]
"""The arguments of a request. A ``ValueError`` says what is allowed."""

ONLY_THE_PAGE = "Only this page cannot read: counters are synchronised, and limits are enforced as usual."
MEANWHILE = (
    "Limits are still enforced, from memory: each host counts its own requests, and sends them when MongoDB answers "
    "again. Until then this page shows what it read before, as of the time beside it, and cannot change overrides."
)

UNREADABLE = (
    "The configuration file is invalid, and this process has read no store.uri from it, so this page shows nothing. "
    "The log has the problems (config_rejected), check-config lists them."
)


class NothingShared(Exception):
    """There is no shared database to read; the message has the reason."""


class ReadCache:
    """Reads for the page of one application, and their recent answers. Thread-safe."""

    def __init__(self, app_limiter: AppLimiter) -> None:
        self.app_limiter = app_limiter
        self._lock = threading.Lock()  # guards the four below
        self._answers: dict[Hashable, tuple[float, object]] = {}  # with their end, by the monotonic clock
        self._reading: dict[Hashable, threading.Lock] = {}  # each is held while its answer is read
        self._outage: tuple[float, StoreUnavailable] | None = None  # next attempt, by that clock, and the error
        self._last_answer_s: float | None = None  # before the present outage, seconds since the epoch

    def read(self, query: Callable[[OperatorContext], Answer]) -> Answer:
        """Return the answer to a query.

        Raises ``NothingShared``, and ``StoreError`` if MongoDB is unreachable, or was just now, or rejects the query.
        """
        self._raise_during_outage()
        try:
            answer = query(self._context())
        except StoreUnavailable as exc:
            last_answer_s = self.app_limiter.now_s() - self.app_limiter.health().lag_s
            with self._lock:
                self._last_answer_s = self._last_answer_s or last_answer_s
                self._outage = (time.monotonic() + RETRY_AFTER_S, type(exc)(_reason(exc)))
            raise
        with self._lock:
            self._outage = self._last_answer_s = None
        return answer

    def read_cached(
        self, key: Hashable, query: Callable[[OperatorContext], Answer], *, ttl_s: float | Callable[[Any], float]
    ) -> Answer:
        """Return the answer to a query, or a recent one under the same key. Only one request at a time reads it.

        While MongoDB is unreachable or slow, the last answer is recent enough.
        """
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        if not reading.acquire(timeout=WAIT_S):
            raise StoreUnavailable("another request has been reading this for seconds")
        try:
            with self._lock:
                end_s, answer = self._answers.get(key, (-1.0, None))
            if time.monotonic() < end_s:
                return answer  # type: ignore[return-value]  # a key belongs to one query
            try:
                fresh = self.read(query)
            except StoreUnavailable:
                if end_s < 0:
                    raise
                return answer  # type: ignore[return-value]  # as above
            with self._lock:
                if len(self._answers) >= MAX_ANSWERS:
                    self._answers.clear()
                    self._reading = {key: reading}
                self._answers[key] = (time.monotonic() + (ttl_s(fresh) if callable(ttl_s) else ttl_s), fresh)
            return fresh
        finally:
            reading.release()

    def outage(self, error: StoreError) -> tuple[str, float | None]:
        """Return what a failed read means for people, and since when nothing is shared, unless only the page fails."""
        lag_s = self.app_limiter.health().lag_s
        if not is_lagging(lag_s, self.app_limiter.settings.sync.interval_s) and not isinstance(error, StoreUnreachable):
            return f"{_reason(error)}. {ONLY_THE_PAGE}", None
        # An idle process has nothing to synchronise, so its lag stays short; the first failed read counts.
        with self._lock:
            last_answer_s = self._last_answer_s
        return f"{_reason(error)}. {MEANWHILE}", last_answer_s or self.app_limiter.now_s() - lag_s

    @property
    def failure(self) -> StoreUnavailable | None:
        """Error of the last read; None if MongoDB has answered it."""
        with self._lock:
            return self._outage and self._outage[1]

    def expire(self) -> None:
        """Have all answers read anew, because something was changed."""
        with self._lock:
            self._answers = {key: (0.0, answer) for key, (_, answer) in self._answers.items()}

    def _raise_during_outage(self) -> None:
        with self._lock:
            if self._outage is not None:
                retry_s, error = self._outage
                if time.monotonic() < retry_s:
                    raise type(error)(str(error), code=error.code)  # a raised exception would keep its tracebacks
                # This request tries; the others keep failing at once in the meantime.
                self._outage = (time.monotonic() + RETRY_AFTER_S, error)

    def _context(self) -> OperatorContext:
        if self.app_limiter.is_switched_off:
            raise NothingShared("OAUTH_RATELIMIT_MODE=off switches everything off in this process, this page included.")
        context = self.app_limiter.context()
        if context is None and self.app_limiter.health().rejection is not None:
            raise NothingShared(UNREADABLE)
        if context is None and self.app_limiter.settings.store.uri is not None:
            raise NothingShared(
                "Counters are not shared with other hosts: store.uri was added after this process has started."
            )
        if context is None:
            raise NothingShared(
                "Nothing is shared with other hosts: the configuration has no store.uri. Charts and tables need it."
            )
        return context


def kept(ttl_s: float | Callable[[Any], float]) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Return a decorator: a query becomes a function of a cache, which keeps the answer to each of its arguments."""

    def decorate(query: Callable[..., Answer]) -> Callable[..., Answer]:
        def read(cache: ReadCache, *args: Hashable) -> Answer:
            return cache.read_cached((query, *args), lambda context: query(context, *args), ttl_s=ttl_s)

        return read

    return decorate


def _reason(error: StoreError) -> str:
    """Return an error without the names of the driver's classes."""
    name = "" if "(" in error.code else error.code  # a code of MongoDB is worth showing
    return str(error).replace(f": {name}, ", ": ").removesuffix(f": {name}")


def choice(params: Params, name: str, allowed: Sequence[str], default: str) -> str:
    value = params.get(name) or default
    if value not in allowed:
        raise ValueError(f"{name}: got {show(value)}, allowed: {', '.join(allowed)}")
    return value


def whole(params: Params, name: str, default: int, *, least: int = 0, most: int = MAX_TIME_S) -> int:
    text = params.get(name) or str(default)
    if not re.fullmatch("-?[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise ValueError(f"{name}: got {show(text)}, allowed: a whole number from {least} to {most}")
    return int(text)


def named_client(params: Params) -> str:
    return checked_client_id(params.get("id", ""))


def client_or_all(params: Params) -> str | None:
    return named_client(params) if params.get("id") else None
