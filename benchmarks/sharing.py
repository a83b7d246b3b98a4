"""Ways to share a limit between instances, side by side: ours, and one store that each request asks.

The loads of ``shapes.py`` run in compressed time. Error: wrong decisions in percent of all requests, against an exact
log of what that way admitted. Latency: round trips that a request waits for, on average.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter, RateLimiter, SlidingWindowCounterRateLimiter

from benchmarks.fleet import Fleet
from benchmarks.results import Result
from benchmarks.shapes import WINDOW_S, Load, loads
from oauth_ratelimit.replay.accuracy import ErrorLog, Tally

INSTANCES = (3, 10, 30)
MEASURES = ("allow", "deny", "overshoot", "waited", "operations", "trips")


class Way(ABC):
    """A way to share a limit. Counts its cost.

    Attributes:
        operations: Entries that were sent or received.
        trips: Messages and their answers, each with any number of entries.
        waited: Round trips that requests waited for.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.operations = self.trips = self.waited = 0

    @abstractmethod
    def check(self, key: str, instance: int, at_s: float) -> bool:
        """Decide about a request. Requests come in the order of time."""

    @abstractmethod
    def close(self) -> None:
        """End what runs in the background."""


class Central(Way):
    """The limits library with its storage in memory, which stands for one Redis: each request waits for a round trip.

    An instance that does not reach it admits, as Flask-Limiter can be told to.
    """

    def __init__(self, load: Load, *, strategy: type[RateLimiter]) -> None:
        super().__init__(load)
        self._now_s = 0.0
        self._clocks = [patch(f"limits.{module}.time", time=self._time) for module in ("storage.memory", "strategies")]
        for clock in self._clocks:
            clock.start()
        self._limiter = strategy(MemoryStorage())
        self._item = RateLimitItemPerMinute(load.limit)

    def _time(self) -> float:
        return self._now_s

    def check(self, key: str, instance: int, at_s: float) -> bool:
        """See ``Way``."""
        self._now_s = at_s
        self.waited += 1
        self.trips += 1
        self.operations += 1
        return self.load.is_cut(instance, at_s) or self._limiter.hit(self._item, key)

    def close(self) -> None:
        """See ``Way``."""
        for clock in self._clocks:
            clock.stop()


class Ours(Way):
    """Limiters on one store.

    Attributes:
        most_marks: The most instances that have left a mark in one document, at the end.
    """

    def __init__(
        self,
        load: Load,
        instance_count: int,
        *,
        near_limit: str = "flush",
        estimator: str = "sliding",
        interval_s: float = 1.0,
    ) -> None:
        super().__init__(load)
        self.most_marks = 0
        policy = {"limit": load.limit, "window": WINDOW_S, "estimator": estimator}
        config: dict[str, Any] = {
            "mode": "enforce",
            "limits": {"client": [policy]},
            "sync": {"near_limit": near_limit, "deadline": 1},
        }
        self._fleet = Fleet(
            instance_count,
            config,
            random.Random(1),
            interval_s=interval_s,
            begin_s=load.requests[0].at_s,
            is_cut=load.is_cut,
        )

    def check(self, key: str, instance: int, at_s: float) -> bool:
        """See ``Way``."""
        self._fleet.run_until(at_s)
        trips = self._fleet.store.trips
        is_allowed = self._fleet.check(key, at_s, instance=instance)
        self.waited += self._fleet.store.trips - trips
        return is_allowed

    def close(self) -> None:
        """See ``Way``."""
        store = self._fleet.store
        store.is_away = False
        self.most_marks = store.most_marks
        self.operations, self.trips = store.written + store.read_count, store.trips
        self._fleet.close()


WAYS: dict[str, Callable[[Load, int], Way]] = {
    "default": Ours,
    "strict": lambda load, count: Ours(load, count, estimator="strict"),
    "reserve": lambda load, count: Ours(load, count, near_limit="reserve"),
    "limits, moving window": lambda load, _: Central(load, strategy=MovingWindowRateLimiter),
    "limits, sliding counter": lambda load, _: Central(load, strategy=SlidingWindowCounterRateLimiter),
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the measures of each way, number of instances and load, and those of one instance of ours."""
    for count in (1, *INSTANCES):
        for load in loads(count, short=short):
            for name in WAYS if count > 1 else ("default", "strict"):
                for measure, (value, unit) in zip(MEASURES, measured(WAYS[name](load, count), load), strict=True):
                    yield Result(f"sharing/{load.name}/{name}, N = {count}/{measure}", value, unit)


def measured(way: Way, load: Load) -> Sequence[tuple[float, str]]:
    """Send a load through a way, and return the values of ``MEASURES`` with their units."""
    tally, logs = Tally(), dict[str, ErrorLog]()
    try:
        for request in load.requests:
            is_admitted = way.check(request.key, request.instance, request.at_s)
            log = logs.get(request.key)
            if log is None:
                log = logs[request.key] = ErrorLog(tally, limit=load.limit, window_us=WINDOW_S * 1_000_000)
            log.add([round(request.at_s * 1_000_000)], [is_admitted])
    finally:
        way.close()
    per_thousand = 1000 / tally.requests
    return (
        (tally.percent(tally.wrongly_allowed), "%"),
        (tally.percent(tally.wrongly_denied), "%"),
        (tally.peak / load.limit, "x"),
        (way.waited / tally.requests, "round trips"),
        (way.operations * per_thousand, "per 1,000 requests"),
        (way.trips * per_thousand, "per 1,000 requests"),
    )
