"""Limiters on one store in memory, in simulated time."""

import heapq
import math
from dataclasses import dataclass, replace
from random import Random

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.traffic.minutes import quiet_limiter
from testbed.memory_store import MemoryStore

SEED = 2005  # fixed, so that the same file gives the same numbers
URGENT_DELAY_S = 0.005  # from a request until its key is synchronised: a wake-up, a pause and a round trip
ALONE_INTERVAL_S = 60.0  # an instance without a store has nothing to send, only idle keys to forget


class Fleet:
    """Instances with one configuration, synchronised as in production, but without the delay of a network.

    A full cycle runs in each sync interval, every instance at its own phase, and urgent keys are synchronised a few
    milliseconds after the request. Cycles that would find nothing to do are left out. Instances that do not share know
    nothing of each other.
    """

    store_class = MemoryStore

    def __init__(self, settings: Settings, instance_count: int, *, shares: bool = True) -> None:
        self.now_s = 0.0
        self.store = self.store_class(self._clock)
        settings = replace(settings, store=replace(settings.store, uri=None))
        self._interval_s = settings.sync.interval_s if shares else ALONE_INTERVAL_S
        self._random = Random(SEED).random
        self._instances = [
            _Instance(
                quiet_limiter(settings, self.store if shares else None, self._clock),
                phase_s=self._random() * self._interval_s,
            )
            for _ in range(instance_count)
        ]
        self.pseudonym_of = self._instances[0].limiter.pseudonym_of
        self._due: list[tuple[float, int]] = []  # time and number of an instance

    def _clock(self) -> float:
        return self.now_s

    def check(
        self,
        client_id: str,
        username: str | None = None,
        *,
        at_s: float,
        grant_type: str | None = None,
        instance: int | None = None,
    ) -> Decision:
        """Send a request to an instance, by default to a random one. Requests come in the order of time."""
        while self._due and self._due[0][0] <= at_s:
            self._run(*heapq.heappop(self._due))
        number = int(self._random() * len(self._instances)) if instance is None else instance
        chosen = self._instances[number]
        self.turn_to(number, at_s)
        decision = chosen.limiter.check(client_id, username, grant_type=grant_type)
        self._plan_cycle(number)
        self._plan_urgent(number)
        return decision

    def turn_to(self, number: int, at_s: float) -> None:
        self.now_s = at_s

    def close(self) -> None:
        for instance in self._instances:
            instance.limiter.close()

    def _run(self, at_s: float, number: int) -> None:
        instance = self._instances[number]
        self.turn_to(number, at_s)
        if at_s == instance.urgent_s:
            instance.urgent_s = math.inf
            instance.limiter.sync_urgent()
        if at_s == instance.cycle_s:
            instance.cycle_s = math.inf
            instance.limiter.sync(is_scheduled=True)
            self._plan_cycle(number)
        self._plan_urgent(number)

    def _plan_cycle(self, number: int) -> None:
        """Plan the next cycle that has something to do: most instances are idle most of the time."""
        instance, interval_s = self._instances[number], self._interval_s
        next_s = instance.limiter.next_due_s - interval_s / 2  # a cycle takes what is due until then
        if next_s == math.inf:
            return
        # A division by 0.2 may just miss the cycle that has run now.
        past_count = math.floor((self.now_s - instance.phase_s) / interval_s + 1e-4)
        next_count = past_count + 1
        if next_s > self.now_s:
            next_count = max(next_count, math.ceil((next_s - instance.phase_s) / interval_s - 1e-4))
        due_s = instance.phase_s + next_count * interval_s
        if due_s < instance.cycle_s:
            instance.cycle_s = due_s
            heapq.heappush(self._due, (due_s, number))

    def _plan_urgent(self, number: int) -> None:
        instance = self._instances[number]
        due_s = max(instance.limiter.next_urgent_s, self.now_s) + URGENT_DELAY_S
        if due_s < instance.urgent_s:
            instance.urgent_s = due_s
            heapq.heappush(self._due, (due_s, number))


@dataclass(slots=True)
class _Instance:
    """One limiter and the times of its next cycles, infinite without any."""

    limiter: Limiter
    phase_s: float
    cycle_s: float = math.inf
    urgent_s: float = math.inf
