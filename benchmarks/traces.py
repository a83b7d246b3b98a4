"""Recorded traffic: the shipped trace, and one that may be measured but not shipped, where the environment names it.

They have one-second resolution: the n requests of a second are spread over it at ``(r + 0.5) / n``.
"""

import gzip
import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

LCG_VARIABLE = "LCG2005"  # path of lcg2005.csv.gz
TOPICS = ("accuracy", "replays", "stores")  # what is measured on both


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded traffic and the limit that it is replayed against.

    Args:
        name: What it is called.
        path: A gzip file of ``epoch_seconds,key`` lines, sorted by time.
        limit: Requests in a minute.
    """

    name: str
    path: Path
    limit: int


SHIPPED = Trace("nasa19950801", Path(__file__).parents[1] / "demo" / "nasa19950801.csv.gz", 10)


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a trace."""

    at_s: float
    key: str


def traces() -> list[Trace]:
    """Return the traces that are here."""
    path = os.environ.get(LCG_VARIABLE)
    return [SHIPPED, Trace("lcg2005", Path(path), 25)] if path else [SHIPPED]


def left_out(topic: str) -> tuple[str, ...]:
    """Return the beginnings of a topic's results of traces that are not here."""
    return (f"{topic}/lcg2005",) if topic in TOPICS and len(traces()) == 1 else ()


def environment(topic: str) -> str:
    """Return what stands before the command that measures a topic again."""
    return "".join(f"{LCG_VARIABLE}={trace.path.name} " for trace in traces()[1:] if topic in TOPICS)


def load_trace(path: Path, *, most: int | None = None) -> list[Request]:
    """Return a trace's requests in order.

    Args:
        path: The trace's file.
        most: Stop after so many.
    """
    requests: list[Request] = []
    with gzip.open(path, "rt") as lines:
        rows = (line.strip().split(",") for line in lines)
        for second, group in groupby(rows, key=lambda row: row[0]):
            keys = [row[1] for row in group]
            requests += [Request(int(second) + (rank + 0.5) / len(keys), key) for rank, key in enumerate(keys)]
            if most is not None and len(requests) >= most:
                break
    return requests
