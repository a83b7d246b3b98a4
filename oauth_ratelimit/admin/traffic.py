"""Query for the charts: requests per minute over time, by client."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute, Peak, Tally
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import Record, tally_data

SPANS_S = {"15m": (900, 60), "1h": (3600, 60), "6h": (21_600, 300), "1d": (86_400, 600), "7d": (604_800, 3600)}
"""Length of a span and of its steps, in seconds."""

MAX_READ = 12_000  # documents; longer spans are sampled
TTL_S = 8.0  # instances write statistics every ten seconds
MAX_LINES = 5  # more lines cannot be told apart
MAX_CLIENTS = 100


def traffic(cache: ReadCache, params: Params) -> object:
    """Return requests per minute over time, of all clients or of one."""
    span = params.get("span", "1h")
    if span not in SPANS_S:
        raise ValueError(f"span: got {span[:40]!r}, expected one of {', '.join(SPANS_S)}")
    client_id = params.get("id")
    if client_id is not None:
        checked_client_id(client_id)
    length_s, step_s = SPANS_S[span]
    return cache.read_cached(
        ("traffic", span, client_id),
        lambda context: _traffic(context, Timeline.until(context.now_s, length_s=length_s, step_s=step_s), client_id),
        ttl_s=TTL_S,
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """Equal steps of time; the last one is not complete.

    Args:
        start_s: Start of the first step, in seconds since the epoch.
        step_s: Length of a step, in seconds; whole minutes.
        count: Number of steps.
        now_s: The present, within the last step.
    """

    start_s: int
    step_s: int
    count: int
    now_s: float

    @classmethod
    def until(cls, now_s: float, *, length_s: int, step_s: int) -> "Timeline":
        """Return the steps of a length up to now."""
        count = length_s // step_s
        return cls(int(now_s // step_s - count + 1) * step_s, step_s, count, now_s)

    def step_of(self, at_s: int) -> int:
        """Return the index of the step that contains a time."""
        return (at_s - self.start_s) // self.step_s

    def sampling(self, count: int, max_count: int) -> int:
        """Return n such that every n-th minute has about ``max_count`` of ``count`` documents.

        n divides the minutes of a step, or is a multiple of them; then some steps have no sample.
        """
        whole = self.step_s // MINUTE_S
        fitting = chain((n for n in range(1, whole + 1) if not whole % n), (whole * n for n in range(2, self.count)))
        return next((n for n in fitting if count <= n * max_count), whole * self.count)

    def sample_count(self, step: int, *, every: int) -> int:
        """Return the number of sampled minutes of a step that have begun."""
        start_s = self.start_s + step * self.step_s
        minute_count = math.ceil(min(max(self.now_s - start_s, 1), self.step_s) / MINUTE_S)
        first = -(start_s // MINUTE_S) % every
        return -(-(minute_count - first) // every) if minute_count > first else 0


@dataclass(slots=True)
class Line:
    """Requests of one client over time.

    Args:
        client_id: The client.
        steps: Requests in each step.

    Attributes:
        total: All requests.
        without_user: Requests without a user.
        peaks: Highest usage of each policy, by its name.
    """

    client_id: str
    steps: list[Tally]
    total: Tally = field(default_factory=Tally)
    without_user: Tally = field(default_factory=Tally)
    peaks: dict[str, Peak] = field(default_factory=dict)

    def add(self, minute: ClientMinute, step: int) -> None:
        """Add the requests of a minute."""
        tally = minute.tally()
        self.steps[step] += tally
        self.total += tally
        self.without_user += minute.tally("client")
        for policy, peak in minute.peaks.items():
            self.peaks[policy] = max(peak, self.peaks.get(policy, peak))


def _traffic(context: OperatorContext, timeline: Timeline, client_id: str | None) -> Record:
    store = context.stores.statistics
    stored = client_id and storable_name(client_id)
    count = store.count(timeline.start_s, context.now_s, stored)
    every = timeline.sampling(count, MAX_READ)
    minutes = store.minutes(timeline.start_s, context.now_s, stored, parts=("by", "peaks"), every=every)
    lines = _lines(minutes, timeline)
    for line in lines.values():
        line.client_id = (
            client_id or line.client_id
        )  # configuration has the full id, the database may have a shortened one
    ranked = sorted(lines.values(), key=lambda line: -line.total.offered)
    drawn = _drawn_lines(ranked)
    rest = [line for line in ranked if line not in drawn]
    return {
        "now_s": context.now_s,
        "step_s": timeline.step_s,
        "times": [timeline.start_s + step * timeline.step_s for step in range(timeline.count)],
        "sampled_every": every,
        "lines": [_line_data(line, timeline, context.policies, every=every) for line in drawn],
        "rest": _line_data(_merged(rest, timeline), timeline, context.policies, every=every) if rest else None,
        "rest_count": len(rest),
        "clients": [_client_data(line, context.policies, every=every) for line in ranked[:MAX_CLIENTS]],
        "client_count": len(ranked),
        "total": tally_data(sum((line.total for line in ranked), Tally()), every=every),
    }


def _lines(minutes: Iterable[ClientMinute], timeline: Timeline) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for minute in minutes:
        step = timeline.step_of(minute.minute_s)
        if 0 <= step < timeline.count:
            line = lines.get(minute.client_id)
            if line is None:
                line = lines[minute.client_id] = Line(minute.client_id, [Tally()] * timeline.count)
            line.add(minute, step)
    return lines


def _drawn_lines(ranked: Sequence[Line]) -> list[Line]:
    """Return the clients with a line of their own: most denials first, then most requests."""
    named = [line for line in ranked if line.client_id != OTHER_CLIENTS]
    worst = [line for line in sorted(named, key=lambda line: -line.total.over) if line.total.over][:MAX_LINES]
    most = [line for line in named if line not in worst]
    return [*worst, *most][:MAX_LINES]


def _merged(lines: Iterable[Line], timeline: Timeline) -> Line:
    merged = Line(OTHER_CLIENTS, [Tally()] * timeline.count)
    for line in lines:
        merged.total += line.total
        merged.steps = [old + new for old, new in zip(merged.steps, line.steps, strict=True)]
    return merged


def _line_data(line: Line, timeline: Timeline, policies: PolicySet, *, every: int) -> Record:
    samples = [timeline.sample_count(step, every=every) for step in range(timeline.count)]
    return {
        "client_id": line.client_id,
        **{
            outcome: [
                getattr(tally, outcome) / count if count else None
                for tally, count in zip(line.steps, samples, strict=True)
            ]
            for outcome in ("issued", "denied", "would_deny")
        },
        "rates": _rates(line, policies) if line.client_id != OTHER_CLIENTS else [],
    }


def _rates(line: Line, policies: PolicySet) -> list[Record]:
    """Return the limits to compare with all requests of a client, as rates per minute.

    Of several tiers the one with the lowest rate counts.
    """
    matched = policies.matching(line.client_id)
    if matched.trusted:
        return []
    kinds = [LimitKind.CLIENT_TOTAL, *([LimitKind.CLIENT] if line.without_user.offered else [])]
    lowest = [min(limits, key=_per_minute) for kind in kinds if (limits := getattr(matched.limits, kind.value))]
    return [{"policy": policy_text(policy), "per_minute": _per_minute(policy)} for policy in lowest]


def _per_minute(policy: Policy) -> float:
    return policy.limit * MINUTE_S / policy.window.window_s


def _client_data(line: Line, policies: PolicySet, *, every: int) -> Record:
    matched = policies.matching(line.client_id)
    is_rest = line.client_id == OTHER_CLIENTS
    return {
        "client_id": line.client_id,
        **tally_data(line.total, every=every),
        "mode": None if is_rest else "trusted" if matched.trusted else matched.mode.value,
        "is_canary": matched.is_canary,
        "peaks": {name: peak._asdict() for name, peak in sorted(line.peaks.items())},
        "highest_use": max((peak.share for peak in line.peaks.values()), default=None),
    }
