"""Errors of an algorithm against an exact log of the requests that it admitted.

A request is *wrongly allowed* if it is admitted although the log already holds the limit in its window, and *wrongly
denied* if it is denied although the log holds fewer. Each error is counted once: the log holds the algorithm's own
admissions, so an error does not turn later decisions into errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Counts of one contender.

    Attributes:
        requests: All requests.
        admitted: Admitted requests.
        wrongly_allowed: Requests admitted although the window was full.
        wrongly_denied: Requests denied although the window had room.
        peak: The most requests admitted in any window.
        operations: Documents written or read, conflicts included.
        conflicts: Writes that lost a race against another instance.
        waits: Requests that waited for the database.
    """

    requests: int = 0
    admitted: int = 0
    wrongly_allowed: int = 0
    wrongly_denied: int = 0
    peak: int = 0
    operations: int = 0
    conflicts: int = 0
    waits: int = 0

    def percent(self, count: int) -> float:
        """Return a count as a percentage of all requests."""
        return 100 * count / self.requests if self.requests else 0.0


class ErrorLog:
    """Exact log of the admitted requests of one key, which counts errors.

    Args:
        tally: Counts the errors.
        limit: Requests per window.
        window_us: Length of the window. A request leaves it exactly this long after it came.
    """

    __slots__ = ("_admitted", "_limit", "_tally", "_window_us")

    def __init__(self, tally: Tally, *, limit: int, window_us: int) -> None:
        self._tally = tally
        self._limit = limit
        self._window_us = window_us
        self._admitted: list[int] = []

    def add(self, times: Sequence[int], decisions: Sequence[bool]) -> None:
        """Add decisions, in the order of time."""
        admitted, limit, window_us, tally = self._admitted, self._limit, self._window_us, self._tally
        tally.requests += len(times)
        if len(admitted) + len(times) <= min(limit, tally.peak) and all(decisions):  # no error, no new peak
            admitted += times
            tally.admitted += len(times)
            return
        oldest, count = 0, len(admitted)
        before, peak, wrongly_allowed, wrongly_denied = count, tally.peak, 0, 0
        for at_us, is_admitted in zip(times, decisions, strict=True):
            gone_us = at_us - window_us
            while oldest < count and admitted[oldest] <= gone_us:
                oldest += 1
            inside = count - oldest
            if is_admitted:
                admitted.append(at_us)
                count += 1
                if inside >= limit:
                    wrongly_allowed += 1
                if inside >= peak:
                    peak = inside + 1
            elif inside < limit:
                wrongly_denied += 1
        del admitted[:oldest]
        tally.admitted += count - before
        tally.wrongly_allowed += wrongly_allowed
        tally.wrongly_denied += wrongly_denied
        tally.peak = peak
