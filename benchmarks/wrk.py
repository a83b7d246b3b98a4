"""Latencies of a load that wrk has generated."""

import re
from collections import Counter
from collections.abc import Sequence

REPORT = """
function done(summary, latency, requests)
  print(string.format("%d requests in %d us", summary.requests, summary.duration))
  for i = 1, #latency do print(string.format("latency %d us: %d", latency(i))) end
end
"""
"""Lua code for the end of a script of wrk: it prints each latency."""

Latencies = Counter[int]
"""Number of requests by their latency in microseconds."""


def latencies_in(output: str, *, connection_count: int) -> Latencies:
    """Return the latencies in the output of wrk, of real requests only.

    For each request that took twice the mean or more, wrk adds those that could have been sent meanwhile
    (``stats_correct`` in its wrk.c and stats.c). They are removed again, from the slowest request down.
    """
    summary = re.search(r"^(\d+) requests in (\d+) us$", output, re.MULTILINE)
    if summary is None:
        raise RuntimeError(f"wrk printed no summary: {output}")
    request_count, duration_us = int(summary[1]), int(summary[2])
    lines = re.findall(r"^latency (\d+) us: (\d+)$", output, re.MULTILINE)
    latencies = Counter({int(latency_us): int(count) for latency_us, count in lines})
    expected_us = duration_us // (request_count // connection_count)
    for latency_us in sorted(latencies, reverse=True):
        for added_us in range(latency_us - expected_us, expected_us, -expected_us):
            latencies[added_us] -= latencies[latency_us]
    if latencies.total() != request_count or min(latencies.values()) < 0:
        raise RuntimeError(f"{latencies.total()} latencies of {request_count} requests: {output}")
    return +latencies


def percentile_ms(turns: Sequence[Latencies], percent: float) -> float:
    """Return the time that this share of the requests of all turns did not exceed."""
    latencies: Latencies = Counter()
    for turn in turns:
        latencies.update(turn)
    rest = latencies.total() * percent / 100
    for latency_us in sorted(latencies):
        rest -= latencies[latency_us]
        if rest <= 0:
            return latency_us / 1000
    raise ValueError("no requests")


def ratio_of(pairs: Sequence[tuple[Latencies, Latencies]], percent: float) -> float:
    """Return the percentile of the first of each pair, divided by that of the second."""
    one, other = zip(*pairs, strict=True)
    return percentile_ms(one, percent) / percentile_ms(other, percent)
