"""Algorithms that enforce a limit, for one key each.

They compute in whole microseconds, so that rounding causes no errors. Denied requests do not count.
"""

from collections.abc import Sequence
from typing import Protocol

from oauth_ratelimit.core.window import Estimator, Window, age
from oauth_ratelimit.replay.formats import SECOND_US


class Counter(Protocol):
    """Counter of one key, which admits or denies its requests."""

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """Admit or deny requests, and count the admitted ones.

        Args:
            times: Their times in order, in microseconds since the epoch, none before those of earlier calls.

        Returns:
            True for each request that is admitted.
        """
        ...

    def finish(self) -> None:
        """Finish pending work after the last request."""
        ...


class InMemory:
    """Base of counters without pending work."""

    __slots__ = ()

    def finish(self) -> None:
        """See ``Counter.finish``."""


class FixedWindow(InMemory):
    """Counter that starts at zero in each window, aligned to the epoch."""

    __slots__ = ("_count", "_index", "_limit", "_window_us")

    def __init__(self, limit: int, window_us: int) -> None:
        self._limit = limit
        self._window_us = window_us
        self._index = -1
        self._count = 0

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        limit, window_us, index, count = self._limit, self._window_us, self._index, self._count
        decisions = []
        for at_us in times:
            if at_us // window_us != index:
                index, count = at_us // window_us, 0
            is_admitted = count < limit
            count += is_admitted
            decisions.append(is_admitted)
        self._index, self._count = index, count
        return decisions


class ExactLog(InMemory):
    """Exact log of the admitted requests, the reference for the other algorithms."""

    __slots__ = ("_admitted", "_limit", "_window_us")

    def __init__(self, limit: int, window_us: int) -> None:
        self._limit = limit
        self._window_us = window_us
        self._admitted: list[int] = []

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        limit, window_us, admitted = self._limit, self._window_us, self._admitted
        decisions = []
        for at_us in times:
            is_admitted = len(admitted) < limit or admitted[-limit] <= at_us - window_us
            if is_admitted:
                admitted.append(at_us)
            decisions.append(is_admitted)
        del admitted[:-limit]
        return decisions


class TokenBucket(InMemory):
    """Token bucket: each request takes a token, and the bucket is refilled at an even rate.

    Args:
        limit: Tokens added per window.
        window_us: Length of the window.
        burst: Capacity in tokens.
    """

    # A token is ``window_us`` units, so that a whole number of units, ``limit``, is added per microsecond.
    __slots__ = ("_capacity", "_cost", "_level", "_limit", "_seen_us")

    def __init__(self, limit: int, window_us: int, *, burst: int) -> None:
        self._limit = limit
        self._cost = window_us
        self._capacity = burst * window_us
        self._level = self._capacity
        self._seen_us = 0

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        limit, cost, capacity, level, seen_us = self._limit, self._cost, self._capacity, self._level, self._seen_us
        decisions = []
        for at_us in times:
            level = min(capacity, level + (at_us - seen_us) * limit)
            seen_us = at_us
            is_admitted = level >= cost
            if is_admitted:
                level -= cost
            decisions.append(is_admitted)
        self._level, self._seen_us = level, seen_us
        return decisions


class Gcra(InMemory):
    """Generic cell rate algorithm: keeps the time at which the next request would come at an even rate.

    It makes the same decisions as the token bucket, with one number per key.

    Args:
        limit: Requests per window.
        window_us: Length of the window.
        burst: Requests that may come at once.
    """

    __slots__ = ("_arrival", "_interval", "_limit", "_tolerance")

    def __init__(self, limit: int, window_us: int, *, burst: int) -> None:
        # A microsecond is ``limit`` units, so that the interval is a whole number.
        self._limit = limit
        self._interval = window_us
        self._tolerance = (burst - 1) * window_us
        self._arrival = 0

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        limit, interval, tolerance, arrival = self._limit, self._interval, self._tolerance, self._arrival
        decisions = []
        for at_us in times:
            now = at_us * limit
            is_admitted = arrival - now <= tolerance
            if is_admitted:
                arrival = (arrival if arrival > now else now) + interval
            decisions.append(is_admitted)
        self._arrival = arrival
        return decisions


class SlidingWindowCounter(InMemory):
    """Estimators of this package (``core.window``) on one instance without a store."""

    __slots__ = ("_current", "_end_us", "_estimator", "_limit", "_past", "_window")

    def __init__(self, limit: int, window: Window, estimator: Estimator) -> None:
        self._limit = limit
        self._window = window
        self._estimator = estimator
        self._current = 0
        self._past: Sequence[int] = b""
        self._end_us = 0  # of the current frame

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        frame_count, estimator = self._window.frame_count, self._estimator
        frame_us, room = self._window.frame_s * SECOND_US, self._limit - 1
        edge_per_hit = estimator.edge_per_hit
        current, past, end_us = self._current, self._past, self._end_us
        full, edge = estimator.weigh(current, past, frame_count)
        decisions = []
        for at_us in times:
            if at_us >= end_us:
                frames = (at_us - end_us) // frame_us + 1
                current, past = age(current, past, frames, frame_count)
                full, edge = estimator.weigh(current, past, frame_count)
                end_us += frames * frame_us
            # estimate_hits() + 1 <= limit, without a division and so exact
            is_admitted = edge * (end_us - at_us) <= (room - full) * frame_us
            if is_admitted:
                current += 1
                full += 1
                edge += edge_per_hit
            decisions.append(is_admitted)
        self._current, self._past, self._end_us = current, past, end_us
        return decisions
