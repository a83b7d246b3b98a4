"""One decision, beside the libraries that people use."""

import contextlib
import random
import shutil
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, Storage, storage_from_string
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from benchmarks import subjects
from benchmarks.measuring import Run, in_threads, take_turns, timed
from benchmarks.redis_server import redis_server
from benchmarks.results import Result, median_of
from benchmarks.subjects import CLIENT_ID, NO_LIMIT, USER, VARIANTS, Hit, settings_of
from testbed.mongod import Mongod

KEY_COUNT = 100_000
THREAD_COUNT = 4
STRATEGIES: dict[str, type[RateLimiter]] = {
    "fixed": FixedWindowRateLimiter,
    "sliding": SlidingWindowCounterRateLimiter,
    "moving": MovingWindowRateLimiter,
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the time of a decision: on one key, on many, in threads, and beside shared stores."""
    yield from _one_key(turn_count=5 if short else 15)
    yield from _many_keys(turn_count=3 if short else 7)
    yield from _threads(turn_count=3 if short else 9)
    yield from _shared_stores(turn_count=3 if short else 5)


def _one_key(*, turn_count: int) -> Iterator[Result]:
    hits: dict[str, Hit] = {
        "ours": subjects.ours(),
        "ours, denied": subjects.ours(settings_of(1)),
        **{f"ours, {name}": subjects.ours(config) for name, config in VARIANTS.items()},
        **{f"limits {strategy}": limits(strategy) for strategy in STRATEGIES},
        "limits sliding, denied": limits(limit=1),
    }
    measures = {name: timed(_repeated(hit, 20_000), clock_ns=time.process_time_ns) for name, hit in hits.items()}
    times = yield from _times("one key", take_turns(measures, turn_count=turn_count))
    yield Result("decision/one key/faster than limits sliding", times["limits sliding"] / times["ours"], "x", ">= 0.5")
    denied = times["limits sliding, denied"] / times["ours, denied"]
    yield Result("decision/one key/denied, faster than limits sliding", denied, "x")
    yield Result("decision/one key/k = 60 against k = 1", times["ours, k = 60"] / times["ours, k = 1"], "x", "<= 3")
    for name in ("two tiers", "client_total", "override", "trusted"):
        more = times[f"ours, {name}"] / times["ours"] - 1
        yield Result(f"decision/one key/{name}, more", more, "x", "<= 0.7")


def _many_keys(*, turn_count: int) -> Iterator[Result]:
    """All keys are known; each turn checks every key once, in another order."""
    cycled = subjects.limiter()
    in_cycle = "ours, first since the last cycle"
    measures = {
        "ours": _pass(subjects.ours(), rehearses=True),
        in_cycle: _pass(partial(cycled.check, CLIENT_ID), before=cycled.sync, rehearses=True),
        "limits sliding": _pass(limits()),
        "limits moving": _pass(limits("moving")),
    }
    times = yield from _times(f"{KEY_COUNT:,} keys", take_turns(measures, turn_count=turn_count))
    for name in ("ours", in_cycle):
        factor = times["limits sliding"] / times[name]
        yield Result(f"decision/{KEY_COUNT:,} keys/{name}: faster than limits sliding", factor, "x", ">= 0.5")


def _threads(*, turn_count: int) -> Iterator[Result]:
    """Threads of one interpreter take turns, so the CPU time says how many decisions fit, whatever else runs."""
    hits = {"ours": subjects.ours(), "limits sliding": limits(), "limits moving": limits("moving")}
    measures = {
        name: timed(in_threads(_repeated(hit, 10_000), thread_count=THREAD_COUNT), clock_ns=time.process_time_ns)
        for name, hit in hits.items()
    }
    times = yield from _times(f"{THREAD_COUNT} threads", take_turns(measures, turn_count=turn_count))
    factor = times["limits sliding"] / times["ours"]
    yield Result(f"decision/{THREAD_COUNT} threads/faster than limits sliding", factor, "x", ">= 0.5")


def _shared_stores(*, turn_count: int) -> Iterator[Result]:
    """A limiter that queries a server with each request, beside ours in memory."""
    with contextlib.ExitStack() as servers:
        uris = {"MongoDB": servers.enter_context(Mongod()).uri.replace("/?", "/limits?")}
        if shutil.which("redis-server"):
            uris["Redis"] = servers.enter_context(redis_server())
        measures = {
            f"limits on {name}": timed(_repeated(limits(storage=storage_from_string(uri)), 300))  # type: ignore[arg-type]
            for name, uri in uris.items()
        }
        measures["ours"] = timed(_repeated(subjects.ours(), 20_000))
        times = yield from _times("shared store", take_turns(measures, turn_count=turn_count))
    for name in uris:
        factor = times[f"limits on {name}"] / times["ours"]
        yield Result(
            f"decision/shared store/faster than limits on {name}", factor, "x", ">= 2" if name == "Redis" else None
        )


def limits(strategy: str = "sliding", *, limit: int = NO_LIMIT, storage: Storage | None = None) -> Hit:
    """Return a hit on the limits library."""
    limiter = STRATEGIES[strategy](storage or MemoryStorage())
    return partial(limiter.hit, RateLimitItemPerMinute(limit), CLIENT_ID)


def _times(group: str, times: Mapping[str, Sequence[float]]) -> Generator[Result, None, dict[str, float]]:
    """Yield the time of each subject, and return the medians."""
    for name, values in times.items():
        yield median_of(f"decision/{group}/{name}", values, "ns")
    return {name: statistics.median(values) for name, values in times.items()}


def _repeated(hit: Hit, count: int) -> Run:
    def run_once() -> int:
        for _ in repeat(None, count):
            hit(USER)
        return count

    return run_once


def _pass(hit: Hit, *, before: Callable[[], object] = lambda: None, rehearses: bool = False) -> Callable[[], float]:
    """Return a measure of one hit on every key, each time in another order.

    Args:
        hit: The hit.
        before: A preparation that is not timed.
        rehearses: True to hit every key untimed before. The turns of the others take longer than a frame, so our pass
            would always be the first in a new one.
    """
    users, source = subjects.user_names(KEY_COUNT), random.Random(3)

    def hit_all() -> int:
        for user in users:
            hit(user)
        return len(users)

    def prepare() -> None:
        if rehearses:
            hit_all()
        before()
        source.shuffle(users)

    return timed(hit_all, before=prepare, clock_ns=time.process_time_ns)
