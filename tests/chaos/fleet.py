"""Several limiters on one MongoDB under load, and the books: what was counted against what MongoDB holds."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymongo import MongoClient

from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.base import CounterStore

CLIENT = "client"
SETTLING_CYCLES = 40


@dataclass
class Books:
    """Results of a run.

    Attributes:
        requests: Checks made.
        lost: Counted hits that MongoDB does not hold.
        doubled: Hits that MongoDB holds more often than they were counted.
        slowest_ms: The longest check.
    """

    requests: int = 0
    lost: int = 0
    doubled: int = 0
    slowest_ms: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, other: "Books") -> None:
        """Add another run."""
        self.requests += other.requests
        self.lost += other.lost
        self.doubled += other.doubled
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)


def settings_for(uri: str, *, window: str = "1h", timeout_s: float = 2.0) -> Any:
    """Return settings under which nothing is denied and every frame stays useful to the end of a run."""
    return load_config(
        {
            "mode": "enforce",
            "limits": {"client": [{"limit": 10**9, "window": window}], "user": [{"limit": 10**9, "window": window}]},
            "store": {"uri": uri, "timeout": timeout_s},
        }
    )


class Instance:
    """A limiter and the hits that its caller counted for itself."""

    def __init__(
        self,
        uri: str,
        *,
        clock: Callable[[], float] = time.time,
        timeout_s: float = 2.0,
        follows_store_clock: bool = False,
        store: CounterStore | None = None,
    ) -> None:
        self.limiter = Limiter(
            settings_for(uri, timeout_s=timeout_s), store, clock=clock, follows_store_clock=follows_store_clock
        )
        self.counted: Counter[str] = Counter()
        self.slowest_s = 0.0

    def hit(self, username: str) -> None:
        """Make one request."""
        started = time.perf_counter()
        decision = self.limiter.check(CLIENT, username)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - started)
        assert decision.allowed
        self.counted[username] += 1

    def settle(self) -> None:
        """Synchronise until nothing is left to send, then release everything."""
        for _ in range(SETTLING_CYCLES):
            report = self.limiter.sync()
            if report.error is None and not any(
                self.limiter.counts(CLIENT, username).in_flight_hits for username in self.counted
            ):
                break
        self.limiter.close()


def run(
    instances: Sequence[Instance], *, cycles: int, seed: int, keys: int = 5, before_cycle: Callable[[int], None] = id
) -> None:
    """Let each instance, in a thread of its own, make requests and synchronise in turn.

    Args:
        instances: Who takes part.
        cycles: Cycles of each instance.
        seed: Makes the requests the same again.
        keys: How many users there are; the fewer, the more races.
        before_cycle: Called by the first instance before each of its cycles, to break things.
    """
    barrier = threading.Barrier(len(instances))
    errors: list[BaseException] = []

    def work(index: int, instance: Instance) -> None:
        rng = random.Random(f"{seed} {index}")
        try:
            for cycle in range(cycles):
                barrier.wait(timeout=60)
                if index == 0:
                    before_cycle(cycle)
                for _ in range(rng.randrange(1, 20)):
                    instance.hit(f"user-{rng.randrange(keys)}")
                instance.limiter.sync()
        except BaseException as exc:  # noqa: BLE001  # raised again by the caller
            errors.append(exc)
            barrier.abort()

    threads = [
        threading.Thread(target=work, args=(index, instance), daemon=True) for index, instance in enumerate(instances)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def balance(instances: Sequence[Instance], uri: str) -> Books:
    """Settle all instances and compare their books with MongoDB's."""
    for instance in instances:
        instance.settle()
    counted: Counter[str] = Counter()
    for instance in instances:
        counted.update(instance.counted)
    held = held_in(uri)
    names = {*counted, *held}
    return Books(
        requests=counted.total(),
        lost=sum(max(0, counted[name] - held[name]) for name in names),
        doubled=sum(max(0, held[name] - counted[name]) for name in names),
        slowest_ms=max(instance.slowest_s for instance in instances) * 1000,
    )


def held_in(uri: str, *, collection: str = "ratelimits") -> Counter[str]:
    """Return the hits in MongoDB by user name."""
    held: Counter[str] = Counter()
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=30_000) as client:
        for document in client.get_default_database()[collection].find():
            for frames in document["requestCounters"].values():
                held[document["_id"]["username"]] += sum(frames.values())
    return held
