"""Ways to share a limit between instances, side by side: ours, and the rivals of ``rivals.py``, in compressed time.

Error: wrong decisions in percent of all requests, against an exact log of what that way admitted. Latency: round trips
that a request waits for, on average. Fairness: Jain's index of the share that each instance admits of the requests of
keys that were denied at all; 1 is fair.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.fleet import Fleet
from benchmarks.results import Result
from benchmarks.rivals import ON_REDIS, RIVALS, Way
from benchmarks.shapes import WINDOW_S, Load, loads
from oauth_ratelimit.replay.accuracy import ErrorLog, Tally

INSTANCES = (3, 10, 30)
MEASURES = ("allow", "deny", "overshoot", "waited", "operations", "trips", "fairness")


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
        super().__init__(load, instance_count)
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
    **RIVALS,
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the measures of each way, number of instances and load, and those of one instance of ours."""
    ways = available()
    for count in (1, *INSTANCES):
        for load in loads(count, short=short):
            for name in ways if count > 1 else ("default", "strict"):
                for measure, (value, unit) in zip(MEASURES, measured(WAYS[name](load, count), load), strict=True):
                    yield Result(f"sharing/{load.name}/{name}, N = {count}/{measure}", value, unit)


def available() -> dict[str, Callable[[Load, int], Way]]:
    """Return the ways that this machine can run, and print which it cannot."""
    if shutil.which("redis-server"):
        return WAYS
    print(f"redis-server is not installed, so these are not measured: {'; '.join(ON_REDIS)}")
    return {name: way for name, way in WAYS.items() if name not in ON_REDIS}


def measured(way: Way, load: Load) -> Sequence[tuple[float, str]]:
    """Send a load through a way, and return the values of ``MEASURES`` with their units."""
    tally, logs = Tally(), dict[str, ErrorLog]()
    asked, admitted, denied = Counter[tuple[str, int]](), Counter[tuple[str, int]](), set[str]()
    try:
        for request in load.requests:
            key, instance = request.key, request.instance
            is_admitted = way.check(key, instance, request.at_s)
            log = logs.get(key)
            if log is None:
                log = logs[key] = ErrorLog(tally, limit=load.limit, window_us=WINDOW_S * 1_000_000)
            log.add([round(request.at_s * 1_000_000)], [is_admitted])
            asked[key, instance] += 1
            if is_admitted:
                admitted[key, instance] += 1
            else:
                denied.add(key)
    finally:
        way.close()
    ratios = []
    for instance in range(way.instance_count):
        wanted = sum(asked[key, instance] for key in denied)
        if wanted:
            ratios.append(sum(admitted[key, instance] for key in denied) / wanted)
    per_thousand = 1000 / tally.requests
    return (
        (tally.percent(tally.wrongly_allowed), "%"),
        (tally.percent(tally.wrongly_denied), "%"),
        (tally.peak / load.limit, "x"),
        (way.waited / tally.requests, "round trips"),
        (way.operations * per_thousand, "per 1,000 requests"),
        (way.trips * per_thousand, "per 1,000 requests"),
        (sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios)) if any(ratios) else 1.0, "x"),
    )
