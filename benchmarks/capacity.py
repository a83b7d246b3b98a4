"""How much MongoDB has to do for so many clients and instances, in compressed time.

``python -m benchmarks.capacity`` prints the table of docs/operations.md, then the rows that its text and the example of
docs/performance.md go by, how far the formulas there are off, and what documents cost in CPU time. Each client asks
every ten seconds on average, at random; what else there is to know of the traffic: ``fleet``.
"""

import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, exp

from benchmarks import cpu, results, scale
from benchmarks.fleet import Fleet, Load
from benchmarks.processes import in_new_process
from oauth_ratelimit.sync.flusher import MAX_BATCH

GAP_S = 10.0  # between two requests of a client
WINDOW_S = 60
WARM_UP_S = 20.0
MEASURED_S = 20.0
CLIENTS = (100, 1_000, 10_000, 50_000)
INSTANCES = (1, 3, 10)
COUNTABLE = 10  # per second; of less, chance makes too much
BYTES_PER_KEY = "memory/1,000,000 keys/each, ids included"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Clients that ask at random, and the instances they ask."""

    clients: int
    instances: int
    interval_s: float = 1.0
    gap_s: float = GAP_S


BUSY = tuple(Traffic(100, instances, gap_s=0.1) for instances in INSTANCES)
EXAMPLE = Traffic(50_200, 8, gap_s=50_200 / 2_000)  # of docs/performance.md


def measure(traffic: Traffic) -> Load:
    """Run the traffic and return what it costs once it is even."""
    gc.disable()  # a few seconds of one process that ends afterwards
    rng = random.Random(7)
    fleet = Fleet(traffic.instances, rng, window_s=WINDOW_S, interval_s=traffic.interval_s)
    names = [f"client-{number:06}" for number in range(traffic.clients)]
    fleet.learn(names)
    arrivals = _at_random(rng, traffic.clients / traffic.gap_s)
    return fleet.load(arrivals, names, warm_up_s=WARM_UP_S, measured_s=MEASURED_S)


def _at_random(rng: random.Random, per_s: float) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += rng.expovariate(per_s)
        yield at_s


def formula(keys: int, instances: int, *, interval_s: float, requests: float) -> Load:
    """Return what docs/performance.md reckons with."""
    cycles = instances / interval_s
    asked = 1 - exp(-requests / (cycles * keys))  # share of intervals in which an instance is asked for a key
    dirty = keys * asked
    new = dirty * (1 - asked)
    busy = dirty - new
    elsewhere = (instances - 1) / instances  # share of keys that another instance has written last
    conflicts = cycles * dirty * elsewhere / 10
    trips = (20 + 2 * elsewhere) * (1 - exp(-new / 10)) + 2 * (1 - exp(-new)) + new // 250
    return Load(
        requests=requests,
        trips=cycles * max(trips, (1 + (instances > 1)) * (1 - exp(-busy)) * ceil(busy / MAX_BATCH)),
        written=cycles * dirty + conflicts,
        read=cycles * (new * (2.8 + elsewhere / 10) + busy * (instances > 1)),
        conflicts=conflicts,
    )


def rows(traffics: Sequence[Traffic], loads: dict[Traffic, Load], *, bytes_per_key: float) -> Iterator[str]:
    """Yield the lines of a table, and note in ``loads`` what was measured."""
    yield "| clients | instances | interval | requests/s | written/s | read/s | round trips/s | memory per instance |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for traffic in traffics:
        load = loads[traffic] = in_new_process(measure, traffic)
        yield (
            f"| {traffic.clients:,} | {traffic.instances} | {traffic.interval_s:g} s | {load.requests:,.0f} |"
            f" {load.written:,.0f} | {load.read:,.0f} | {load.trips:,.0f} |"
            f" {traffic.clients * bytes_per_key / 1e3:,.0f} KB |"
        )


def traffics() -> Iterator[Traffic]:
    """Yield the rows of the table in docs/operations.md."""
    for clients in CLIENTS:
        for instances in INSTANCES:
            yield Traffic(clients, instances)
        yield Traffic(clients, INSTANCES[-1], interval_s=5.0)


def deviations(loads: Mapping[Traffic, Load], kept: Mapping[str, float]) -> Iterator[str]:
    """Yield how far the formulas are off, for the rows of the table and for what is kept of ``scale``."""
    pairs = [
        (load, formula(traffic.clients, traffic.instances, interval_s=traffic.interval_s, requests=load.requests))
        for traffic, load in loads.items()
    ]
    yield from _deviations("these rows", pairs)
    pairs = []
    for keys in scale.KEYS:
        for instances in scale.INSTANCES:
            names = [scale.name_of(keys, instances, what) for what in scale.WHATS]
            if all(name in kept for name in names):
                found = formula(keys, instances, interval_s=scale.INTERVAL_S, requests=scale.REQUESTS_PER_S)
                pairs.append((Load(scale.REQUESTS_PER_S, *(kept[name] for name in names)), found))
    yield from _deviations("scale", pairs)


def _deviations(name: str, pairs: Sequence[tuple[Load, Load]]) -> Iterator[str]:
    for what in ("written", "read", "trips"):
        values = [(getattr(load, what), getattr(found, what)) for load, found in pairs]
        ratios = [found / measured - 1 for measured, found in values if measured >= COUNTABLE]
        close = sum(abs(ratio) <= 0.05 for ratio in ratios)
        yield f"{name}, {what}: {min(ratios):+.0%} to {max(ratios):+.0%}, {close} of {len(ratios)} within 5 %"


def prices() -> Iterator[str]:
    """Yield what documents cost in CPU time."""
    yield "| us of CPU time | document written | document read | round trip that writes | round trip that reads |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, find in (("one server", cpu.of_one_server), ("replica set, three members together", cpu.of_replica_set)):
        found = in_new_process(find)
        yield (
            f"| {name} | {found.write.document_us:.0f} | {found.read.document_us:.0f} |"
            f" {found.write.trip_us:,.0f} | {found.read.trip_us:,.0f} |"
        )
    written_us, read_us = in_new_process(cpu.of_instance)
    yield f"| the instance, in batches of 500 | {written_us:.0f} | {read_us:.0f} | | |"


def main() -> None:
    """Print everything."""
    kept = {str(entry["name"]): float(entry["value"]) for entry in results.load()}
    loads: dict[Traffic, Load] = {}
    table = partial(rows, loads=loads, bytes_per_key=kept[BYTES_PER_KEY])
    for title, lines in (
        ("docs/operations.md", table(tuple(traffics()))),
        ("Clients that ask ten times a second", table(BUSY)),
        ("The example of docs/performance.md", table((EXAMPLE,))),
        ("The formulas of docs/performance.md, against", deviations(loads, kept)),
        ("MongoDB and the instance", prices()),
    ):
        print(f"\n{title}\n")
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
