"""Proposed limits, fitted on one week of a synthetic service and judged on the next.

*Harmed* is the share of the requests of well-behaved clients that are denied, *stopped* the share of the needless
requests of wasteful clients (whose own token was still valid) that are denied. The limiter itself decides the second
week. None of the services was looked at while the rules of the proposal were made: that was done with seeds 1 to 5. On
recorded traces, where nobody knows who is wasteful, the first half proposes and the second half is published.
"""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.results import Result
from benchmarks.traces import traces
from oauth_ratelimit.traffic.formats import SECOND_US, Row
from oauth_ratelimit.traffic.minutes import minutes_of_rows
from oauth_ratelimit.traffic.suggest import Traffic, suggest
from testbed.synthetic import Size, Verdict, decide, judge, requests

SEEDS = range(1001, 1025)
SHORT_FIT_SEEDS = SEEDS[:6]
SHORT_FITS = {  # hours from the midnight before Monday
    "an hour of a day": (34, 35),
    "six hours of a day": (34, 40),
    "six hours of a night": (0, 6),
    "one day": (24, 48),
    "three days": (24, 96),
}
GOALS = {"harmed": "<= 0.1", "stopped": ">= 95"}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the worst of several services, also fitted on less than a week, and the effect on the recorded traces."""
    verdicts = [judge(requests(Size(), seed=seed)) for seed in (SEEDS[:1] if short else SEEDS)]
    yield from _worst(f"synthetic service, two weeks, worst of {len(SEEDS)}", verdicts, GOALS)
    for name, hours in SHORT_FITS.items():
        verdicts = [
            judge(requests(Size(), seed=seed), fit_hours=hours)
            for seed in (SHORT_FIT_SEEDS[:1] if short else SHORT_FIT_SEEDS)
        ]
        yield from _worst(f"synthetic service, fitted on {name}, worst of {len(SHORT_FIT_SEEDS)}", verdicts, {})
    for trace in traces():
        rows = trace.requests()[: 20_000 if short else None]
        middle_s = (rows[0][0] + rows[-1][0]) / 2
        traffic = Traffic()
        for minute in minutes_of_rows(Row(int(at_s * SECOND_US), key) for at_s, key in rows if at_s < middle_s):
            traffic.add_minute(minute)
        rest = [(at_s, key, None) for at_s, key in rows if at_s >= middle_s]
        proposal = suggest(traffic)
        denied = decide(proposal, rest)
        keys = {client_id for (_, client_id, _), is_denied in zip(rest, denied, strict=True) if is_denied}
        all_keys = {client_id for _, client_id, _ in rest}
        prefix = f"suggest/{trace.name}, second half"
        yield Result(f"{prefix}/limit", float(proposal.suggestions[0].limit), "per hour")
        yield Result(f"{prefix}/own limits", float(sum(one.client_id is not None for one in proposal.suggestions)), "")
        yield Result(f"{prefix}/denied", 100 * sum(denied) / len(rest), "%")
        yield Result(f"{prefix}/keys denied", 100 * len(keys) / len(all_keys), "%")


def _worst(name: str, verdicts: Sequence[Verdict], goals: Mapping[str, str]) -> Iterator[Result]:
    yield Result(f"suggest/{name}/harmed", max(one.harmed_percent for one in verdicts), "%", goals.get("harmed"))
    yield Result(f"suggest/{name}/stopped", min(one.stopped_percent for one in verdicts), "%", goals.get("stopped"))
