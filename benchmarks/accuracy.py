"""Ten limiters on recorded traffic, compared with an exact log. ``replays.py`` simulates other settings.

The exact log admits a request if fewer than the limit were admitted in the window that ends with it. Errors are in
percent of all requests: *allow*, admitted although the log of the admitted requests is full; *deny*, denied although it
is not. The *overshoot* is the most hits admitted in any window, as a multiple of the limit.
"""

import random
from collections.abc import Iterator, Sequence

from benchmarks.fleet import Fleet
from benchmarks.results import Result
from benchmarks.traces import Request, load_trace, traces
from oauth_ratelimit.replay.accuracy import ErrorLog, Tally

INSTANCE_COUNT = 10
SEED = 2005  # the same trace gives the same numbers again
WINDOW_S = 60
GOALS = {
    "flush": {"allow": "<= 0.20", "deny": "<= 0.12", "overshoot": "<= 1.22"},
    "reserve": {"allow": "<= 0.11", "deny": "<= 0.11", "overshoot": "<= 1.16"},
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the errors of one instance and of ten, and the load on the store."""
    for trace in traces():
        requests = load_trace(trace.path, most=20_000 if short else None)
        for label, instance_count, near_limit in (
            ("one instance", 1, "flush"),
            ("flush", INSTANCE_COUNT, "flush"),
            ("reserve", INSTANCE_COUNT, "reserve"),
        ):
            tally = replay(requests, limit=trace.limit, instance_count=instance_count, near_limit=near_limit)
            goals = GOALS.get(label, {}) if trace.name == "lcg2005" else {}
            prefix = f"accuracy/{trace.name}, {trace.limit} in {WINDOW_S} s, {label}"
            yield Result(f"{prefix}/allow", tally.percent(tally.wrongly_allowed), "%", goals.get("allow"))
            yield Result(f"{prefix}/deny", tally.percent(tally.wrongly_denied), "%", goals.get("deny"))
            yield Result(f"{prefix}/overshoot", tally.peak / trace.limit, "x", goals.get("overshoot"))
            yield Result(f"{prefix}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")


def replay(requests: Sequence[Request], *, limit: int, instance_count: int, near_limit: str = "flush") -> Tally:
    """Send a trace through several limiters, and return their errors."""
    config = {
        "mode": "enforce",
        "limits": {"client": [{"limit": limit, "window": WINDOW_S}]},
        "sync": {"near_limit": near_limit, "deadline": 1},
    }
    fleet = Fleet(instance_count, config, random.Random(SEED), interval_s=1.0, begin_s=requests[0].at_s)
    tally, logs = Tally(), dict[str, ErrorLog]()
    for request in requests:
        is_admitted = fleet.check(request.key, request.at_s)
        log = logs.setdefault(request.key, ErrorLog(tally, limit=limit, window_us=WINDOW_S * 1_000_000))
        log.add([round(request.at_s * 1_000_000)], [is_admitted])
    tally.operations = fleet.store.written + fleet.store.read_count
    fleet.close()
    return tally
