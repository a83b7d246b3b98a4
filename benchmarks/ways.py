"""
Ways to synchronise ten instances, on the shipped trace: what each lets through and denies, beside what it costs.

As in ``benchmarks.accuracy``, limiters themselves in compressed time, and with more of what the ways differ in: cycles
that begin within a few milliseconds race each other (``benchmarks.turns``), the marks of writers grow old by the clock
of the trace, what reservations do in the store is counted, and MongoDB can answer them too late. Every way gets the
same requests on the same instances.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.accuracy import SEED, SHIPPED, Clock, Cycles, Request, Tally, load_trace, replay
from benchmarks.results import Result
from benchmarks.turns import DistantStore, Turns
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.sync import flusher, reservation
from oauth_ratelimit.sync.flusher import CycleReport, Flusher
from oauth_ratelimit.sync.keys import KeyState
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL

LIMIT, WINDOW_S = 10, 60
PREFIX = f"ways/nasa19950801, {LIMIT} in {WINDOW_S} s"
SHORT_COUNT = 300  # requests
HOT_S, HOT_RATE, HOT_LIMIT = 60, 100, 10**6  # a key of which every instance has something to send in every cycle
OVERLAP_S = 0.005  # as long as a cycle with a few races
DEADLINE_S = 1.0  # of ``replay``, on a clock that only passes it for late answers
LATE_S = 0.04  # a late answer comes after twice the default deadline


class Rivals(Cycles):
    """
    The default: each instance at its own phase. See ``Cycles``; draws of its own leave the others' as they are.

    Attributes:
        turns: Whose turn it is in the store.

        conflict_count: Writes that lost a race.

        wait_count: Requests that waited for the store.
    """

    def __init__(
        self, limiters: Sequence[Limiter], clock: Clock, *, interval_s: float, rng: random.Random, tally: Tally
    ) -> None:
        super().__init__(limiters, clock, interval_s=interval_s, rng=random.Random(SEED + 1), tally=tally)
        self.turns = Turns(clock, most=len(limiters))
        self.conflict_count = self.wait_count = 0
        store = DistantStore(self.turns, self.rng)
        for limiter in limiters:
            cycle = limiter._cycle
            cycle._store = cycle._flusher._store = store
            cycle._flusher._sleep = self.turns.wait
            if limiter._reservations is not None:
                cycle.run_for = partial(self._run_for, cycle.run_for)  # type: ignore[method-assign]
                decide = partial(self.decide, limiter._reservations.decide)
                limiter._reservations.decide = decide  # type: ignore[method-assign]

    def _run_for(self, run_for: Callable[..., CycleReport], *args: Any) -> CycleReport:
        report = run_for(*args)
        self.note(report)
        return report

    def decide(self, decide: Callable[..., Decision], *args: Any) -> Decision:
        """
        Have a request wait that is one of the last of its quota.
        """
        self.wait_count += 1
        return decide(*args)

    def note(self, report: CycleReport | None) -> None:
        """
        Count what was done in the store.
        """
        self.tally.add(report)
        self.conflict_count += report.conflict_count if report else 0

    def run_until(self, at_s: float) -> None:
        """
        See ``Cycles.run_until``.
        """
        while self.events[0][0] <= at_s:
            parts = self._next(min(at_s, self.events[0][0] + OVERLAP_S))
            if parts:
                self.play(parts)

    def _next(self, until_s: float) -> dict[int, tuple[float, bool]]:
        """
        Return which instances have a cycle next that may overlap, each with its time and whether it is a full one.
        """
        parts: dict[int, tuple[float, bool]] = {}
        while True:
            at_s, index, is_full = self.events[0]
            if at_s > until_s or (is_full and index in parts):
                return parts
            heapq.heappop(self.events)
            if is_full:
                heapq.heappush(self.events, (at_s + self.interval_s, index, True))
            if is_full or (index not in parts and self.limiters[index]._places.notices.has_urgent):
                parts[index] = at_s, is_full

    def play(self, parts: Mapping[int, tuple[float, bool]]) -> None:
        """
        Run cycles: at the same time those that have something to send for the same key, which alone can race.
        """
        sending = {index: self._sending(index) for index in parts} if len(parts) > 1 else {}
        rivals = []
        for index, (at_s, is_full) in parts.items():
            if any(keys & sending[index] for other, keys in sending.items() if other != index):
                rivals.append(index)
            else:
                self.clock.now_s = at_s
                self.run(index, is_full)
        if rivals:
            order = self.rng.sample(rivals, len(rivals))
            self.turns.play([(parts[index][0], partial(self.run, index, parts[index][1])) for index in order])

    def _sending(self, index: int) -> set[Key]:
        """
        Return the keys that an instance may have something to send for.
        """
        limiter = self.limiters[index]
        notices, listed = limiter._places.notices, limiter._cycle.agenda.listed()
        states = itertools.chain(notices._touched, notices._urgent, (state for state in listed if state.unsent))
        return {state.key for state in states}

    def run(self, index: int, is_full: bool) -> None:  # a fact, not an option
        """
        Run a cycle of one instance.
        """
        self.note(self.limiters[index].sync() if is_full else self.limiters[index].sync_urgent())


class Aligned(Rivals):
    """
    All instances at the same instants of the clock.
    """

    def first_s(self) -> float:
        """
        See ``Cycles.first_s``.
        """
        return math.ceil(self.clock.now_s / self.interval_s) * self.interval_s

    def hurry(self, index: int) -> None:
        """
        See ``Cycles.hurry``.
        """
        tick_s = self.interval_s / TICKS_PER_INTERVAL
        number = int(self.clock.now_s / tick_s) + 1
        if number % TICKS_PER_INTERVAL:  # else it is a full cycle's
            heapq.heappush(self.events, (number * tick_s, index, False))


class PushOnly:
    """
    Puts off what a cycle wants to read.

    Args:
        flusher: Does the rest.

    Attributes:
        to_pull: What the cycle has written, and what it wants to read.
    """

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self.to_pull: list[KeyState] = []

    def flush(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """
        See ``Flusher.flush``.
        """
        written = self._flusher.flush(states, now_s, report)
        self.to_pull += written
        return written

    def pull(self, states: Sequence[KeyState], _now_s: float, _report: CycleReport) -> list[KeyState]:
        """
        Read nothing yet.
        """
        self.to_pull += states
        return []


class PushThenPull(Aligned):
    """
    All instances push, one after the other; when the last one has, all pull.
    """

    def play(self, parts: Mapping[int, tuple[float, bool]]) -> None:
        """
        See ``Rivals.play``.
        """
        pushed = []
        for index in self.rng.sample(list(parts), len(parts)):
            self.clock.now_s, is_full = parts[index]
            cycle = self.limiters[index]._cycle
            real = cycle._flusher
            cycle._flusher = push_only = PushOnly(real)
            self.run(index, is_full)
            cycle._flusher = real
            pushed.append((cycle, push_only.to_pull))
        for cycle, states in pushed:
            report = CycleReport()
            changed = cycle._flusher.pull(states, self.clock.now_s, report)
            cycle.agenda.add(state for state in changed if state.is_filling)
            self.note(report)


class Stopwatch:
    """
    The time by which deadlines are measured.
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """
        Return the time, as ``time`` does.
        """
        return self.now_s


class LateAnswers(Rivals):
    """
    The default, with a MongoDB that lets the deadline of some reservations pass, and answers them then.

    Args:
        share: Of how many, from 0 to 1.

        stopwatch: What their deadlines are measured by.
    """

    def __init__(self, *args: Any, share: float, stopwatch: Stopwatch, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._share = share
        self._stopwatch = stopwatch
        self._is_late = False
        self._numbers = itertools.count()
        self._answers: list[tuple[float, int, Callable[[], object]]] = []
        for limiter in self.limiters:
            reservations = limiter._reservations
            reservations._executor = LateExecutor(reservations._executor, self)

    def decide(self, decide: Callable[..., Decision], *args: Any) -> Decision:
        """
        See ``Rivals.decide``.
        """
        self._is_late = self.rng.random() < self._share
        return super().decide(decide, *args)

    def put_off(self, work: Callable[[], object]) -> bool:
        """
        Have the deadline pass first, if that is to be: return whether.
        """
        if self._is_late:
            self._stopwatch.now_s += DEADLINE_S
            heapq.heappush(self._answers, (self.clock.now_s + LATE_S, next(self._numbers), work))
        return self._is_late

    def run_until(self, at_s: float) -> None:
        """
        See ``Cycles.run_until``.
        """
        while self._answers and self._answers[0][0] <= at_s:
            answer_s, _, work = heapq.heappop(self._answers)
            super().run_until(answer_s)
            self.clock.now_s = answer_s
            work()
        super().run_until(at_s)


class LateExecutor:
    """
    In place of a reservation's executor.

    Args:
        executor: Runs what is answered in time.

        answers: Runs what is not.
    """

    def __init__(self, executor: ThreadPoolExecutor, answers: LateAnswers) -> None:
        self._executor = executor
        self._answers = answers

    def submit(self, work: Callable[[], object]) -> Future[object] | None:
        """
        Run work, now or later.
        """
        return None if self._answers.put_off(work) else self._executor.submit(work)

    def shutdown(self) -> None:
        """
        Take no more work.
        """
        self._executor.shutdown()


@dataclass(frozen=True, slots=True)
class Way:
    """
    A way to synchronise.

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
    Way("aligned, all push, then all pull, no early flush", INTERVAL_ONLY, PushThenPull),
    Way("aligned, all push, then all pull, early flush", {}, PushThenPull),
    Way("default, extrapolating", {"extrapolates": True}),
    Way("reserve", RESERVE),
    Way("reserve, half of the deadlines missed", RESERVE, late_share=0.5),
    Way("reserve, every deadline missed", RESERVE, late_share=1.0),
)


def run(*, short: bool) -> Iterator[Result]:
    """
    Yield the errors of each way, and what it costs.
    """
    requests = load_trace(SHIPPED, most=SHORT_COUNT if short else None)
    hot = [Request(requests[0].at_s + number / HOT_RATE, "hot") for number in range(HOT_S * HOT_RATE)]
    for way in WAYS:
        tally, cycles = measure(way, requests)
        prefix = f"{PREFIX}, {way.name}"
        yield Result(f"{prefix}/allow", tally.percent(tally.wrongly_allowed), "%")
        yield Result(f"{prefix}/deny", tally.percent(tally.wrongly_denied), "%")
        yield Result(f"{prefix}/overshoot", tally.most_in_window / LIMIT, "x")
        yield Result(f"{prefix}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")
        yield Result(f"{prefix}/conflicts", 1000 * cycles.conflict_count / tally.requests, "per 1,000 requests")
        yield Result(f"{prefix}/waits", tally.percent(cycles.wait_count), "%")
        tally, cycles = measure(way, hot, limit=HOT_LIMIT)
        yield Result(f"{prefix}/operations on a hot key", tally.operations / HOT_S, "per second")
        yield Result(f"{prefix}/conflicts on a hot key", cycles.conflict_count / HOT_S, "per second")


def measure(way: Way, requests: Sequence[Request], *, limit: int = LIMIT) -> tuple[Tally, Rivals]:
    """
    Send a trace through instances that synchronise in one way.
    """
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
