"""One decision, beside the libraries that people use."""

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat

from benchmarks import peers, subjects
from benchmarks.measuring import Run, Timing, in_threads, take_turns
from benchmarks.results import Result
from benchmarks.subjects import USER, VARIANTS, Hit, settings_of
from tests.support.mongod import Mongod

KEY_COUNT = 100_000
THREAD_COUNT = 4
REDIS_RESULTS = ("decision/shared store/limits on Redis", "decision/shared store/faster than limits on Redis")


def run(*, short: bool) -> Iterator[Result]:
    """Yield the time of a decision: on one key, on many, in threads, and beside shared stores."""
    yield from _one_key(turn_count=5 if short else 15)
    yield from _many_keys(turn_count=3 if short else 7)
    yield from _threads(turn_count=3 if short else 9)
    yield from _shared_stores(turn_count=3 if short else 5)


def left_out() -> tuple[str, ...]:
    """Return prefixes of the results for which a program is not installed."""
    return () if shutil.which("redis-server") else REDIS_RESULTS


def _one_key(*, turn_count: int) -> Iterator[Result]:
    hits: dict[str, Hit] = {
        "ours": subjects.ours(),
        "ours, denied": subjects.ours(settings_of(1)),
        **{f"ours, {name}": subjects.ours(config) for name, config in VARIANTS.items()},
        **{f"limits {strategy}": peers.limits(strategy) for strategy in peers.STRATEGIES},
        "limits sliding, denied": peers.limits(limit=1),
        "throttled-py": peers.throttled(),
        "pyrate-limiter": peers.pyrate(),
    }
    times = take_turns(
        {name: _repeated(hit, 20_000) for name, hit in hits.items()},
        turn_count=turn_count,
        clock_ns=time.process_time_ns,
    )
    yield from _times("one key", times)
    base_ns, peer_ns = times["ours"].median_ns, times["limits sliding"].median_ns
    yield Result("decision/one key/faster than limits sliding", peer_ns / base_ns, "x", ">= 6")
    denied = times["limits sliding, denied"].median_ns / times["ours, denied"].median_ns
    yield Result("decision/one key/denied, faster than limits sliding", denied, "x")
    k_ratio = times["ours, k = 60"].median_ns / times["ours, k = 1"].median_ns
    yield Result("decision/one key/k = 60 against k = 1", k_ratio, "x", "<= 1.1")
    for name in ("two tiers", "client_total", "override", "trusted"):
        more = times[f"ours, {name}"].median_ns / base_ns - 1
        yield Result(f"decision/one key/{name}, more", more, "x", "<= 0.7")


def _many_keys(*, turn_count: int) -> Iterator[Result]:
    """All keys are known; each turn checks every key once, in another order."""
    cycled, framed = subjects.limiter(), subjects.limiter()
    first_in_cycle, first_in_frame = "ours, first since the last cycle", "ours, first in a frame"
    passes = {
        "ours": _Pass(subjects.ours()),
        first_in_cycle: _Pass(partial(cycled.check, subjects.CLIENT_ID), before=cycled.sync),
        "limits sliding": _Pass(peers.limits()),
        "limits moving": _Pass(peers.limits("moving")),
        "throttled-py": _Pass(peers.throttled()),
        "pyrate-limiter": _Pass(peers.pyrate()),
    }
    before = {name: one.prepare for name, one in passes.items()}
    # The turns of the others take longer than a frame, so our first pass would always be in a new one.
    before["ours"], before[first_in_cycle] = passes["ours"].rehearse, passes[first_in_cycle].rehearse
    passes[first_in_frame] = _Pass(partial(framed.check, subjects.CLIENT_ID), before=framed.sync)
    before[first_in_frame] = passes[first_in_frame].prepare
    times = take_turns(
        {name: one.run for name, one in passes.items()},
        turn_count=turn_count,
        before=before,
        clock_ns=time.process_time_ns,
    )
    yield from _times(f"{KEY_COUNT:,} keys", times)
    peer_ns = times["limits sliding"].median_ns
    for name, goal in (("ours", ">= 6"), (first_in_cycle, ">= 6"), (first_in_frame, None)):
        factor = peer_ns / times[name].median_ns
        yield Result(f"decision/{KEY_COUNT:,} keys/{name}: faster than limits sliding", factor, "x", goal)


def _threads(*, turn_count: int) -> Iterator[Result]:
    hits = {
        "ours": subjects.ours(),
        "limits sliding": peers.limits(),
        "limits moving": peers.limits("moving"),
        "throttled-py": peers.throttled(),
        "pyrate-limiter": peers.pyrate(),
    }
    runs = {name: in_threads(_repeated(hit, 10_000), thread_count=THREAD_COUNT) for name, hit in hits.items()}
    times = take_turns(runs, turn_count=turn_count)
    yield from _times(f"{THREAD_COUNT} threads", times)
    factor = times["limits sliding"].median_ns / times["ours"].median_ns
    yield Result(f"decision/{THREAD_COUNT} threads/faster than limits sliding", factor, "x", ">= 3")


def _shared_stores(*, turn_count: int) -> Iterator[Result]:
    """A limiter that queries a server with each request, beside ours in memory."""
    with contextlib.ExitStack() as servers:
        uris = {"MongoDB": servers.enter_context(Mongod()).uri.replace("/?", "/limits?")}
        if shutil.which("redis-server"):
            uris["Redis"] = servers.enter_context(peers.redis_server())
        runs = {name: _repeated(peers.shared_limits(uri), 300) for name, uri in uris.items()}
        runs["ours"] = _repeated(subjects.ours(), 20_000)
        times = take_turns(runs, turn_count=turn_count)
    yield from _times("shared store", {f"limits on {name}": times[name] for name in uris})
    for name in uris:
        factor = times[name].median_ns / times["ours"].median_ns
        yield Result(f"decision/shared store/faster than limits on {name}", factor, "x")


def _repeated(hit: Hit, count: int) -> Run:
    def run_once() -> int:
        for _ in repeat(None, count):
            hit(USER)
        return count

    return run_once


class _Pass:
    """One hit on every key, each time in another order."""

    def __init__(self, hit: Hit, *, before: Callable[[], object] = lambda: None) -> None:
        self._hit = hit
        self._before = before
        self._users = subjects.user_names(KEY_COUNT)
        self._source = random.Random(3)

    def prepare(self) -> None:
        """Prepare a pass; this is not timed."""
        self._before()
        self._source.shuffle(self._users)

    def rehearse(self) -> None:
        """Run a pass untimed, then prepare the timed one."""
        self.prepare()
        self.run()
        self.prepare()

    def run(self) -> int:
        """Hit every key; this is timed."""
        hit = self._hit
        for user in self._users:
            hit(user)
        return len(self._users)


def _times(group: str, times: Mapping[str, Timing]) -> Iterator[Result]:
    for name, timing in times.items():
        yield Result(f"decision/{group}/{name}", timing.median_ns, "ns", spread=timing.spread_ns)
