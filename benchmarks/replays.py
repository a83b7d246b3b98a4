"""Accuracy by algorithm, frames, instances and sync interval: recorded traffic through ``testbed.comparison``.

Errors are in percent of all requests, against an exact log of what was admitted: *allow*, admitted although the window
was full; *deny*, denied although it was not. The *overshoot* is the most hits admitted in any window, as a multiple of
the limit. With ten instances the trace of the grid takes minutes for each setting.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from benchmarks.results import Result
from benchmarks.traces import SHIPPED, Trace, traces
from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.traffic.formats import Recording
from testbed.comparison.accuracy import ContenderCounts
from testbed.comparison.algorithms import COMMON
from testbed.comparison.run import EXACT_LOG, Contender, FleetPlan, Rate, Replay, in_batches

WINDOW_S = 60
DEFAULT_FRAMES, DEFAULT_INSTANCES, DEFAULT_INTERVAL_S = 10, 10, 1.0
DEFAULT_PLAN = FleetPlan(DEFAULT_INSTANCES, DEFAULT_INTERVAL_S)
FRAMES = (1, 2, 5, 6, 10)
FINEST = 60  # frames of a second
INTERVALS_S = (0.2, 1.0, 3.0)
SHORT_ROWS = 2_000
SLIDING, PROPORTIONAL = Estimator.SLIDING.value, Estimator.PROPORTIONAL.value
GOALS = {"allow": "<= 0.20", "deny": "<= 0.12", "overshoot": "<= 1.22"}
"""Of ten instances in the default configuration, on the larger trace."""


def alone() -> list[Contender]:
    """Return the contenders on one instance."""
    common = [Contender(name) for name in COMMON if name != EXACT_LOG]
    return common + [Contender(estimator.value, count) for estimator in Estimator for count in (*FRAMES, FINEST)]


def fleets() -> list[Contender]:
    """Return the contenders on several instances."""
    several = (FleetPlan(DEFAULT_INSTANCES, interval_s) for interval_s in INTERVALS_S)
    return [Contender(SLIDING, DEFAULT_FRAMES, plan) for plan in (FleetPlan(1, DEFAULT_INTERVAL_S), *several)]


def label(contender: Contender) -> str:
    """Return the name of a setting in the results."""
    words = [contender.algorithm] + ([f"k = {contender.frame_count}"] if contender.frame_count else [])
    plan = contender.plan
    if plan:
        words += [f"N = {plan.instance_count}", f"T = {plan.interval_s:g} s"]
    return ", ".join(words)


def run(*, short: bool) -> Iterator[Result]:
    """Yield the errors of each setting, and its load on the store."""
    for trace in traces():
        rate = Rate(trace.limit, WINDOW_S)
        groups = [alone(), *([contender] for contender in fleets())]
        for group in groups:
            replay = Replay(rate, group)
            with Recording(str(trace.path)).opened() as (_, rows):
                replay.run(in_batches(islice(rows, SHORT_ROWS if short else None)))
            for result in replay.results:
                yield from _results(trace, result.contender, result.tally)


def goals_of(contender: Contender) -> Mapping[str, str]:
    """Return the goals of a setting on the larger trace, none for most."""
    return GOALS if contender == Contender(SLIDING, DEFAULT_FRAMES, DEFAULT_PLAN) else {}


def _results(trace: Trace, contender: Contender, tally: ContenderCounts) -> Iterator[Result]:
    goals = {} if trace == SHIPPED else goals_of(contender)
    prefix = f"replays/{trace.name}, {trace.limit} in {WINDOW_S} s/{label(contender)}"
    yield Result(f"{prefix}/allow", tally.percent(tally.wrongly_allowed), "%", goals.get("allow"))
    yield Result(f"{prefix}/deny", tally.percent(tally.wrongly_denied), "%", goals.get("deny"))
    yield Result(f"{prefix}/overshoot", tally.peak / trace.limit, "x", goals.get("overshoot"))
    if contender.plan:
        yield Result(f"{prefix}/operations", 1000 * tally.operations / tally.requests, "per 1,000 requests")
