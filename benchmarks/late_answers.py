"""Reservations whose deadline passes, in compressed time, and that MongoDB answers afterwards."""

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from benchmarks.rivals import Rivals
from oauth_ratelimit.core.decision import Decision

DEADLINE_S = 1.0  # of ``accuracy.replay``, on a clock that only passes it for late answers
LATE_S = 0.04  # a late answer comes after twice the default deadline


class Stopwatch:
    """The time by which deadlines are measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Return the time, as ``time`` does."""
        return self.now_s


class LateAnswers(Rivals):
    """The default, with a MongoDB that lets the deadline of some reservations pass, and answers them then.

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
        """See ``Rivals.decide``."""
        self._is_late = self.rng.random() < self._share
        return super().decide(decide, *args)

    def reschedule(self, work: Callable[[], object]) -> bool:
        """Have the deadline pass first, if that is to be: return whether."""
        if self._is_late:
            self._stopwatch.now_s += DEADLINE_S
            heapq.heappush(self._answers, (self.clock.now_s + LATE_S, next(self._numbers), work))
        return self._is_late

    def run_until(self, at_s: float) -> None:
        """See ``Cycles.run_until``."""
        while self._answers and self._answers[0][0] <= at_s:
            answer_s, _, work = heapq.heappop(self._answers)
            super().run_until(answer_s)
            self.clock.now_s = answer_s
            work()
        super().run_until(at_s)


class LateExecutor:
    """In place of a reservation's executor.

    Args:
        executor: Runs what is answered in time.
        answers: Runs what is not.
    """

    def __init__(self, executor: ThreadPoolExecutor, answers: LateAnswers) -> None:
        self._executor = executor
        self._answers = answers

    def submit(self, work: Callable[[], object]) -> Future[object] | None:
        """Run work, now or later."""
        return None if self._answers.reschedule(work) else self._executor.submit(work)

    def shutdown(self) -> None:
        """Take no more work."""
        self._executor.shutdown()
