"""Recorded traffic under a configuration: the requests that its limits would deny, by client, user, limit and minute.

The requests are decided by the limiter itself, on the time of the recording. Several instances share their counts
through a store in memory and synchronise as in production, but without the delay of a network.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.cached_denial import SuppressionPeriod
from oauth_ratelimit.core.decision import FullDecision, outcome_of
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.replay.fleet import URGENT_DELAY_US
from oauth_ratelimit.replay.formats import SECOND_US, Row
from oauth_ratelimit.store.memory import MemoryStore

MINUTE_S = 60
ALONE_CYCLE_S = 60.0  # an instance without a store has nothing to send, only idle keys to forget
SEED = 2005  # fixed, so that the same file gives the same numbers

ClientUser = tuple[str, str | None]
"""Client, and pseudonym of the user or None."""


class _NoEvents(DenialEvents):
    """Events that are not logged: a recording may hold millions of denials."""

    def report(self, *args: object, now_s: float, **kwargs: object) -> SuppressionPeriod:
        """See ``DenialEvents.report``."""
        return SuppressionPeriod(now_s, math.inf, None)


@dataclass(slots=True)
class Outcomes:
    """Counts of the requests of one replay.

    Attributes:
        instance_count: Number of instances.
        requests: All requests.
        trusted: Decided requests of trusted clients.
        unlimited: Decided requests that no limit applies to.
        denied: Requests that are denied under the modes of the configuration.
        over: Requests over a limit, by client and user: what is denied if everything is enforced.
        by_policy: The same by limit.
        by_minute: The same by the start of the minute, seconds since the epoch.
        by_client: Decided requests by client.
    """

    instance_count: int
    requests: int = 0
    trusted: int = 0
    unlimited: int = 0
    denied: int = 0
    over: Counter[ClientUser] = field(default_factory=Counter)
    by_policy: Counter[Policy | None] = field(default_factory=Counter)
    by_minute: Counter[int] = field(default_factory=Counter)
    by_client: Counter[str] = field(default_factory=Counter)

    @property
    def over_count(self) -> int:
        """Number of requests over a limit."""
        return self.over.total()

    @property
    def over_clients(self) -> Counter[str]:
        """Requests over a limit by client."""
        clients: Counter[str] = Counter()
        for (client_id, _), count in self.over.items():
            clients[client_id] += count
        return clients

    @property
    def over_users(self) -> Counter[ClientUser]:
        """Requests over a limit by client and user, without requests that have no user."""
        return Counter({key: count for key, count in self.over.items() if key[1] is not None})

    @property
    def busiest(self) -> tuple[int, int] | None:
        """Minute with most requests over a limit, and their number; the first of several. None without any."""
        return min(self.by_minute.items(), key=lambda item: (-item[1], item[0]), default=None)


class ConfiguredReplay:
    """Replay of rows on instances with one configuration. Each request goes to an instance at random.

    Args:
        settings: The configuration. Its store is replaced by one in memory.
        instance_count: Number of instances; a single one needs no store.
        clients: Decide only the requests of these clients; None for all. The others are counted and no more. Clients
            that a single instance never denies are never denied by several, which see the same requests or fewer.

    Attributes:
        outcomes: Counts so far.
    """

    def __init__(self, settings: Settings, *, instance_count: int, clients: Collection[str] | None = None) -> None:
        self._clients = clients
        self.outcomes = Outcomes(instance_count)
        self._now_s = 0.0
        self._random = random.Random(SEED).random
        settings = replace(settings, store=replace(settings.store, uri=None))
        store = MemoryStore(self._clock) if instance_count > 1 else None
        interval_s = settings.sync.interval_s if store else ALONE_CYCLE_S
        self._instances = [
            _Instance(
                Limiter(
                    settings,
                    store,
                    clock=self._clock,
                    denial_events=_NoEvents(1),
                    follows_store_clock=True,
                    monotonic=self._clock,
                ),
                interval_s=interval_s,
                phase_s=self._random() * interval_s,
            )
            for _ in range(instance_count)
        ]
        self._due: list[tuple[float, int]] = []  # time and instance

    def run(self, batches: Iterable[Sequence[Row]]) -> None:
        """Decide all requests, in the order of time, and release the instances."""
        for batch in batches:
            self._decide(batch)
        for instance in self._instances:
            instance.limiter.close()

    def _decide(self, batch: Sequence[Row]) -> None:
        outcomes, instances = self.outcomes, self._instances
        for at_us, client_id, user, grant in batch:
            outcomes.requests += 1
            if self._clients is not None and client_id not in self._clients:
                continue
            now_s = at_us / SECOND_US
            self._run_until(now_s)
            index = int(self._random() * len(instances))
            instance = instances[index]
            self._catch_up(instance, now_s)
            self._now_s = now_s
            decision = instance.limiter.check(client_id, user, grant_type=grant)
            self._plan(index, instance.wake(now_s))
            outcomes.by_client[client_id] += 1
            if decision.would_deny:
                outcomes.denied += outcome_of(decision) == "denied"
                outcomes.over[client_id, instance.limiter.pseudonym_of(user)] += 1
                outcomes.by_policy[decision.rule] += 1
                outcomes.by_minute[int(now_s) // MINUTE_S * MINUTE_S] += 1
            elif decision.trusted:
                outcomes.trusted += 1
            elif isinstance(decision, FullDecision):
                outcomes.unlimited += 1

    def _clock(self) -> float:
        return self._now_s

    def _run_until(self, until_s: float) -> None:
        """Run the cycles that are due."""
        while self._due and self._due[0][0] <= until_s:
            self._now_s, index = heapq.heappop(self._due)
            self._plan(index, self._instances[index].run(self._now_s))

    def _plan(self, index: int, times: Iterable[float]) -> None:
        for due_s in times:
            heapq.heappush(self._due, (due_s, index))

    def _catch_up(self, instance: "_Instance", until_s: float) -> None:
        """Run the last cycle before a time, if the instance was idle. Those before it would have changed nothing."""
        last_s = instance.next_cycle_s(until_s) - instance.interval_s
        if last_s > instance.cycle_s > 0:
            self._now_s = last_s
            instance.run_cycle(last_s)


class _Instance:
    """One limiter and the times of its sync cycles. Between requests it is idle.

    Attributes:
        limiter: The limiter.
        interval_s: Seconds between two cycles.
        cycle_s: Time of the last full cycle; 0.0 before the first request.
    """

    def __init__(self, limiter: Limiter, *, interval_s: float, phase_s: float) -> None:
        self.limiter = limiter
        self.interval_s = interval_s
        self.cycle_s = 0.0
        self._phase_s = phase_s
        self._due_cycle_s = 0.0
        self._due_urgent_s = math.inf

    def next_cycle_s(self, now_s: float) -> float:
        """Return the time of the next full cycle."""
        return now_s + self.interval_s - (now_s - self._phase_s) % self.interval_s

    def wake(self, now_s: float) -> list[float]:
        """Return the times of the cycles that follow a request, unless they are scheduled already."""
        due = self._urgent_times(now_s)
        if self._due_cycle_s <= now_s:
            self.cycle_s = self.cycle_s or now_s
            self._due_cycle_s = self.next_cycle_s(now_s)
            due.append(self._due_cycle_s)
        return due

    def _urgent_times(self, now_s: float) -> list[float]:
        due_s = max(now_s, self.limiter.next_urgent_s) + URGENT_DELAY_US / SECOND_US
        if due_s >= self._due_urgent_s:
            return []
        self._due_urgent_s = due_s
        return [due_s]

    def run(self, now_s: float) -> list[float]:
        """Run what is scheduled for a time: a full cycle, or one for urgent keys. Return the times of further ones."""
        if now_s == self._due_cycle_s:
            self.run_cycle(now_s)
        if now_s == self._due_urgent_s:
            self._due_urgent_s = math.inf
            self.limiter.sync_urgent()
        return self._urgent_times(now_s)

    def run_cycle(self, now_s: float) -> None:
        """Run a full cycle."""
        self.cycle_s = now_s
        self.limiter.sync()
