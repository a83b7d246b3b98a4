"""
How much MongoDB has to do for so many clients and instances, in compressed time.

``python -m benchmarks.capacity`` prints the table of docs/operations.md. Each client asks every ten seconds on average,
at random, and its requests go to an instance at random: the worst case, because every key wanders over all instances.
The instances run as the scheduler runs them, cycles at their own phase and urgent keys each tenth of the interval.
"""

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.accuracy import Clock
from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL

GAP_S = 10.0  # between two requests of a client
WARM_UP_S = 20.0
MEASURED_S = 20.0
BATCH = 500  # keys to a round trip, as the flusher has it
CLIENTS = (100, 1_000, 10_000, 50_000)
INSTANCES = (1, 3, 10)
BYTES_PER_KEY = 439  # "memory/1,000,000 keys/each, ids included" in results.json


class CountingStore(MemoryStore):
    """
    Counts what it is asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = self.read_count = self.trips = self.conflicts = 0

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        self.trips += -(-len(keys) // BATCH)
        self.read_count += len(keys)
        return super().read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        self.trips += -(-len(changes) // BATCH)
        self.written += len(changes)
        result = super().compare_and_set(writer, changes)
        self.conflicts += len(result.lost)
        return result


@dataclass(frozen=True, slots=True)
class Load:
    """
    Per second, all instances together.
    """

    clients: int
    instances: int
    interval_s: float
    requests: float
    written: float
    read: float
    trips: float


def measure(clients: int, instances: int, *, interval_s: float = 1.0, gap_s: float = GAP_S) -> Load:
    """
    Run the traffic and return what it costs once it is even.
    """
    clock, store, rng = Clock(2_000_000_000.0), CountingStore(), random.Random(7)
    settings = load_config({"limits": {"client": ["9000/minute"]}, "sync": {"interval": interval_s}})
    limiters = [Limiter(settings, store, clock=clock) for _ in range(instances)]
    names = [f"client-{number:06}" for number in range(clients)]
    # Events: when, which instance, what: a request, a full cycle, an urgent tick.
    events = [(clock.now_s + rng.random() * interval_s, index, "cycle") for index in range(instances)]
    heapq.heapify(events)
    start_s = clock.now_s
    next_s, end_s, count = start_s, start_s + WARM_UP_S + MEASURED_S, 0
    before = None
    while next_s < end_s:
        while events and events[0][0] <= next_s:
            clock.now_s, index, kind = heapq.heappop(events)
            if kind == "cycle":
                limiters[index].sync()
                heapq.heappush(events, (clock.now_s + interval_s, index, "cycle"))
            else:
                limiters[index].sync_urgent()
        clock.now_s = next_s
        if before is None and clock.now_s >= start_s + WARM_UP_S:
            before, count = (store.written, store.read_count, store.trips), 0
        index = rng.randrange(instances)
        limiters[index].check(rng.choice(names))
        count += 1
        if not any(event[1] == index and event[2] == "urgent" for event in events[:40]):
            heapq.heappush(events, (clock.now_s + rng.random() * interval_s / TICKS_PER_INTERVAL, index, "urgent"))
        next_s += rng.expovariate(clients / gap_s)
    assert before is not None
    after = (store.written, store.read_count, store.trips)
    for limiter in limiters:
        limiter.close()
    written, read, trips = ((now - then) / MEASURED_S for now, then in zip(after, before, strict=True))
    return Load(clients, instances, interval_s, count / MEASURED_S, written, read, trips)


def table() -> Iterator[str]:
    """
    Yield the rows of the table.
    """
    yield "| clients | instances | interval | requests/s | written/s | read/s | round trips/s | memory per instance |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for clients in CLIENTS:
        for instances in INSTANCES:
            for interval_s in (1.0, 5.0) if instances == INSTANCES[-1] else (1.0,):
                load = measure(clients, instances, interval_s=interval_s)
                yield (
                    f"| {clients:,} | {instances} | {interval_s:g} s | {load.requests:,.0f} | {load.written:,.0f} |"
                    f" {load.read:,.0f} | {load.trips:,.0f} | {clients * BYTES_PER_KEY / 1e3:,.0f} KB |"
                )


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
