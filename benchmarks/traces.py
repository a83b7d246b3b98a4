"""Recorded traffic: the trace of the demo, and one that may not be shipped, if the environment names its file."""

import os
from dataclasses import dataclass
from pathlib import Path

from oauth_ratelimit.traffic.formats import SECOND_US, Recording
from testbed.trace import SHIPPED as NASA

LCG_VARIABLE = "LCG2005"  # path of lcg2005.csv.gz


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

    def requests(self) -> list[tuple[float, str]]:
        """Return time and key of all requests in order, those of each recorded second spread over it."""
        with Recording(str(self.path)).opened() as (_, rows):
            return [(row.at_us / SECOND_US, row.client) for row in rows]


SHIPPED = Trace("nasa19950801", NASA, 10)


def traces() -> list[Trace]:
    """Return the traces on this machine."""
    path = os.environ.get(LCG_VARIABLE)
    return [SHIPPED, Trace("lcg2005", Path(path), 25)] if path else [SHIPPED]
