"""Errors of an algorithm against an exact log of the requests that it admitted.

A request is *wrongly allowed* if it is admitted although the log already holds the limit in its window, and *wrongly
denied* if it is denied although the log holds fewer. Each error is counted once: the log holds the algorithm's own
admissions, so an error does not turn later decisions into errors.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class ContenderCounts:
    """Requests of one contender, its errors, and its load on the store."""

    requests: int = 0
    admitted: int = 0
    wrongly_allowed: int = 0
    wrongly_denied: int = 0
    peak: int = 0  # most requests admitted in any window
    operations: int = 0  # documents written or read

    def percent(self, count: int) -> float:
        return 100 * count / self.requests if self.requests else 0.0


class WindowLog:
    """Exact log of the admitted requests of one key. A request leaves it exactly a window after it came."""

    __slots__ = ("_times", "_window_us")

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._times: deque[int] = deque()

    def count(self, at_us: int) -> int:
        """Return the number of requests in the window that ends now. Calls come in the order of time."""
        times, gone_us = self._times, at_us - self._window_us
        while times and times[0] <= gone_us:
            times.popleft()
        return len(times)

    def add(self, at_us: int) -> None:
        self._times.append(at_us)


class ErrorLog:
    """Errors in the decisions about one key, which a tally counts."""

    __slots__ = ("_limit", "_log", "_tally")

    def __init__(self, tally: ContenderCounts, *, limit: int, window_us: int) -> None:
        self._tally = tally
        self._limit = limit
        self._log = WindowLog(window_us)

    def add(self, at_us: int, is_admitted: bool) -> None:
        """Add a decision, in the order of time."""
        tally, count = self._tally, self._log.count(at_us)
        tally.requests += 1
        if is_admitted:
            self._log.add(at_us)
            tally.admitted += 1
            tally.wrongly_allowed += count >= self._limit
            tally.peak = max(tally.peak, count + 1)
        else:
            tally.wrongly_denied += count < self._limit
