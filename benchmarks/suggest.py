"""Proposed limits, fitted on one week of a synthetic service and judged on the next.

*Harmed* is the share of the requests of well-behaved clients that are denied, *stopped* the share of the needless
requests of wasteful clients (whose own token was still valid) that are denied. The limiter itself decides the second
week. None of the services was looked at while the rules of the proposal were made: that was done with seeds 1 to 5. On
recorded traces, where nobody knows who is wasteful, the first half proposes and the second half is published.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import Result
from benchmarks.synthetic import BEGIN_S, DAY_S, Request, Size, requests, statistics
from benchmarks.traces import traces
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.operations.profiles import HOUR_S, Traffic
from oauth_ratelimit.operations.suggest import Proposal, configuration, suggest
from tests.support.helpers import Clock

SEEDS = range(1001, 1025)
SHORT_FIT_SEEDS = SEEDS[:6]
SHORT_FITS = {  # hours from the midnight before Monday
    "an hour of a day": (34, 35),
    "six hours of a day": (34, 40),
    "six hours of a night": (0, 6),
    "one day": (24, 48),
    "three days": (24, 96),
}
CYCLE_S = 60.0
GOALS = {"harmed": "<= 0.1", "stopped": ">= 95"}


@dataclass(slots=True)
class Verdict:
    """Decisions about the requests after the fit."""

    well_behaved: int = 0
    harmed: int = 0
    needless: int = 0
    stopped: int = 0

    @property
    def harmed_percent(self) -> float:
        """Denied requests of well-behaved clients, in percent of theirs."""
        return 100 * self.harmed / max(1, self.well_behaved)

    @property
    def stopped_percent(self) -> float:
        """Denied needless requests of wasteful clients, in percent of those."""
        return 100 * self.stopped / max(1, self.needless)


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
        for at_s, key in rows:
            if at_s < middle_s:
                traffic.add_request(at_s, key, None)
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


def judge(found: Sequence[Request], *, fit_days: int = 7, fit_hours: tuple[float, float] | None = None) -> Verdict:
    """Propose limits from the first days, or from some hours of them, and decide the rest under them."""
    middle_s = BEGIN_S + fit_days * DAY_S
    first_h, last_h = fit_hours or (0, 24 * fit_days)
    traffic = Traffic()
    for minute in statistics(one for one in found if first_h * HOUR_S <= one.at_s - BEGIN_S < last_h * HOUR_S):
        traffic.add_minute(minute)
    rest = [request for request in found if request.at_s >= middle_s]
    denied = decide(suggest(traffic), ((one.at_s, one.client_id, one.username) for one in rest))
    verdict = Verdict()
    for request, is_denied in zip(rest, denied, strict=True):
        if not request.is_culprit:
            verdict.well_behaved += 1
            verdict.harmed += is_denied
        elif request.is_needless:
            verdict.needless += 1
            verdict.stopped += is_denied
    return verdict


def decide(proposal: Proposal, asked: Iterable[tuple[float, str, str | None]]) -> list[bool]:
    """Return for each request whether the limiter denies it under the proposed limits."""
    clock = Clock(0.0)
    limiter = Limiter(load_config({"mode": "enforce", **configuration(proposal)}), clock=clock)
    denied, cycle_s = [], 0.0
    for at_s, client_id, username in asked:
        clock.now_s = at_s
        if at_s >= cycle_s:
            limiter.sync()
            cycle_s = at_s + CYCLE_S
        denied.append(not limiter.check(client_id, username).allowed)
    limiter.close()
    return denied
