"""Other ways to share a limit between instances, in compressed time.

``Central`` runs the real code of the limits library on a real Redis: a request waits for a round trip. All others
decide at once and synchronise in the background. They are written after their descriptions, not taken
from their projects. In their favour, messages take no time and are never lost.
"""

import heapq
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar
from unittest.mock import patch
from zlib import crc32

from limits import RateLimitItemPerMinute
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter

from benchmarks.redis_server import redis_server
from benchmarks.shapes import WINDOW_S, Load


class Way(ABC):
    """A way to share a limit. Counts its cost.

    Attributes:
        operations: Entries that were sent or received.
        trips: Messages and their answers, each with any number of entries.
        waited: Round trips that requests waited for.
    """

    def __init__(self, load: Load, instance_count: int) -> None:
        self.load, self.instance_count, self.limit = load, instance_count, load.limit
        self.operations = self.trips = self.waited = 0

    @abstractmethod
    def check(self, key: str, instance: int, at_s: float) -> bool:
        """Decide about a request. Requests come in the order of time."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """End what runs in the background."""


class Central(Way):
    """A log of hits in one Redis that each request asks: the moving window of limits.

    An instance that does not reach Redis admits, as Flask-Limiter can be told to. The library sends the time with each
    hit. Redis removes idle logs a minute later by its own clock. Runs take seconds, so it removes none too early.
    """

    def __init__(self, load: Load, instance_count: int) -> None:
        super().__init__(load, instance_count)
        self.now_s = 0.0
        self.item = RateLimitItemPerMinute(load.limit)
        self._running = ExitStack()
        storage = RedisStorage(self._running.enter_context(redis_server()))
        self._running.callback(storage.storage.close)
        self._running.enter_context(patch("limits.storage.redis.time", time=lambda: self.now_s))
        self._limiter = MovingWindowRateLimiter(storage)

    def check(self, key: str, instance: int, at_s: float) -> bool:
        self.now_s = at_s
        self.waited += 1
        self.trips += 1
        self.operations += 1
        return self.load.is_cut(instance, at_s) or self._limiter.hit(self.item, key)

    def close(self) -> None:
        self._running.close()


class Periodic(Way):
    """Instances that synchronise at an interval, each at its own phase.

    An instance ticks while one of its keys was asked for within two windows.
    """

    interval_s: ClassVar[float] = 0.1

    def __init__(self, load: Load, instance_count: int) -> None:
        super().__init__(load, instance_count)
        rng = self.random = random.Random(1)
        self._phases_s = [rng.random() * self.interval_s for _ in range(instance_count)]
        self._due: list[tuple[float, int]] = []
        self._ticking = [False] * instance_count
        self.used_s: list[dict[str, float]] = [{} for _ in range(instance_count)]  # last request by key

    def check(self, key: str, instance: int, at_s: float) -> bool:
        while self._due and self._due[0][0] <= at_s:
            self._run(*heapq.heappop(self._due))
        self.used_s[instance][key] = at_s
        allowed = self.decide(key, instance, at_s)
        if not self._ticking[instance]:
            self._plan(instance, at_s)
        return allowed

    def _run(self, at_s: float, instance: int) -> None:
        if not self.load.is_cut(instance, at_s):
            self.tick(instance, at_s)
        used_s = self.used_s[instance]
        for key in [key for key, last_s in used_s.items() if last_s < at_s - 2 * WINDOW_S]:
            del used_s[key]
        self._ticking[instance] = False
        if used_s:
            self._plan(instance, at_s)

    def _plan(self, instance: int, at_s: float) -> None:
        self._ticking[instance] = True
        passed_s = (at_s - self._phases_s[instance]) % self.interval_s
        # A tick that runs a hair before its phase would run twice.
        wait_s = self.interval_s - passed_s if self.interval_s - passed_s > 1e-6 else self.interval_s
        heapq.heappush(self._due, (at_s + wait_s, instance))

    def recent(self, instance: int, at_s: float) -> list[str]:
        """Return the keys that an instance was asked for within a window."""
        return [key for key, last_s in self.used_s[instance].items() if last_s >= at_s - WINDOW_S]

    @abstractmethod
    def decide(self, key: str, instance: int, at_s: float) -> bool:
        """Decide on what the instance knows."""

    @abstractmethod
    def tick(self, instance: int, at_s: float) -> None:
        """Synchronise an instance."""


class Gubernator(Periodic):
    """Written after gubernator's GLOBAL: every key has an owner, which the others report to and hear from.

    A window begins with the first hit. An instance that was not told about a key starts a window of its own.
    Reports and broadcasts go out every 100 ms.
    """

    def __init__(self, load: Load, instance_count: int) -> None:
        super().__init__(load, instance_count)
        self._known: list[dict[str, tuple[int, float]]] = [{} for _ in range(instance_count)]  # left, end of window
        self._reports: list[defaultdict[str, int]] = [defaultdict(int) for _ in range(instance_count)]
        self._changed: list[set[str]] = [set() for _ in range(instance_count)]

    def _owner(self, key: str) -> int:
        return crc32(key.encode()) % self.instance_count

    def decide(self, key: str, instance: int, at_s: float) -> bool:
        left = self._take(key, instance, at_s, 1)
        if left < 0:
            return False
        if self._owner(key) == instance:
            self._changed[instance].add(key)
        else:
            self._reports[instance][key] += 1
        return True

    def _take(self, key: str, instance: int, at_s: float, hits: int) -> int:
        """Take hits from what an instance knows to be left, and return the rest, below zero if it was not enough."""
        left, end_s = self._known[instance].get(key, (0, 0.0))
        if at_s >= end_s:
            left, end_s = self.limit, at_s + WINDOW_S
        self._known[instance][key] = (max(0, left - hits), end_s)
        return left - hits

    def tick(self, instance: int, at_s: float) -> None:
        reports, self._reports[instance] = self._reports[instance], defaultdict(int)
        reached = set()
        for key, hits in reports.items():
            owner = self._owner(key)
            if self.load.is_cut(owner, at_s):
                self._reports[instance][key] += hits
                continue
            reached.add(owner)
            self.operations += 1
            self._take(key, owner, at_s, hits)
            self._changed[owner].add(key)
            self.used_s[owner].setdefault(key, at_s)
            if not self._ticking[owner]:
                self._plan(owner, at_s)
        self.trips += len(reached)
        changed, self._changed[instance] = self._changed[instance], set()
        if changed:
            peers = [
                peer for peer in range(self.instance_count) if not self.load.is_cut(peer, at_s) and peer != instance
            ]
            self.trips += len(peers)
            self.operations += len(peers) * len(changed)
            for peer in peers:
                self._known[peer].update((key, self._known[instance][key]) for key in changed)


class Kong(Periodic):
    """Written after ``sync_rate`` of Kong's Rate Limiting Advanced: counters of two fixed windows in one Redis.

    Every interval an instance adds its hits and reads the totals of the keys that it was asked for. Denied requests are
    not counted (``disable_penalty``), so that all ways count the same.
    """

    interval_s = 1.0

    def __init__(self, load: Load, instance_count: int) -> None:
        super().__init__(load, instance_count)
        self._totals: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._known: list[dict[tuple[str, int], int]] = [{} for _ in range(instance_count)]
        self._fresh: list[defaultdict[tuple[str, int], int]] = [defaultdict(int) for _ in range(instance_count)]

    def decide(self, key: str, instance: int, at_s: float) -> bool:
        window, passed_s = divmod(at_s, WINDOW_S)
        before, now = (self._count(instance, (key, int(window) - age)) for age in (1, 0))
        if before * (1 - passed_s / WINDOW_S) + now + 1 > self.limit:
            return False
        self._fresh[instance][key, int(window)] += 1
        return True

    def _count(self, instance: int, entry: tuple[str, int]) -> int:
        return self._known[instance].get(entry, 0) + self._fresh[instance].get(entry, 0)

    def tick(self, instance: int, at_s: float) -> None:
        fresh, self._fresh[instance] = self._fresh[instance], defaultdict(int)
        for entry, hits in fresh.items():
            self._totals[entry] += hits
        wanted = self.recent(instance, at_s)
        window = int(at_s // WINDOW_S)
        self._known[instance] = {
            entry: self._totals[entry] for key in wanted for entry in ((key, window - 1), (key, window))
        }
        self.operations += len(fresh) + len(wanted)
        self.trips += bool(fresh) + bool(wanted)


class KongFast(Kong):
    """The same every 100 ms; Kong warns below a second and accepts 20 ms."""

    interval_s = 0.1


ON_REDIS: dict[str, Callable[[Load, int], Way]] = {
    "limits, moving window": Central,
}
RIVALS: dict[str, Callable[[Load, int], Way]] = {
    **ON_REDIS,
    "after gubernator, GLOBAL": Gubernator,
    "after Kong, sync_rate 1 s": Kong,
    "after Kong, sync_rate 0.1 s": KongFast,
}
