"""Sources of the page: reads from MongoDB that hold up no token request, and checked arguments.

The page runs in the processes that issue tokens, and a read may block a thread until the timeout of MongoDB. While
MongoDB is unreachable, one request tries it and the others fail at once. What a page shows is of one reading, which
open pages of the same share.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from oauth_ratelimit.config.errors import show
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import StoreError, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.status import is_lagging

RETRY_AFTER_S = 3.0  # between two attempts to reach MongoDB
MAX_ANSWERS = 40  # recorded traffic of a week takes some megabytes
READING_S = 2.0  # for which open pages of the same share a reading
WAIT_S = 5.0  # for another request that reads the same

MAX_TIME_S = 10**11

Answer = TypeVar("Answer")
Ttl = float | Callable[[Any], float]
"""Seconds for which an answer is kept; a function of the answer if the page shows it with its time."""
Params = Mapping[str, str]
"""The arguments of a request. A ``ValueError`` says what is allowed."""

ONLY_THE_PAGE = "Only this page cannot read: counters are synchronised, and limits apply as usual."
MEANWHILE = (
    "Limits apply as before, from memory: each host counts its own requests, and sends them when MongoDB answers again."
)
OFF = "Limits are off in this process: nobody is denied."
SHOWN = (
    "Until MongoDB answers this page shows what it read before, as of the time beside it, and cannot change overrides."
)

NO_URI = "Nothing is shared with other hosts: the configuration has no store.uri. Charts and tables need it."
NOT_YET = "Counters are not shared with other hosts: store.uri was added after this process has started."
UNREADABLE = (
    "The configuration file is invalid, and this process has read no store.uri from it, so this page shows nothing. "
    "The log has the problems (config_rejected), check-config lists them."
)


class NothingShared(Exception):
    """There is no shared database to read; the message has the reason."""


class ReadCache:
    """Readings of one application for its pages, and their recent answers. Thread-safe."""

    def __init__(self, app_limiter: AppLimiter) -> None:
        self.app_limiter = app_limiter
        self._lock = threading.Lock()  # guards the four below
        self._answers: dict[Hashable, tuple[float, float, Any]] = {}  # with the times of their readings
        self._readings: dict[Hashable, Reading] = {}
        self._outage: tuple[float, StoreUnavailable] | None = None  # next attempt, by that clock, and the error
        self._last_answer_s: float | None = None  # before the present outage, seconds since the epoch

    def reading(self, page: Hashable, *, after_s: float, kept_s: float = 0.0) -> "Reading":
        """Return the reading of others who look at the same page, or a new one if it is too old for this viewer."""
        fresh = Reading(self, kept_s)
        with self._lock:
            young = {key: each for key, each in self._readings.items() if fresh.begun_s - each.begun_s <= READING_S}
            found = young.get(page)
            young[page] = found if found and found.now_s > after_s and found.kept_s >= kept_s else fresh
            self._readings = young
            return young[page]

    def read(self, query: Callable[[OperatorContext], Answer], reading: "Reading | None" = None) -> Answer:
        """Return the answer to a query.

        Raises ``NothingShared``, and ``StoreError`` if MongoDB is unreachable, or was just now, or rejects the query.
        """
        with self._lock:
            if self._outage is not None:
                retry_s, error = self._outage
                if time.monotonic() < retry_s:
                    raise type(error)(str(error), code=error.code)  # a raised exception would keep its tracebacks
                # This request tries; the others keep failing at once in the meantime.
                self._outage = (time.monotonic() + RETRY_AFTER_S, error)
        try:
            answer = query((reading or Reading(self)).context)
        except StoreUnavailable as exc:
            last_answer_s = self.app_limiter.now_s() - self.app_limiter.health().lag_s
            with self._lock:
                self._last_answer_s = self._last_answer_s or last_answer_s
                self._outage = (time.monotonic() + RETRY_AFTER_S, type(exc)(_reason(exc)))
            raise
        with self._lock:
            self._outage = self._last_answer_s = None
        return answer

    def answer(self, key: Hashable, query: Callable[[OperatorContext], Any], reading: "Reading", ttl_s: Ttl) -> Any:
        """Return the answer to a query, or the last one if it is recent enough: also while MongoDB does not answer."""
        with self._lock:
            begun_s, now_s, last = self._answers.get(key, (None, 0.0, None))
        if begun_s is not None and ttl_s:
            kept_s = ttl_s if isinstance(ttl_s, float) else ttl_s(last) if now_s >= reading.kept_s else 0.0
            if kept_s and begun_s >= reading.begun_s - kept_s:
                return last
        try:
            fresh = self.read(query, reading)
        except StoreUnavailable:
            if begun_s is None:
                raise
            return last
        with self._lock:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = (reading.begun_s, reading.now_s, fresh)
        return fresh

    def outage(self, error: StoreError) -> dict[str, Any]:
        """Return what a failed read means for people, and since when nothing is shared, unless only the page fails."""
        lag_s = self.app_limiter.health().lag_s
        if not is_lagging(lag_s, self.app_limiter.settings.sync.interval_s) and not isinstance(error, StoreUnreachable):
            return {"text": f"{_reason(error)}. {ONLY_THE_PAGE}", "since_s": None}
        # An idle process has nothing to synchronise, so its lag stays short; the first failed read counts.
        with self._lock:
            since_s = self._last_answer_s or self.app_limiter.now_s() - lag_s
        is_off = self.app_limiter.settings.policies.mode is Mode.OFF  # whatever was read before
        return {"text": f"{_reason(error)}. {OFF if is_off else MEANWHILE} {SHOWN}", "since_s": since_s}

    @property
    def failure(self) -> StoreUnavailable | None:
        """Error of the last read; None if MongoDB has answered it."""
        with self._lock:
            return self._outage and self._outage[1]

    def expire(self) -> None:
        """Have all answers read anew, because something was changed."""
        with self._lock:
            self._answers = {key: (-math.inf, 0.0, answer) for key, (*_, answer) in self._answers.items()}
            self._readings.clear()

    def context(self) -> OperatorContext:
        if self.app_limiter.is_switched_off:
            raise NothingShared("OAUTH_RATELIMIT_MODE=off switches everything off in this process, this page included.")
        context = self.app_limiter.context()
        if context is None:
            without_uri = NO_URI if self.app_limiter.settings.store.uri is None else NOT_YET
            raise NothingShared(without_uri if self.app_limiter.health().rejection is None else UNREADABLE)
        return context


class Reading:
    """Reading of one page: all after one moment, by one context, and each thing once, so that its parts agree."""

    def __init__(self, cache: ReadCache, kept_s: float = 0.0) -> None:
        self.app_limiter, self.cache, self.kept_s = cache.app_limiter, cache, kept_s
        self.begun_s, self.now_s = time.monotonic(), cache.app_limiter.now_s()
        self._lock = threading.RLock()  # held while an answer is read
        self._answers: dict[Hashable, Any] = {}

    @cached_property
    def context(self) -> OperatorContext:
        return self.cache.context()

    def read(self, key: Hashable, query: Callable[[OperatorContext], Answer], *, ttl_s: Ttl = 0.0) -> Answer:
        """Return the answer to a query; with ``ttl_s`` one that was read so long before."""
        if not self._lock.acquire(timeout=WAIT_S):
            raise StoreUnavailable("another request has been reading this for seconds")
        try:
            if key not in self._answers:
                self._answers[key] = self.cache.answer(key, query, self, ttl_s)
            return self._answers[key]  # type: ignore[no-any-return]  # a key belongs to one query
        finally:
            self._lock.release()


def kept(query: Callable[..., Answer], *, ttl_s: Ttl = 0.0) -> Callable[..., Answer]:
    """Return a query as a function of a reading, which keeps the answer to each of its arguments."""

    def read(reading: Reading, *args: Hashable) -> Answer:
        return reading.read((query, *args), lambda context: query(context, *args), ttl_s=ttl_s)

    return read


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
