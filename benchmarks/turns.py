"""Sync cycles at nearly the same time: their calls to the store come in between each other, as on several machines.

A cycle runs in a thread of its own, but only one at a time, on a clock that is set: who waits, for the store's answer
or before another try, hands over to the one whose turn is next. So the same draws give the same races.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from benchmarks.accuracy import Clock
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore

ROUND_TRIP_S = (0.0005, 0.0015)  # to MongoDB in the same data centre, at least and at most


@dataclass(order=True, slots=True)
class Turn:
    """When somebody goes on who waits now."""

    at_s: float
    number: int  # of two at the same time, who waits longer goes first
    has_come: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0), compare=False)


class Turns:
    """Whose turn it is.

    Args:
        clock: Is set to the time of each turn.
        most: How many can take turns.
    """

    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._executor = ThreadPoolExecutor(most)
        self._numbers = itertools.count()
        self._waiting: list[Turn] = []
        self._is_on = False

    def play(self, parts: Sequence[tuple[float, Callable[[], None]]]) -> None:
        """Have each part begin at its time, and return when all have ended."""
        if len(parts) == 1:
            ((self._clock.now_s, part),) = parts
            part()
            return
        playing = [self._executor.submit(self._take_part, self._line_up(at_s), part) for at_s, part in parts]
        self._is_on = True
        self._hand_over()
        wait(playing)
        self._is_on = False
        for future in playing:
            future.result()

    def wait(self, duration_s: float) -> None:
        """Let others go on meanwhile. Whoever plays alone does not notice that time passes."""
        if self._is_on:
            turn = self._line_up(self._clock.now_s + duration_s)
            self._hand_over()
            turn.has_come.acquire()

    def _take_part(self, turn: Turn, part: Callable[[], None]) -> None:
        turn.has_come.acquire()
        try:
            part()
        finally:
            self._hand_over()

    def _line_up(self, at_s: float) -> Turn:
        turn = Turn(at_s, next(self._numbers))
        heapq.heappush(self._waiting, turn)
        return turn

    def _hand_over(self) -> None:
        if self._waiting:
            turn = heapq.heappop(self._waiting)
            self._clock.now_s = turn.at_s
            turn.has_come.release()

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown()


class DistantStore(MemoryStore):
    """A store in memory to which each call takes a while.

    Args:
        turns: Who goes on meanwhile.
        rng: Draws how long it takes.
    """

    def __init__(self, turns: Turns, rng: random.Random) -> None:
        super().__init__()
        self._turns = turns
        self._rng = rng

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.read``."""
        self._turns.wait(self._rng.uniform(*ROUND_TRIP_S))
        return super().read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``."""
        self._turns.wait(self._rng.uniform(*ROUND_TRIP_S))
        return super().compare_and_set(writer, changes)
