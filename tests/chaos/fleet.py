"""Several limiters on one MongoDB under load: what was counted against what MongoDB holds."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pymongo import MongoClient

from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from tests.support.limiters import in_flight, known_keys

CLIENT = "client"
SETTLING_CYCLES = 40


class Instance:
    """A limiter and the hits that its caller counted for itself. Nothing is denied, and no frame is out of date."""

    def __init__(self, uri: str, *, timeout_s: float = 2.0) -> None:
        rates = [{"limit": 10**9, "window": "1h"}]
        limits = {"client": rates, "user": rates}
        settings = load_config({"mode": "enforce", "limits": limits, "store": {"uri": uri, "timeout": timeout_s}})
        self.limiter = Limiter(settings)
        self.counted: Counter[str] = Counter()
        self.slowest_s = 0.0

    def hit(self, username: str) -> None:
        started = time.perf_counter()
        decision = self.limiter.check(CLIENT, username)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - started)
        assert decision.allowed
        self.counted[username] += 1

    def settle(self) -> None:
        """Synchronise until nothing is left to send, then release everything."""
        for _ in range(SETTLING_CYCLES):
            report = self.limiter.sync()
            if report.error is None and not any(in_flight(self.limiter, key) for key in known_keys(self.limiter)):
                break
        self.limiter.close()


def run(
    instances: Sequence[Instance], *, cycles: int, seed: int, keys: int = 5, before_cycle: Callable[[int], None] = id
) -> None:
    """Let each instance, in a thread of its own, make requests and synchronise in turn.

    The first one calls ``before_cycle``, to break things. There are ``keys`` users; the fewer, the more races.
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


def assert_exact(instances: Sequence[Instance], uri: str) -> None:
    """Settle all instances, and fail if MongoDB does not hold each hit once."""
    counted: Counter[str] = Counter()
    for instance in instances:
        instance.settle()
        counted.update(instance.counted)
    held = held_in(uri)
    assert ({}, {}) == (counted - held, held - counted), "hits that are lost, and hits that are doubled"


def held_in(uri: str) -> Counter[str]:
    held: Counter[str] = Counter()
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=30_000) as client:
        for document in client.get_default_database()["ratelimits"].find():
            for frames in document["requestCounters"].values():
                held[document["_id"]["username"]] += sum(frames.values())
    return held
