"""Whether limiters on a real MongoDB decide as they do on the store in memory, which the other measurements use.

Recorded traffic in compressed time, through ten instances that have a connection each. Its clock is moved into the
future, where MongoDB's real clock does not expire what was just written, and dates the marks of the writers, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, fields, replace

from benchmarks.accuracy import Tally, replay
from benchmarks.processes import in_new_process
from benchmarks.results import Result
from benchmarks.traces import Request, Trace, load_trace, traces
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.sync import flusher
from tests.support.mongod import Mongod
from tests.support.stores import mongo_store

WINDOW_S = 60
WAYS = {"flush": ("flush", 1.0), "flush, T = 3 s": ("flush", 3.0), "reserve": ("reserve", 1.0)}  # near_limit, T
REQUEST_COUNT = 3_000
INTO_THE_FUTURE_S = 1_200_000_000 // 86_400 * 86_400  # whole days, so that frames begin where they did


def run(*, short: bool) -> Iterator[Result]:
    """Yield the errors on both stores, and how many counts differ."""
    count = 1_000 if short else REQUEST_COUNT
    with Mongod() as mongod:
        for trace in traces():
            for way in WAYS:
                memory, mongo = (in_new_process(_replayed, trace, count, way, uri) for uri in (None, mongod.uri))
                prefix = f"stores/{trace.name}, first {count:,}, {trace.limit} in {WINDOW_S} s, {way}"
                yield from _compared(prefix, memory, mongo, limit=trace.limit)


def _compared(prefix: str, memory: Tally, mongo: Tally, *, limit: int) -> Iterator[Result]:
    for name, tally in (("in memory", memory), ("on MongoDB", mongo)):
        yield Result(f"{prefix}, {name}/allow", tally.percent(tally.wrongly_allowed), "%")
        yield Result(f"{prefix}, {name}/deny", tally.percent(tally.wrongly_denied), "%")
        yield Result(f"{prefix}, {name}/overshoot", tally.most_in_window / limit, "x")
        yield Result(f"{prefix}, {name}/operations", tally.operations, "operations")
    differing = sum(one != other for one, other in zip(astuple(memory), astuple(mongo), strict=True))
    yield Result(f"{prefix}/counts that differ, of {len(fields(Tally))}", differing, "counts", "<= 0")


def _replayed(trace: Trace, count: int, way: str, uri: str | None) -> Tally:
    requests = [replace(one, at_s=one.at_s + INTO_THE_FUTURE_S) for one in load_trace(trace.path, most=count)[:count]]
    _date_marks(requests)
    near_limit, interval_s = WAYS[way]
    return replay(
        requests,
        limit=trace.limit,
        window_s=WINDOW_S,
        near_limit=near_limit,
        interval_s=interval_s,
        open_store=_opener(f"{trace.name}_{list(WAYS).index(way)}", uri),
    )


def _opener(collection: str, uri: str | None) -> Callable[[], CounterStore] | None:
    return None if uri is None else lambda: mongo_store(uri, collection=collection)


def _date_marks(requests: Sequence[Request]) -> None:
    """Have every mark be as old as the trace begins: in compressed time none grows old, on either store.

    A mark that is old by the real clock tells that its writer is gone; so the slower store would have fewer writers.
    """
    start_ms = int(requests[0].at_s * 1000)
    flusher._now_ms = lambda: start_ms
