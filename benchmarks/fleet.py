"""Instances on one store that counts what it is asked for, in compressed time.

The instances run as the scheduler runs them: a tick each tenth of the interval, each tenth tick a full cycle, each
instance at its own phase. A request goes to any of the instances: the worst case, because every key wanders.
"""

import heapq
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TypeVar

from benchmarks import subjects
from benchmarks.accuracy import Clock
from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL

MAX_KEYS = 2_000_000  # so many that no instance has to make room
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Load:
    """What happens per second, all instances together.

    Attributes:
        requests: Requests decided.
        trips: Round trips to the store. A batch is one: the flusher asks for so much at a time and no more.
        written: Documents sent, those that lost a race included.
        read: Documents asked for.
        conflicts: Writes that lost a race.
    """

    requests: float
    trips: float
    written: float
    read: float
    conflicts: float


class CountingStore(MemoryStore):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = self.written = self.read_count = self.conflicts = 0

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.read``."""
        self.trips += 1
        self.read_count += len(keys)
        return super().read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``."""
        self.trips += 1
        self.written += len(changes)
        result = super().compare_and_set(writer, changes)
        self.conflicts += len(result.lost)
        return result


class Fleet:
    """The instances, and what is asked of them.

    Args:
        instance_count: How many.
        rng: Draws phases, and where each request goes.
        window_s: Of the limit, which nobody comes near.
        interval_s: The sync interval.
    """

    def __init__(self, instance_count: int, rng: random.Random, *, window_s: int, interval_s: float = 1.0) -> None:
        self._clock, self._store, self._rng = Clock(subjects.STANDING_S), CountingStore(), rng
        settings = load_config(
            {
                "mode": "enforce",
                "limits": {"client": [{"limit": subjects.NO_LIMIT, "window": window_s}]},
                "sync": {"interval": interval_s},
                "max_keys": MAX_KEYS,
            }
        )
        self._limiters = [Limiter(settings, self._store, clock=self._clock) for _ in range(instance_count)]
        self._tick_s = interval_s / TICKS_PER_INTERVAL
        # When, which instance, which of its ticks.
        self._ticks = [
            (self._clock.now_s + rng.random() * self._tick_s, index, rng.randrange(TICKS_PER_INTERVAL))
            for index in range(instance_count)
        ]
        heapq.heapify(self._ticks)
        self._request_count = 0

    def learn(self, names: Iterable[str]) -> None:
        """Have each client ask once, and every instance run a full cycle."""
        for name in names:
            self._any(self._limiters).check(name)
        for limiter in self._limiters:
            limiter.sync()

    def load(self, arrivals: Iterable[float], names: Sequence[str], *, warm_up_s: float, measured_s: float) -> Load:
        """Have any of the clients ask at each of some times, and return what that comes to after the warm-up.

        Args:
            arrivals: Seconds from now, in order, until after the end.
            names: The clients.
            warm_up_s: Until things are even.
            measured_s: From then on.
        """
        start_s, before = self._clock.now_s, None
        for arrival_s in arrivals:
            if arrival_s >= warm_up_s + measured_s:
                break
            self._advance(start_s + arrival_s)
            if before is None and arrival_s >= warm_up_s:
                before = self._counts()
            self._any(self._limiters).check(self._any(names))
            self._request_count += 1
        assert before is not None
        pairs = zip(astuple(self._counts()), astuple(before), strict=True)
        return Load(*((now - then) / measured_s for now, then in pairs))

    def _any(self, items: Sequence[Item]) -> Item:
        return items[int(self._rng.random() * len(items))]

    def _advance(self, to_s: float) -> None:
        """Let time pass, and play the ticks in it."""
        while self._ticks[0][0] <= to_s:
            self._clock.now_s, index, number = self._ticks[0]
            limiter = self._limiters[index]
            if number % TICKS_PER_INTERVAL:
                limiter.sync_urgent()
            else:
                limiter.sync()
            heapq.heapreplace(self._ticks, (self._clock.now_s + self._tick_s, index, number + 1))
        self._clock.now_s = to_s

    def _counts(self) -> Load:
        store = self._store
        return Load(self._request_count, store.trips, store.written, store.read_count, store.conflicts)
