"""Constants of urgent synchronisation, and fleets of hundreds of instances.

The flood is one client for 21 minutes, at rates that change between 5 and 1,000 requests per second.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch
from zlib import crc32

from benchmarks.results import Result
from benchmarks.shapes import BEGIN_S, SEED, SHAPES, Load, Request, busiest, loads, spread
from benchmarks.sharing import Ours, measured
from benchmarks.traces import SHIPPED, traces
from oauth_ratelimit.core.tier import tiers_of

RECORDED = 8_000  # requests of each trace
FLOODS = {"flood, 400 in 60 s": (400, 60), "flood, 1,500 in 60 s": (1_500, 60), "flood, 4,000 in 600 s": (4_000, 600)}
WAKE_S = 0.002  # until the thread runs, and for a round trip
INSTANCE_COUNT = 10
GROWTH = (10, 100, 300)
HOST_WORKERS = 8
LONGER, ON_ONE_HOST = f"N = {GROWTH[-1]}, interval 5 s", f"N = {GROWTH[-1]}, each client on one host"
GROWN, GROWN_REQUESTS = "even", 2_500  # about its first minute

RATIO = "oauth_ratelimit.core.tier.URGENT_RATIO"
DELAY = "testbed.fleet.URGENT_DELAY_S"
FILLING = "oauth_ratelimit.sync.reading.FILLING_RATIO"
ONE, AS_IT_IS = "one instance", "as it is"
SETTINGS: dict[str, tuple[str, float] | None] = {
    AS_IT_IS: None,
    "alert at 0.1 %": (RATIO, 0.001),
    "alert at 2 %": (RATIO, 0.02),
    "alert at the share of peers": (RATIO, 1.0),
    **{f"collects for {ms} ms": (DELAY, ms / 1000 + WAKE_S) for ms in (1, 10, 30, 100)},
    "reads from 10 % used": (FILLING, 0.1),
    "reads from 50 % used": (FILLING, 0.5),
}
"""Settings by name: a constant and its other value."""


def run(*, short: bool) -> Iterator[Result]:
    """Yield errors and operations of each setting, and the growth."""
    for count in (1, INSTANCE_COUNT):
        for load in (*_long_loads(count, short=short), *_shapes(count, short=short)):
            for setting in (ONE,) if count == 1 else SETTINGS:
                with changed(setting):
                    yield from _measures(f"scaling/{load.name}/{setting}", Ours(load, count))
    for count in GROWTH:
        if count != INSTANCE_COUNT:
            (load,) = (load for load in _long_loads(count, short=short) if load.name == SHIPPED.name)
            yield from _measures(f"scaling/{load.name}/N = {count}", Ours(load, count))
        (load,) = (load for load in _shapes(count, short=short) if load.name == GROWN)
        load = replace(load, requests=load.requests[:GROWN_REQUESTS])
        yield from _grown(f"N = {count}", Ours(load, count))
    yield from _grown(LONGER, Ours(load, count, interval_s=5.0))
    yield from _grown(
        ON_ONE_HOST, Ours(replace(load, requests=[_on_host(request) for request in load.requests]), count)
    )


@contextmanager
def changed(setting: str) -> Iterator[None]:
    """Change the constant of a setting."""
    with ExitStack() as stack:
        if (change := SETTINGS.get(setting)) is not None:
            stack.callback(tiers_of.cache_clear)  # tiers keep what they compute from a constant
            stack.enter_context(patch(*change))
            tiers_of.cache_clear()
        yield


def _long_loads(instance_count: int, *, short: bool) -> Iterator[Load]:
    """Yield the busiest part of each trace, and the floods."""
    rng, most = random.Random(SEED), 500 if short else RECORDED
    for trace in traces():
        yield spread(trace.name, trace.limit, busiest(trace, most), instance_count, rng)
    flood = list(_flood())[: 500 if short else None]
    for name, (limit, window_s) in FLOODS.items():
        yield replace(spread(name, limit, flood, instance_count, rng), window_s=window_s)


def _shapes(instance_count: int, *, short: bool) -> Iterator[Load]:
    return (load for load in loads(instance_count, short=short) if load.name in SHAPES)


def _flood() -> Iterator[tuple[float, str]]:
    rng, at_s = random.Random(SEED), 0.0
    while at_s < 21 * 60:
        rate = rng.choice((5, 20, 50, 200, 1000))
        end_s = at_s + (rng.uniform(20, 60) if rate < 200 else rng.uniform(1, 8))
        while at_s < end_s:
            at_s += rng.expovariate(rate)
            yield BEGIN_S + at_s, "flood"


def _on_host(request: Request) -> Request:
    """Return a request to an instance of the one host that its key is sent to."""
    host = crc32(request.key.encode()) % (GROWTH[-1] // HOST_WORKERS)
    return replace(request, instance=host * HOST_WORKERS + request.instance % HOST_WORKERS)


def _grown(name: str, way: Ours) -> Iterator[Result]:
    prefix = f"scaling/{GROWN}/{name}"
    yield from _measures(prefix, way)
    yield Result(f"{prefix}/marks", way.most_marks, "per document")


def _measures(prefix: str, way: Ours) -> Iterator[Result]:
    found = measured(way, way.load)
    yield Result(f"{prefix}/error", found["allow"][0] + found["deny"][0], "%")
    for what in ("overshoot", "operations", "trips"):
        yield Result(f"{prefix}/{what}", *found[what])
