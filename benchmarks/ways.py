"""Ways to synchronise ten instances, on the shipped trace: what each lets through and denies, beside what it costs.

As in ``benchmarks.accuracy``, limiters themselves in compressed time, and with more of what the ways differ in: cycles
that begin within a few milliseconds race each other (``benchmarks.rivals``), the marks of writers grow old by the clock
of the trace, what reservations do in the store is counted, and MongoDB can answer them too late. Every way gets the
same requests on the same instances.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.accuracy import SEED, Tally, replay
from benchmarks.late_answers import LateAnswers, Stopwatch
from benchmarks.results import Result
from benchmarks.rivals import Aligned, FlushThenPull, Rivals
from benchmarks.traces import SHIPPED, Request, load_trace
from oauth_ratelimit.sync import flusher, reservation

WINDOW_S = 60
PREFIX = f"ways/{SHIPPED.name}, {SHIPPED.limit} in {WINDOW_S} s"
SHORT_COUNT = 300  # requests
HOT_S, HOT_RATE, HOT_LIMIT = 60, 100, 10**6  # a key of which every instance has something to send in every cycle


@dataclass(frozen=True, slots=True)
class Way:
    """A way to synchronise.

    Args:
        name: What it is called, in the results and on the page.
        options: Of ``replay``.
        begin: What runs the cycles.
        late_share: How many reservations are answered after their deadline, from 0 to 1.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[..., Rivals] = Rivals
    late_share: float = 0.0


INTERVAL_ONLY: Mapping[str, Any] = {"early": False}
RESERVE: Mapping[str, Any] = {"near_limit": "reserve"}
WAYS = (
    Way("one instance", {"instances": 1}),
    Way("every key each second", {"early": False, "follow_all": True}),
    Way("T = 1 s, no early flush", INTERVAL_ONLY),
    Way("T = 3 s, no early flush", {"early": False, "interval_s": 3.0}),
    Way("T = 1 s, early flush: the default"),
    Way("T = 3 s, early flush", {"interval_s": 3.0}),
    Way("aligned, no early flush", INTERVAL_ONLY, Aligned),
    Way("aligned, early flush", {}, Aligned),
    Way("aligned, all flush, then all pull, no early flush", INTERVAL_ONLY, FlushThenPull),
    Way("aligned, all flush, then all pull, early flush", {}, FlushThenPull),
    Way("default, extrapolating", {"extrapolates": True}),
    Way("reserve", RESERVE),
    Way("reserve, half of the deadlines missed", RESERVE, late_share=0.5),
    Way("reserve, every deadline missed", RESERVE, late_share=1.0),
)


def run(*, short: bool) -> Iterator[Result]:
    """Yield the errors of each way, and what it costs."""
    requests = load_trace(SHIPPED.path, most=SHORT_COUNT if short else None)
    hot = [Request(requests[0].at_s + number / HOT_RATE, "hot") for number in range(HOT_S * HOT_RATE)]
    for way in WAYS:
        tally, cycles = measure(way, requests)
        prefix = f"{PREFIX}, {way.name}"
        yield Result(f"{prefix}/allow", tally.percent(tally.wrongly_allowed), "%")
        yield Result(f"{prefix}/deny", tally.percent(tally.wrongly_denied), "%")
        yield Result(f"{prefix}/overshoot", tally.most_in_window / SHIPPED.limit, "x")
        yield Result(f"{prefix}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")
        yield Result(f"{prefix}/conflicts", 1000 * cycles.conflict_count / tally.requests, "per 1,000 requests")
        yield Result(f"{prefix}/waits", tally.percent(cycles.wait_count), "%")
        tally, cycles = measure(way, hot, limit=HOT_LIMIT)
        yield Result(f"{prefix}/operations on a hot key", tally.operations / HOT_S, "per second")
        yield Result(f"{prefix}/conflicts on a hot key", cycles.conflict_count / HOT_S, "per second")


def measure(way: Way, requests: Sequence[Request], *, limit: int = SHIPPED.limit) -> tuple[Tally, Rivals]:
    """Send a trace through instances that synchronise in one way."""
    begun: list[Rivals] = []
    stopwatch = Stopwatch()
    make = partial(LateAnswers, share=way.late_share, stopwatch=stopwatch) if way.late_share else way.begin

    def begin(*args: Any, **kwargs: Any) -> Rivals:
        begun.append(make(*args, **kwargs))
        return begun[0]

    random.seed(SEED)  # the flusher draws its pauses from there
    with (
        patch.object(flusher, "_now_ms", lambda: int(begun[0].clock.now_s * 1000)),
        patch.object(reservation, "time", stopwatch),
    ):
        tally = replay(requests, limit=limit, window_s=WINDOW_S, begin=begin, **way.options)
    begun[0].turns.close()
    return tally, begun[0]
