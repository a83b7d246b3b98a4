"""Requests to several instances: the busiest part of recorded traffic, and shapes that are hard to share."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.traces import Trace, traces

SEED = 2007
BEGIN_S = 1_700_000_040  # the start of a minute
LENGTH_S = 180
RECORDED = 2_000  # requests of each trace
LIMIT, WINDOW_S = 100, 60  # of the shapes
CLIENTS = 20
PARTITION_S = (BEGIN_S + 60, BEGIN_S + 70)
STAY_S = 5  # of a roaming client on an instance


@dataclass(frozen=True, slots=True)
class Request:
    """A request that reaches one of the instances."""

    at_s: float
    key: str
    instance: int


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order, and the instances that reach nobody for a time.

    Args:
        name: Name of the trace or shape.
        limit: Requests per minute.
        requests: The requests.
        cut: Instances that reach neither each other nor a store between the two times of ``PARTITION_S``.
        window_s: Length of the window.
    """

    name: str
    limit: int
    requests: list[Request]
    cut: frozenset[int] = frozenset()
    window_s: int = WINDOW_S

    def is_cut(self, instance: int, at_s: float) -> bool:
        """Return whether an instance reaches nobody."""
        return instance in self.cut and PARTITION_S[0] <= at_s < PARTITION_S[1]


def loads(instance_count: int, *, short: bool = False) -> Iterator[Load]:
    """Yield the traces on this machine and the shapes, spread over instances."""
    rng = random.Random(SEED)
    for trace in traces():
        yield spread(trace.name, trace.limit, busiest(trace, 500 if short else RECORDED), instance_count, rng)
    half = frozenset(range(max(1, instance_count // 2)))
    for name, arrivals in SHAPES.items():
        rows = sorted(arrivals(rng))[: 500 if short else None]
        draw = _roaming(rng, instance_count) if name == "roaming" else lambda *_: rng.randrange(instance_count)
        requests = [Request(at_s, key, draw(key, at_s)) for at_s, key in rows]
        yield Load(name, LIMIT, requests, half if name == "partition" else frozenset())


def spread(name: str, limit: int, rows: Sequence[tuple[float, str]], instance_count: int, rng: random.Random) -> Load:
    """Return requests at random instances, the worst case for sharing."""
    return Load(name, limit, [Request(*row, rng.randrange(instance_count)) for row in rows])


def busiest(trace: Trace, most: int) -> Sequence[tuple[float, str]]:
    """Return this many consecutive requests of a trace, those that came within the shortest time."""
    rows = trace.requests()
    begins = range(max(1, len(rows) - most))
    begin = min(begins, key=lambda index: rows[min(index + most, len(rows) - 1)][0] - rows[index][0])
    return rows[begin : begin + most]


def _roaming(rng: random.Random, instance_count: int) -> Callable[[str, float], int]:
    places: dict[tuple[str, int], int] = {}

    def place(key: str, at_s: float) -> int:
        return places.setdefault((key, int(at_s) // STAY_S), rng.randrange(instance_count))

    return place


def _at_rate(rng: random.Random, key: str, per_window: float) -> Iterator[tuple[float, str]]:
    at_s = BEGIN_S + rng.expovariate(per_window / WINDOW_S)
    while at_s < BEGIN_S + LENGTH_S:
        yield at_s, key
        at_s += rng.expovariate(per_window / WINDOW_S)


def _even(rng: random.Random) -> Iterator[tuple[float, str]]:
    """Yield requests of clients that all ask for a quarter more than they may."""
    for client in range(CLIENTS):
        yield from _at_rate(rng, f"client {client}", 1.25 * LIMIT)


def _skewed(rng: random.Random) -> Iterator[tuple[float, str]]:
    """Yield requests of many clients, each with half, a third, a quarter of the first one's rate."""
    for client in range(1, 201):
        yield from _at_rate(rng, f"client {client}", 6 * LIMIT / client)


def _bursts(rng: random.Random) -> Iterator[tuple[float, str]]:
    """Yield requests of clients that all send one and a half limits in the first second of each minute."""
    for minute_s in range(BEGIN_S, BEGIN_S + LENGTH_S, WINDOW_S):
        for client in range(CLIENTS):
            for _ in range(3 * LIMIT // 2):
                yield minute_s + rng.random(), f"client {client}"


SHAPES = {"even": _even, "skewed": _skewed, "bursts": _bursts, "roaming": _even, "partition": _even}
