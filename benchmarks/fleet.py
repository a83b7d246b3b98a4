"""Several instances on one store, in compressed time.

They run as the scheduler runs them: a tick each tenth of the interval, a full cycle at each tenth tick, every instance
at its own phase. Each request goes to an instance at random, the worst case for sharing.
"""

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.subjects import Clock
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL


class CountingStore(MemoryStore):
    """A store in memory that counts calls and documents.

    Attributes:
        trips: Calls. The flusher asks for one batch at a time, so each is a round trip.
        written: Documents sent, those that lost a race included.
        read_count: Documents asked for.
        conflicts: Writes that lost a race.
    """

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
    """Instances with one clock and one store.

    Args:
        instance_count: Number of instances.
        config: Their configuration.
        rng: Draws phases, and the instance of each request.
        interval_s: The sync interval.
        begin_s: The time at the beginning.

    Attributes:
        store: What they share.
    """

    def __init__(
        self,
        instance_count: int,
        config: Mapping[str, Any],
        rng: random.Random,
        *,
        interval_s: float,
        begin_s: float,
    ) -> None:
        self.store = CountingStore()
        self._clock, self._rng = Clock(begin_s), rng
        settings = load_config({**config, "sync": {"interval": interval_s, **config.get("sync", {})}})
        self._limiters = [Limiter(settings, self.store, clock=self._clock) for _ in range(instance_count)]
        self._tick_s = interval_s / TICKS_PER_INTERVAL
        self._ticks = [  # time, instance, number of the tick
            (begin_s + rng.random() * self._tick_s, index, rng.randrange(TICKS_PER_INTERVAL))
            for index in range(instance_count)
        ]
        heapq.heapify(self._ticks)

    def check(self, client_id: str, at_s: float) -> bool:
        """Send a request to one of the instances, and return whether it was admitted."""
        self._run_until(at_s)
        limiter = self._limiters[int(self._rng.random() * len(self._limiters))]
        return limiter.check(client_id).allowed

    def close(self) -> None:
        """Close all instances."""
        for limiter in self._limiters:
            limiter.close()

    def _run_until(self, at_s: float) -> None:
        while self._ticks[0][0] <= at_s:
            self._clock.now_s, index, number = self._ticks[0]
            limiter = self._limiters[index]
            synchronise: Callable[[], object] = limiter.sync_urgent if number % TICKS_PER_INTERVAL else limiter.sync
            synchronise()
            heapq.heapreplace(self._ticks, (self._clock.now_s + self._tick_s, index, number + 1))
        self._clock.now_s = at_s
