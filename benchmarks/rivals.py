"""
Sync cycles that begin within a few milliseconds, and so race each other: at the phases that instances have by default,
or aligned on the clock.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.accuracy import SEED, Clock, Cycles, Tally
from benchmarks.turns import DistantStore, Turns
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.sync.flusher import CycleReport, Flusher
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL

OVERLAP_S = 0.005  # as long as a cycle with a few races


class Rivals(Cycles):
    """The default: each instance at its own phase. See ``Cycles``; draws of its own leave the others' as they are.

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
        """Have a request wait that is one of the last of its quota."""
        self.wait_count += 1
        return decide(*args)

    def note(self, report: CycleReport | None) -> None:
        """Count what was done in the store."""
        self.tally.add(report)
        self.conflict_count += report.conflict_count if report else 0

    def run_until(self, at_s: float) -> None:
        """See ``Cycles.run_until``."""
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
            if is_full or (index not in parts and self.limiters[index]._clients.dirty_queue.has_urgent):
                parts[index] = at_s, is_full

    def play(self, parts: Mapping[int, tuple[float, bool]]) -> None:
        """Run cycles: at the same time those that have something to send for the same key, which alone can race."""
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
        """Return the keys that an instance may have something to send for."""
        limiter = self.limiters[index]
        dirty_queue, listed = limiter._clients.dirty_queue, limiter._cycle.schedule.listed()
        states = itertools.chain(dirty_queue._dirty, dirty_queue._urgent, (state for state in listed if state.unsent))
        return {state.key for state in states}

    def run(self, index: int, is_full: bool) -> None:  # a fact, not an option
        """Run a cycle of one instance."""
        self.note(self.limiters[index].sync() if is_full else self.limiters[index].sync_urgent())


class Aligned(Rivals):
    """All instances at the same instants of the clock."""

    def first_s(self) -> float:
        """See ``Cycles.first_s``."""
        return math.ceil(self.clock.now_s / self.interval_s) * self.interval_s

    def mark_urgent(self, index: int) -> None:
        """See ``Cycles.mark_urgent``."""
        tick_s = self.interval_s / TICKS_PER_INTERVAL
        number = int(self.clock.now_s / tick_s) + 1
        if number % TICKS_PER_INTERVAL:  # else it is a full cycle's
            heapq.heappush(self.events, (number * tick_s, index, False))


class FlushOnly:
    """Puts off what a cycle wants to read.

    Args:
        flusher: Does the rest.

    Attributes:
        to_pull: What the cycle has written, and what it wants to read.
    """

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self.to_pull: list[KeyState] = []

    def flush(self, states: Sequence[KeyState], now_s: float, report: CycleReport) -> list[KeyState]:
        """See ``Flusher.flush``."""
        written = self._flusher.flush(states, now_s, report)
        self.to_pull += written
        return written

    def pull(self, states: Sequence[KeyState], _now_s: float, _report: CycleReport) -> list[KeyState]:
        """Read nothing yet."""
        self.to_pull += states
        return []


class FlushThenPull(Aligned):
    """All instances flush, one after the other; when the last one has, all pull."""

    def play(self, parts: Mapping[int, tuple[float, bool]]) -> None:
        """See ``Rivals.play``."""
        flushed = []
        for index in self.rng.sample(list(parts), len(parts)):
            self.clock.now_s, is_full = parts[index]
            cycle = self.limiters[index]._cycle
            real = cycle._flusher
            cycle._flusher = flush_only = FlushOnly(real)
            self.run(index, is_full)
            cycle._flusher = real
            flushed.append((cycle, flush_only.to_pull))
        for cycle, states in flushed:
            report = CycleReport()
            changed = cycle._flusher.pull(states, self.clock.now_s, report)
            cycle.schedule.add(state for state in changed if state.is_filling)
            self.note(report)
