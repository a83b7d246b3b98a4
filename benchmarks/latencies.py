"""
How long the requests of a load took: what wrk says of them, and what is made of it.
"""

import re
from collections import Counter
from collections.abc import Sequence

SCRIPT = """
function done(summary, latency, requests)
  for i = 1, #latency do print(string.format("latency %d us: %d", latency(i))) end
end
"""
"""Has wrk print a line for each latency. In Lua, for the end of a script."""

Latencies = Counter[int]
"""How many requests took how long, in microseconds."""


def latencies_in(output: str) -> Latencies:
    """
    Return what wrk has printed.
    """
    lines = re.findall(r"^latency (\d+) us: (\d+)$", output, re.MULTILINE)
    if not lines:
        raise RuntimeError(f"wrk did not say how long requests took: {output}")
    return Counter({int(latency_us): int(count) for latency_us, count in lines})


def percentile_ms(turns: Sequence[Latencies], percent: float) -> float:
    """
    Return the time that this share of the requests of all turns did not exceed.
    """
    latencies: Latencies = Counter()
    for turn in turns:
        latencies.update(turn)
    rest = latencies.total() * percent / 100
    for latency_us in sorted(latencies):
        rest -= latencies[latency_us]
        if rest <= 0:
            return latency_us / 1000
    raise ValueError("no requests")


def ratio(pairs: Sequence[tuple[Latencies, Latencies]], percent: float) -> float:
    """
    Return the percentile of the first of each pair, of that of the second.
    """
    one, other = zip(*pairs, strict=True)
    return percentile_ms(one, percent) / percentile_ms(other, percent)
