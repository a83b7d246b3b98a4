"""The charts: requests per minute and client over time, out of the statistics."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from oauth_ratelimit.admin.cache import Question, ReadCache
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute, Peak, Tally
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import Record, tally_data

SPANS = {"15m": (900, 60), "1h": (3600, 60), "6h": (21_600, 300), "1d": (86_400, 600), "7d": (604_800, 3600)}
"""What may be asked for: its length and that of a step, in seconds."""

MAX_READ = 12_000  # documents; a longer time is read as a sample of its minutes
KEPT_S = 8.0  # processes write every ten seconds
DRAWN_COUNT = 5  # clients with a line of their own: more cannot be told apart
LISTED_COUNT = 100


def traffic(readings: ReadCache, question: Question) -> object:
    """Return requests per minute over time, of all clients or of one."""
    name = question.get("span", "1h")
    if name not in SPANS:
        raise ValueError(f"span: one of {', '.join(SPANS)}, got {name!r}")
    client_id = question.get("id")
    if client_id is not None:
        checked_client_id(client_id)
    length_s, step_s = SPANS[name]
    return readings.read_once(
        ("traffic", name, client_id),
        lambda context: _traffic(context, Timeline.before(context.now_s, length_s=length_s, step_s=step_s), client_id),
        keep_s=KEPT_S,
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """Equal steps of time, the last one still running.

    Args:
        start_s: When the first begins, seconds since the epoch.
        step_s: How long each is, whole minutes.
        count: How many.
        now_s: The present, within the last one.
    """

    start_s: int
    step_s: int
    count: int
    now_s: float

    @classmethod
    def before(cls, now_s: float, *, length_s: int, step_s: int) -> "Timeline":
        """Return the steps that end with the present."""
        count = length_s // step_s
        return cls(int(now_s // step_s - count + 1) * step_s, step_s, count, now_s)

    def step_of(self, at_s: int) -> int:
        """Return the number of the step that a moment lies in."""
        return (at_s - self.start_s) // self.step_s

    def sample_of(self, count: int, most: int) -> int:
        """Return n such that every n-th minute leaves ``most`` of so many documents, about.

        It divides a step into equal parts, or takes whole steps together; then some steps have no sample.
        """
        whole = self.step_s // MINUTE_S
        fitting = chain((n for n in range(1, whole + 1) if not whole % n), (whole * n for n in range(2, self.count)))
        return next((n for n in fitting if count <= n * most), whole * self.count)

    def samples_of(self, step: int, *, every: int) -> int:
        """Return how many minutes of a step have begun and belong to the sample."""
        start_s = self.start_s + step * self.step_s
        minute_count = math.ceil(min(max(self.now_s - start_s, 1), self.step_s) / MINUTE_S)
        first = -(start_s // MINUTE_S) % every
        return -(-(minute_count - first) // every) if minute_count > first else 0


@dataclass(slots=True)
class Line:
    """One client over time.

    Args:
        client_id: The client.
        steps: Its requests in each step.

    Attributes:
        total: All its requests.
        without_user: Those that were made without a user.
        peaks: By name of the policy, the most that was used of it.
    """

    client_id: str
    steps: list[Tally]
    total: Tally = field(default_factory=Tally)
    without_user: Tally = field(default_factory=Tally)
    peaks: dict[str, Peak] = field(default_factory=dict)

    def add(self, minute: ClientMinute, step: int) -> None:
        """Add a minute."""
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
    every = timeline.sample_of(count, MAX_READ)
    minutes = store.minutes(timeline.start_s, context.now_s, stored, parts=("by", "peaks"), every=every)
    lines = _lines(minutes, timeline)
    for line in lines.values():
        line.client_id = client_id or line.client_id  # not as it is stored: rules go by the whole name
    ranked = sorted(lines.values(), key=lambda line: -line.total.offered)
    drawn = _drawn(ranked)
    rest = [line for line in ranked if line not in drawn]
    return {
        "now_s": context.now_s,
        "step_s": timeline.step_s,
        "times": [timeline.start_s + step * timeline.step_s for step in range(timeline.count)],
        "sampled_every": every,
        "lines": [_line_data(line, timeline, context.policies, every=every) for line in drawn],
        "rest": _line_data(_merged(rest, timeline), timeline, context.policies, every=every) if rest else None,
        "rest_count": len(rest),
        "clients": [_client_data(line, context.policies, every=every) for line in ranked[:LISTED_COUNT]],
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


def _drawn(ranked: Sequence[Line]) -> list[Line]:
    """Return the clients with a line of their own: those most over a limit, then those with most requests."""
    named = [line for line in ranked if line.client_id != OTHER_CLIENTS]
    worst = [line for line in sorted(named, key=lambda line: -line.total.over) if line.total.over][:DRAWN_COUNT]
    most = [line for line in named if line not in worst]
    return [*worst, *most][:DRAWN_COUNT]


def _merged(lines: Iterable[Line], timeline: Timeline) -> Line:
    merged = Line(OTHER_CLIENTS, [Tally()] * timeline.count)
    for line in lines:
        merged.total += line.total
        merged.steps = [old + new for old, new in zip(merged.steps, line.steps, strict=True)]
    return merged


def _line_data(line: Line, timeline: Timeline, policies: PolicySet, *, every: int) -> Record:
    samples = [timeline.samples_of(step, every=every) for step in range(timeline.count)]
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


def _rates(line: Line, rules: PolicySet) -> list[Record]:
    """
    Return the limits that a client's sum of requests can be compared with, as what they come to per minute: of several
    tiers the one that a steady rate meets first.
    """
    found = rules.matching(line.client_id)
    if found.trusted:
        return []
    kinds = [LimitKind.CLIENT_TOTAL, *([LimitKind.CLIENT] if line.without_user.offered else [])]
    tightest = [min(policies, key=_per_minute) for kind in kinds if (policies := getattr(found.limits, kind.value))]
    return [{"policy": policy_text(policy), "per_minute": _per_minute(policy)} for policy in tightest]


def _per_minute(policy: Policy) -> float:
    return policy.limit * MINUTE_S / policy.window.window_s


def _client_data(line: Line, policies: PolicySet, *, every: int) -> Record:
    found = policies.matching(line.client_id)
    is_rest = line.client_id == OTHER_CLIENTS
    return {
        "client_id": line.client_id,
        **tally_data(line.total, every=every),
        "mode": None if is_rest else "trusted" if found.trusted else found.mode.value,
        "is_canary": found.is_canary,
        "peaks": {name: peak._asdict() for name, peak in sorted(line.peaks.items())},
        "fullest": max((peak.share for peak in line.peaks.values()), default=None),
    }
