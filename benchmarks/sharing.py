"""Ways to share a limit between instances, side by side: ours, and the rivals of ``rivals.py``, in compressed time.

Error: wrong decisions in percent of all requests, against an exact log of what that way admitted. Latency: round trips
that a request waits for, on average.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping

from benchmarks.results import Result
from benchmarks.rivals import ON_REDIS, RIVALS, Way
from benchmarks.shapes import Load, loads
from oauth_ratelimit import load_config
from oauth_ratelimit.config import Settings
from oauth_ratelimit.traffic.formats import SECOND_US
from testbed.comparison.accuracy import ContenderCounts, ErrorLog
from testbed.counting_fleet import CountingFleet

INSTANCE_COUNT = 10


class _CutFleet(CountingFleet):
    """Limiters, some of which reach no store for a time."""

    def __init__(self, settings: Settings, instance_count: int, load: Load) -> None:
        super().__init__(settings, instance_count)
        self._load = load

    def turn_to(self, number: int, at_s: float) -> None:
        super().turn_to(number, at_s)
        self.store.is_reachable = not self._load.is_cut(number, at_s)


class Ours(Way):
    """Limiters on one store.

    Attributes:
        most_marks: The most instances that have left a mark in one document, at the end.
    """

    def __init__(self, load: Load, instance_count: int, *, estimator: str = "sliding", interval_s: float = 1.0) -> None:
        super().__init__(load, instance_count)
        self.most_marks = 0
        policy = {"limit": load.limit, "window": load.window_s, "estimator": estimator}
        config = {"mode": "enforce", "limits": {"client": [policy]}, "sync": {"interval": interval_s}}
        self._fleet = _CutFleet(load_config(config), instance_count, load)

    def check(self, key: str, instance: int, at_s: float) -> bool:
        return self._fleet.check(key, at_s=at_s, instance=instance).allowed

    def close(self) -> None:
        store = self._fleet.store
        store.is_reachable = True
        self.most_marks = max(len(document.writers) for document in store.latest(len(self.load.requests)).values())
        self.operations, self.trips = store.operations, store.trips
        self._fleet.close()


WAYS: dict[str, Callable[[Load, int], Way]] = {
    "default": Ours,
    "strict": lambda load, count: Ours(load, count, estimator="strict"),
    **RIVALS,
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the measures of each way, number of instances and load, and those of one instance of ours."""
    ways = available()
    for count in (1, INSTANCE_COUNT):
        for load in loads(count, short=short):
            for name in ways if count > 1 else ("default", "strict"):
                for measure, (value, unit) in measured(WAYS[name](load, count), load).items():
                    yield Result(f"sharing/{load.name}/{name}, N = {count}/{measure}", value, unit)


def available() -> dict[str, Callable[[Load, int], Way]]:
    """Return the ways that this machine can run, and print which it cannot."""
    if shutil.which("redis-server"):
        return WAYS
    print(f"redis-server is not installed, so these are not measured: {'; '.join(ON_REDIS)}")
    return {name: way for name, way in WAYS.items() if name not in ON_REDIS}


def measured(way: Way, load: Load) -> Mapping[str, tuple[float, str]]:
    """Send a load through a way, and return what it measures, with units."""
    tally, logs = ContenderCounts(), dict[str, ErrorLog]()
    try:
        for request in load.requests:
            is_admitted = way.check(request.key, request.instance, request.at_s)
            log = logs.get(request.key)
            if log is None:
                log = logs[request.key] = ErrorLog(tally, limit=load.limit, window_us=load.window_s * SECOND_US)
            log.add(round(request.at_s * SECOND_US), is_admitted)
    finally:
        way.close()
    per_thousand = 1000 / tally.requests
    return {
        "allow": (tally.percent(tally.wrongly_allowed), "%"),
        "deny": (tally.percent(tally.wrongly_denied), "%"),
        "overshoot": (tally.peak / load.limit, "x"),
        "waited": (way.waited / tally.requests, "round trips"),
        "operations": (way.operations * per_thousand, "per 1,000 requests"),
        "trips": (way.trips * per_thousand, "per 1,000 requests"),
    }
