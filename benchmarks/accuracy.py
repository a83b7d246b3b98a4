"""How far several instances are from an exact log, on recorded traffic in compressed time.

Each request goes to an instance at random. The instances run as the scheduler runs them, cycles at their own phase and
urgent keys each tenth of the interval, on an injected clock and one store.

``benchmarks.ways`` compares more ways to synchronise on the shipped trace, with races and missed deadlines.

The exact log admits a request if fewer than the limit were admitted in the window that ends with it. Against it are
counted, in percent of all requests: *allow*, admitted although the exact log of what was admitted denies; *deny*, the
other way round; and the *overshoot*, the most hits admitted in any window as a multiple of the limit.
"""

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import Result
from benchmarks.traces import Request, load_trace, traces
from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL

INSTANCE_COUNT = 10
SEED = 2005  # the same trace gives the same numbers again
BESIDE_COUNT = 60_000  # requests; reading every key each second takes long
GOALS = {
    "flush": {"allow": "<= 0.20", "deny": "<= 0.12", "overshoot": "<= 1.22"},
    "reserve": {"allow": "<= 0.11", "deny": "<= 0.11", "overshoot": "<= 1.16"},
}


@dataclass(slots=True)
class Tally:
    """What a replay came to."""

    requests: int = 0
    wrongly_allowed: int = 0
    wrongly_denied: int = 0
    most_in_window: int = 0
    operations: int = 0

    def add(self, report: CycleReport | None) -> None:
        """Add what a cycle did in the store."""
        if report is not None:
            self.operations += report.flushed_count + report.conflict_count + report.pulled_count

    def percent(self, count: int) -> float:
        """Return a share of all requests."""
        return 100 * count / self.requests


class Clock:
    """The time of the trace."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class ExactLog:
    """The admitted requests of each key in the window that ends now."""

    def __init__(self, limit: int, window_s: int) -> None:
        self._limit = limit
        self._window_s = window_s
        self._admitted: Mapping[str, deque[float]] = defaultdict(deque)

    def has_room(self, request: Request) -> bool:
        """Return whether it would admit a request."""
        admitted = self._admitted[request.key]
        while admitted and admitted[0] <= request.at_s - self._window_s:
            admitted.popleft()
        return len(admitted) < self._limit

    def add(self, request: Request) -> int:
        """Note an admitted request, and return how many there are in its window."""
        admitted = self._admitted[request.key]
        admitted.append(request.at_s)
        return len(admitted)


@dataclass(slots=True)
class Heard:
    """What an instance has heard of the others' requests with one key, and when."""

    at_s: float
    hits: int = 0
    rate: float = 0.0
    own: int = 0


class Forecast:
    """What one instance expects of the others: that they go on at the rate of the last two snapshots."""

    def __init__(self, limiter: Limiter, clock: Clock) -> None:
        self._limiter = limiter
        self._clock = clock
        self._heard: dict[str, Heard] = {}

    def denies(self, key: str) -> bool:
        """Return whether a request would be denied if the others had gone on."""
        heard = self._heard.setdefault(key, Heard(self._clock()))
        counts = self._limiter.counts(key)
        others = counts.shared_hits - (heard.own - counts.in_flight_hits)
        if others != heard.hits:
            passed_s = self._clock() - heard.at_s
            heard.rate = max(0.0, (others - heard.hits) / passed_s) if passed_s else heard.rate
            heard.hits, heard.at_s = others, self._clock()
        return self._limiter.peek(key).remaining < 1 + heard.rate * (self._clock() - heard.at_s)

    def add(self, key: str, allowed: bool) -> None:  # a fact, not an option
        """Note what became of a request."""
        self._heard[key].own += allowed


class Cycles:
    """When the instances synchronise: each at its own phase, and urgent keys at a tick between.

    Args:
        limiters: The instances.
        clock: Their time.
        interval_s: The sync interval.
        rng: Draws the phases.
        tally: Where to note what is done in the store.
    """

    def __init__(
        self, limiters: Sequence[Limiter], clock: Clock, *, interval_s: float, rng: random.Random, tally: Tally
    ) -> None:
        self.limiters = limiters
        self.clock = clock
        self.interval_s = interval_s
        self.rng = rng
        self.tally = tally
        # When, which instance, whether a full cycle. Urgent ticks are only played when a request may have asked.
        self.events = [(self.first_s(), index, True) for index in range(len(limiters))]
        heapq.heapify(self.events)

    def first_s(self) -> float:
        """Return when an instance's first cycle is."""
        return self.clock.now_s + self.rng.random() * self.interval_s

    def mark_urgent(self, index: int) -> None:
        """Have an instance look at its urgent keys, of which there may be some."""
        tick_s = self.clock.now_s + self.rng.random() * self.interval_s / TICKS_PER_INTERVAL
        heapq.heappush(self.events, (tick_s, index, False))

    def run_until(self, at_s: float) -> None:
        """Run what is due."""
        while self.events[0][0] <= at_s:
            self.clock.now_s, index, is_full = heapq.heappop(self.events)
            self.tally.add(self.limiters[index].sync() if is_full else self.limiters[index].sync_urgent())
            if is_full:
                heapq.heappush(self.events, (self.clock.now_s + self.interval_s, index, True))


def replay(
    requests: Sequence[Request],
    *,
    limit: int,
    window_s: int,
    interval_s: float = 1.0,
    instances: int = INSTANCE_COUNT,
    near_limit: str = "flush",
    early: bool = True,
    follow_all: bool = False,
    extrapolates: bool = False,
    open_store: Callable[[], CounterStore] | None = None,
    begin: Callable[..., Cycles] = Cycles,
) -> Tally:
    """Send a trace through several instances.

    Args:
        requests: The trace.
        limit: Requests per key and window.
        window_s: The window in seconds.
        interval_s: The sync interval.
        instances: How many there are.
        near_limit: ``flush`` or ``reserve``.
        early: Whether urgent keys are synchronised between cycles.
        follow_all: Whether each cycle reads every key that an instance knows: the plain protocol, at a fixed interval.
        extrapolates: Whether an instance reckons with what the others will have admitted since it last heard of them.
        open_store: Opens what they share, once for each; a store in memory by default.
        begin: Makes what runs their cycles, from the arguments of ``Cycles``.
    """
    clock = Clock(requests[0].at_s)
    shared = MemoryStore()
    settings = load_config(
        {
            "mode": "enforce",
            "limits": {"client": [{"limit": limit, "window": window_s}]},
            "sync": {"interval": interval_s, "near_limit": near_limit, "deadline": 1},
        }
    )
    stores = [open_store() if open_store else shared for _ in range(instances)]
    limiters = [Limiter(settings, store, clock=clock) for store in stores]
    if follow_all:
        for limiter in limiters:
            _follow_all(limiter)
    forecasts = [Forecast(limiter, clock) for limiter in limiters] if extrapolates else []
    rng = random.Random(SEED)
    exact, tally = ExactLog(limit, window_s), Tally()
    cycles = begin(limiters, clock, interval_s=interval_s, rng=rng, tally=tally)
    for request in requests:
        cycles.run_until(request.at_s)
        clock.now_s = request.at_s
        has_room = exact.has_room(request)
        index = rng.randrange(instances)
        if extrapolates and forecasts[index].denies(request.key):
            allowed = False
        else:
            allowed = limiters[index].check(request.key).allowed
            if extrapolates:
                forecasts[index].add(request.key, allowed)
        if early:
            cycles.mark_urgent(index)
        tally.requests += 1
        tally.wrongly_allowed += allowed and not has_room
        tally.wrongly_denied += has_room and not allowed
        if allowed:
            tally.most_in_window = max(tally.most_in_window, exact.add(request))
    for limiter in limiters:
        limiter.close()
    return tally


def _follow_all(limiter: Limiter) -> None:
    schedule = limiter._cycle.schedule
    schedule.reschedule = lambda state: schedule.add((state,))  # type: ignore[method-assign]


def run(*, short: bool) -> Iterator[Result]:
    """Yield the errors of the default configuration and of its alternatives, each with what it costs."""
    most = 20_000 if short else None
    for trace in traces():
        name, limit = trace.name, trace.limit
        requests = load_trace(trace.path, most=most)
        for label, options in (
            ("one instance", {"instances": 1}),
            ("flush", {}),
            ("fixed interval 1 s", {"early": False}),
            ("fixed interval 3 s", {"early": False, "interval_s": 3.0}),
            ("flush, extrapolating", {"extrapolates": True}),
            ("reserve", {"near_limit": "reserve"}),
        ):
            tally = replay(requests, limit=limit, window_s=60, **options)
            goals = GOALS.get(label, {}) if name == "lcg2005" else {}
            prefix = f"accuracy/{name}, {limit} in 60 s, {label}"
            yield Result(f"{prefix}/allow", tally.percent(tally.wrongly_allowed), "%", goals.get("allow"))
            yield Result(f"{prefix}/deny", tally.percent(tally.wrongly_denied), "%", goals.get("deny"))
            yield Result(f"{prefix}/overshoot", tally.most_in_window / limit, "x", goals.get("overshoot"))
            yield Result(f"{prefix}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")
        yield from _beside_the_plain_protocol(name, requests[:BESIDE_COUNT], limit)


def _beside_the_plain_protocol(name: str, requests: Sequence[Request], limit: int) -> Iterator[Result]:
    """Yield how much less is let through than by the plain protocol, and with how much less to do."""
    default = replay(requests, limit=limit, window_s=60)
    plain = replay(requests, limit=limit, window_s=60, early=False, follow_all=True)
    prefix = f"accuracy/{name}, first {len(requests)}"
    for label, tally in (("flush", default), ("every key each second", plain)):
        yield Result(f"{prefix}, {label}/allow", tally.percent(tally.wrongly_allowed), "%")
        yield Result(f"{prefix}, {label}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")
    beside = f"{prefix}, flush against every key each second"
    yield Result(f"{beside}/allow", default.wrongly_allowed / plain.wrongly_allowed, "x", "<= 1")
    yield Result(f"{beside}/operations", default.operations / plain.operations, "x", "<= 1")
