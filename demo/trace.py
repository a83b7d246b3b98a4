"""Recorded traffic: HTTP requests to a NASA web server in 1995. Where it comes from stands in nasa19950801.md."""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby, islice
from operator import itemgetter

_FILE = "nasa19950801.csv.gz"


@dataclass(frozen=True, slots=True)
class Hit:
    """One recorded request.

    Attributes:
        at_s: Seconds since the epoch.
        host: Number of the host that sent it.
    """

    at_s: float
    host: int


def hits() -> Iterator[Hit]:
    """
    Yield the whole trace in the order of time. It was recorded in whole seconds: each second's hits are spread over it.
    """
    with (
        files("demo").joinpath(_FILE).open("rb") as packed,
        gzip.open(packed, "rt", encoding="ascii", newline="") as rows,
    ):
        for second, group in groupby(csv.reader(rows), key=itemgetter(0)):
            hosts = [int(host) for _, host in group]
            for position, host in enumerate(hosts):
                yield Hit(int(second) + (position + 0.5) / len(hosts), host)


def stretch(first: int, count: int) -> Sequence[Hit]:
    """Return ``count`` hits, from the one with the index ``first`` on."""
    return list(islice(hits(), first, first + count))
