"""The load on MongoDB by clients and instances, in compressed time.

``python -m benchmarks.capacity`` prints the table of docs/operations.md. Each client asks every ten
seconds on average, at random.
"""

import gc
import random
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks import results, subjects
from benchmarks.measuring import in_new_process
from benchmarks.subjects import FIXED_TIME_S
from oauth_ratelimit import load_config
from testbed.counting_fleet import CountingFleet

GAP_S = 10.0  # between two requests of a client
WARM_UP_S, MEASURED_S = 100.0, 20.0  # an instance forgets a client after 66 s
MAX_KEYS = 2_000_000  # no instance has to evict a key
BYTES_PER_KEY = "memory/1,000,000 keys/each, ids included"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Clients, and the instances that serve them."""

    clients: int
    instances: int
    interval_s: float = 1.0
    limit: int = subjects.NO_LIMIT  # requests in 60 s
    is_sticky: bool = False  # all requests of a client go to one instance


LOADS = (
    *(Traffic(10_000, count) for count in (1, 3, 10)),
    Traffic(10_000, 10, 5.0),
    Traffic(1_000, 10, limit=10),
    Traffic(1_000, 10, limit=10, is_sticky=True),
)


def measure(traffic: Traffic) -> Mapping[str, float]:
    """Return requests, written and read documents and round trips per second, once the load is even."""
    gc.disable()  # the process ends after a few seconds
    rng = random.Random(7)
    limits = {"client": [{"limit": traffic.limit, "window": 60}]}
    sync = {"interval": traffic.interval_s}
    settings = load_config({"mode": "enforce", "limits": limits, "max_keys": MAX_KEYS, "sync": sync})
    fleet = CountingFleet(settings, traffic.instances)
    names = [f"client-{number:06}" for number in range(traffic.clients)]
    for name in names:
        fleet.check(name, at_s=FIXED_TIME_S)
    store, passed_s, request_count, before = fleet.store, 0.0, 0, (0, 0, 0)
    while passed_s < WARM_UP_S + MEASURED_S:
        passed_s += rng.expovariate(traffic.clients / GAP_S)
        if passed_s >= WARM_UP_S:
            before = before if request_count else (store.written, store.read_count, store.trips)
            request_count += 1
        number = rng.randrange(traffic.clients)
        instance = number % traffic.instances if traffic.is_sticky else None
        fleet.check(names[number], at_s=FIXED_TIME_S + passed_s, instance=instance)
    after = (store.written, store.read_count, store.trips)
    counts = (request_count, *(now - then for now, then in zip(after, before, strict=True)))
    return dict(zip(("requests", "written", "read", "trips"), (count / MEASURED_S for count in counts), strict=True))


def main() -> None:
    """Print the table."""
    (bytes_per_key,) = (entry["value"] for entry in results.load() if entry["name"] == BYTES_PER_KEY)
    print("| clients | limit | instances | interval | requests/s | written/s | read/s | round trips/s | memory each |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for traffic in LOADS:
        load = in_new_process(measure, traffic)
        limit = "far" if traffic.limit == subjects.NO_LIMIT else f"near: {traffic.limit} a minute"
        print(
            f"| {traffic.clients:,} | {limit}{', sticky' * traffic.is_sticky} | {traffic.instances} |"
            f" {traffic.interval_s:g} s | {load['requests']:,.0f} | {load['written']:,.0f} | {load['read']:,.0f} |"
            f" {load['trips']:,.0f} | {traffic.clients * bytes_per_key / 1e3:,.0f} KB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
