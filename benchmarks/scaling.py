"""Constants of urgent synchronisation, and fleets of hundreds of instances.

The flood is one client for 21 minutes, at rates that change between 5 and 1,000 requests per second. Floods and traces
are simulated with the real buckets, each request at a random instance; shapes run on limiters.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from unittest.mock import patch
from zlib import crc32

from benchmarks.results import Result
from benchmarks.shapes import BEGIN_S, SEED, SHAPES, Request, busiest, loads
from benchmarks.sharing import Ours, measured
from benchmarks.traces import SHIPPED, traces
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.replay.accuracy import ErrorLog, Tally
from oauth_ratelimit.replay.fleet import Fleet, FleetKey, FleetPlan
from oauth_ratelimit.replay.formats import SECOND_US

RECORDED = 8_000  # requests of each trace
FLOODS = {"flood, 400 in 60 s": (400, 60), "flood, 1,500 in 60 s": (1_500, 60), "flood, 4,000 in 600 s": (4_000, 600)}
WAKE_US = 2_000  # until the thread runs, and for a round trip
INSTANCE_COUNT = 10
GROWTH = (10, 100, 300)
HOST_WORKERS = 8
LONGER, ON_ONE_HOST = f"N = {GROWTH[-1]}, interval 5 s", f"N = {GROWTH[-1]}, each client on one host"
GROWN, GROWN_REQUESTS = "even", 2_500  # about its first minute

RATIO = ("oauth_ratelimit.core.tier.URGENT_RATIO",)
DELAY = ("oauth_ratelimit.replay.fleet.URGENT_DELAY_US", "benchmarks.fleet.URGENT_DELAY_US")
FILLING = ("oauth_ratelimit.replay.fleet.FILLING_RATIO", "oauth_ratelimit.counters.key_state.FILLING_RATIO")
ONE = "one instance"
SETTINGS: dict[str, tuple[tuple[str, ...], float]] = {
    "as it is": ((), 0.0),
    "alert at 0.1 %": (RATIO, 0.001),
    "alert at 2 %": (RATIO, 0.02),
    "alert at the share of peers": (RATIO, 1.0),
    **{f"collects for {ms} ms": (DELAY, 1000 * ms + WAKE_US) for ms in (1, 10, 30, 100)},
    "reads from 10 % used": (FILLING, 0.1),
    "reads from 50 % used": (FILLING, 0.5),
}
"""Names of constants, wherever they are imported, and their value."""


def run(*, short: bool) -> Iterator[Result]:
    """Yield errors and operations of each setting, and the growth."""
    for name, limit, window_s, keys in _loads(short=short):
        yield from _results(f"scaling/{name}/{ONE}", simulated(keys, limit, window_s, 1), limit)
        for setting in SETTINGS:
            with changed(setting):
                tally = simulated(keys, limit, window_s, INSTANCE_COUNT)
            yield from _results(f"scaling/{name}/{setting}", tally, limit)
        for count in GROWTH[1:] if name == SHIPPED.name else ():
            yield from _results(f"scaling/{name}/N = {count}", simulated(keys, limit, window_s, count), limit)
    for count in (1, INSTANCE_COUNT):
        for load in loads(count, short=short):
            for setting in (ONE,) if count == 1 else SETTINGS:
                if load.name in SHAPES:
                    with changed(setting):
                        yield from _measures(f"scaling/{load.name}/{setting}", Ours(load, count))
    for count in GROWTH:
        (load,) = (load for load in loads(count, short=short) if load.name == GROWN)
        load = replace(load, requests=load.requests[:GROWN_REQUESTS])
        yield from _grown(f"N = {count}", Ours(load, count))
    yield from _grown(LONGER, Ours(load, count, interval_s=5.0))
    yield from _grown(
        ON_ONE_HOST, Ours(replace(load, requests=[_on_host(request) for request in load.requests]), count)
    )


@contextmanager
def changed(setting: str) -> Iterator[None]:
    """Change the constants of a setting."""
    targets, value = SETTINGS.get(setting, ((), 0.0))
    with ExitStack() as stack:
        for target in targets:
            stack.enter_context(patch(target, value))
        yield


def _on_host(request: Request) -> Request:
    """Return a request to an instance of the one host that its key is sent to."""
    host = crc32(request.key.encode()) % (GROWTH[-1] // HOST_WORKERS)
    return replace(request, instance=host * HOST_WORKERS + request.instance % HOST_WORKERS)


def _grown(name: str, way: Ours) -> Iterator[Result]:
    prefix = f"scaling/{GROWN}/{name}"
    yield from _measures(prefix, way)
    yield Result(f"{prefix}/marks", way.most_marks, "per document")


def _measures(prefix: str, way: Ours) -> Iterator[Result]:
    allow, deny, overshoot, _, operations, trips, _ = measured(way, way.load)
    yield Result(f"{prefix}/error", allow[0] + deny[0], "%")
    yield Result(f"{prefix}/overshoot", *overshoot)
    yield Result(f"{prefix}/operations", *operations)
    yield Result(f"{prefix}/trips", *trips)


def _loads(*, short: bool) -> Iterator[tuple[str, int, int, Sequence[Sequence[int]]]]:
    """Yield name, limit, window and the times of each key, in microseconds."""
    for trace in traces():
        keys: dict[str, list[int]] = {}
        for at_s, key in busiest(trace.requests(), 500 if short else RECORDED):
            keys.setdefault(key, []).append(round(at_s * SECOND_US))
        yield trace.name, trace.limit, 60, list(keys.values())
    for name, (limit, window_s) in FLOODS.items():
        yield name, limit, window_s, [_flood()[: 500 if short else None]]


@cache
def _flood() -> list[int]:
    rng, at_s, times = random.Random(SEED), 0.0, list[int]()
    while at_s < 21 * 60:
        rate = rng.choice((5, 20, 50, 200, 1000))
        end_s = at_s + (rng.uniform(20, 60) if rate < 200 else rng.uniform(1, 8))
        while at_s < end_s:
            at_s += rng.expovariate(rate)
            times.append(round((BEGIN_S + at_s) * SECOND_US))
    return times


def simulated(keys: Sequence[Sequence[int]], limit: int, window_s: int, count: int) -> Tally:
    """Return the errors of instances."""
    tally, window = Tally(), Window(window_s, 10)
    fleet = Fleet(FleetPlan(count, 1.0), tally, limit=limit, window=window, estimator=Estimator.SLIDING)
    for times in keys:
        key = FleetKey(fleet)
        decisions = key.decide(times)
        ErrorLog(tally, limit=limit, window_us=window_s * SECOND_US).add(times, decisions)
        key.finish()
    return tally


def _results(prefix: str, tally: Tally, limit: int) -> Iterator[Result]:
    yield Result(f"{prefix}/error", tally.percent(tally.wrongly_allowed + tally.wrongly_denied), "%")
    yield Result(f"{prefix}/overshoot", tally.peak / limit, "x")
    yield Result(f"{prefix}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")
