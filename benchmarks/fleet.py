"""Several instances on one store, in compressed time.

They run as the scheduler runs them: a full cycle in each interval, every instance at its own phase, and urgent keys a
few milliseconds after the request. Each request goes to an instance at random, the worst case for sharing.
"""

import heapq
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnreachable
from oauth_ratelimit.replay.fleet import URGENT_DELAY_US
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock


class CountingStore(MemoryStore):
    """A store in memory that counts calls and documents.

    Args:
        clock: Returns the store's time in seconds since the epoch.

    Attributes:
        is_away: True while nobody reaches the store.
        trips: Calls. The flusher asks for one batch at a time, so each is a round trip.
        written: Documents sent, those that lost a race included.
        read_count: Documents asked for.
        conflicts: Writes that lost a race.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.is_away = False
        self.trips = self.written = self.read_count = self.conflicts = 0

    @property
    def most_marks(self) -> int:
        """The most instances that have left a mark in one document."""
        return max((len(document.writers) for document in self._documents.values()), default=0)

    def _make_trip(self) -> None:
        if self.is_away:
            raise StoreUnreachable("the instance is cut off")
        self.trips += 1

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.read``."""
        self._make_trip()
        self.read_count += len(keys)
        return super().read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``."""
        self._make_trip()
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
        is_cut: Returns whether an instance reaches no store at a time; all reach it by default.

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
        is_cut: Callable[[int, float], bool] = lambda _instance, _at_s: False,
    ) -> None:
        self._clock, self._rng, self._is_cut = Clock(begin_s), rng, is_cut
        self.store = CountingStore(self._clock)
        settings = load_config({**config, "sync": {"interval": interval_s, **config.get("sync", {})}})
        self._limiters = [Limiter(settings, self.store, clock=self._clock) for _ in range(instance_count)]
        self._interval_s = interval_s
        self._urgent_s = [math.inf] * instance_count  # time of the next urgent cycle by instance
        self._due = [(begin_s + rng.random() * interval_s, True, index) for index in range(instance_count)]
        heapq.heapify(self._due)  # time, full cycle or not, instance

    def check(self, client_id: str, at_s: float, *, instance: int | None = None) -> bool:
        """Send a request to an instance, by default to a random one, and return whether it was admitted."""
        self.run_until(at_s)
        index = int(self._rng.random() * len(self._limiters)) if instance is None else instance
        self.store.is_away = self._is_cut(index, at_s)
        is_allowed = self._limiters[index].check(client_id).allowed
        self._plan_urgent(index)
        return is_allowed

    def run_until(self, at_s: float) -> None:
        """Run the cycles that are due until a time."""
        while self._due[0][0] <= at_s:
            due_s, is_full, index = heapq.heappop(self._due)
            limiter = self._limiters[index]
            self.store.is_away = self._is_cut(index, due_s)
            if is_full:
                self._clock.now_s = due_s
                limiter.sync()
                heapq.heappush(self._due, (due_s + self._interval_s, True, index))
            elif due_s == self._urgent_s[index]:
                self._clock.now_s = due_s
                self._urgent_s[index] = math.inf
                limiter.sync_urgent()
            self._plan_urgent(index)
        self._clock.now_s = at_s

    def close(self) -> None:
        """Close all instances."""
        for limiter in self._limiters:
            limiter.close()

    def _plan_urgent(self, index: int) -> None:
        due_s = max(self._limiters[index].next_urgent_s, self._clock.now_s) + URGENT_DELAY_US / 1e6
        if due_s < self._urgent_s[index]:
            self._urgent_s[index] = due_s
            heapq.heappush(self._due, (due_s, False, index))
