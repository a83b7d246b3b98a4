"""Recorded traffic: the trace of the demo, and one that may not be shipped, if the environment names its file."""

import gzip
import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

LCG_VARIABLE = "LCG2005"  # path of lcg2005.csv.gz
TOPICS = ("replays", "scaling", "sharing", "suggest")  # measured on both traces


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded traffic and the limit of its replays.

    Args:
        name: The trace's name.
        path: A gzip file of ``epoch_seconds,key`` lines, sorted by time.
        limit: Requests per minute.
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
    """Return the traces on this machine."""
    path = os.environ.get(LCG_VARIABLE)
    return [SHIPPED, Trace("lcg2005", Path(path), 25)] if path else [SHIPPED]


def left_out(topic: str) -> tuple[str, ...]:
    """Return prefixes of a topic's results on traces that are not on this machine."""
    return (f"{topic}/lcg2005",) if topic in TOPICS and len(traces()) == 1 else ()


def environment(topic: str) -> str:
    """Return the variables that a command needs to measure a topic again."""
    return "".join(f"{LCG_VARIABLE}={trace.path.name} " for trace in traces()[1:] if topic in TOPICS)


def load_trace(path: Path, *, most: int | None = None) -> list[Request]:
    """Return a trace's requests in order, those of each recorded second spread over it.

    Args:
        path: The trace's file.
        most: Stop after about this number.
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
