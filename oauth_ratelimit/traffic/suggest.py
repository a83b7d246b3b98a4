"""Limits proposed from recorded traffic, as docs/statistics.md describes in five steps."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, MINUTE_S
from oauth_ratelimit.operations.format import counted, duration
from oauth_ratelimit.traffic.profiles import Profile, Traffic

MAX_OWN = 10  # clients with a limit of their own; more are no configuration that anybody reads
GOOD_DEAL = 2.0  # times the safe limit that costs nothing while wasteful clients are far above
TO_STOP = 0.98  # of the needless requests, so that 95 % are stopped in a week that differs a little
WASTEFUL_RATIO = 3.0  # requests to need, as in the report
MIN_REQUESTS = 20  # below it nobody is called wasteful
ENOUGH_REQUESTS = 1000
ENOUGH_S = 20 * HOUR_S


class Suggestion:
    """Proposed limit with its evidence. Needless are requests that came while an earlier token was valid."""

    def __init__(
        self, kind: LimitKind, client_id: str | None, limit: int, profiles: list[Profile], traffic: Traffic
    ) -> None:
        denied = {profile.subject: profile.denied(limit) for profile in profiles}
        wasteful = [profile for profile in profiles if profile.is_wasteful]
        calm = [profile for profile in profiles if not profile.is_wasteful]
        safest = max(calm, key=lambda each: each.safe_limit, default=None)
        spared = [traffic.reuse.spared(subject.client_id, count) for subject, count in denied.items() if count]
        known = [count for count in spared if count is not None]
        self.kind = kind
        self.client_id = client_id  # the client that needs a limit of its own; None for all others
        self.limit, self.window_s = limit, traffic.window_s
        # The well-behaved client or user with most requests below this limit
        self.safest = safest and safest.subject
        self.safe_limit = safest and safest.safe_limit
        self.offered = sum(profile.offered for profile in profiles)  # requests that the limit applies to
        self.denied = sum(denied.values())
        # Of these, those that ``on_limit: reuse`` would have spared; None if not known
        self.spared = sum(known) if known and kind is LimitKind.CLIENT else None
        self.well_behaved_denied = sum(denied[profile.subject] for profile in calm)
        needless = sum(profile.reusable for profile in wasteful)
        stopped = sum(denied[profile.subject] for profile in wasteful)
        # Share of the needless requests that are denied; None without any
        self.stopped_ratio = min(1.0, stopped / needless) if needless else None


@dataclass(frozen=True, slots=True)
class Proposal:
    """All proposed limits: those for all clients first, then those of single clients."""

    traffic: Traffic
    suggestions: list[Suggestion]

    @property
    def is_enough(self) -> bool:
        """True if the traffic is enough to enforce the limits."""
        return self.traffic.request_count >= ENOUGH_REQUESTS and self.traffic.span_s >= ENOUGH_S

    @property
    def basis(self) -> str:
        """The traffic in words, such as ``45 requests within 5 min``."""
        days, span_s = counted(self.traffic.day_count, "day"), self.traffic.span_s
        when = f"on {days}" if span_s >= DAY_S else f"within {duration(span_s)}"
        return f"{counted(self.traffic.request_count, 'request')} {when}"


def suggest(traffic: Traffic, *, token_lifetime_s: float | None = None, assumed_lifetime_s: float = HOUR_S) -> Proposal:
    """Propose limits from recorded requests, of a week or more if possible.

    A token is valid for ``token_lifetime_s``, else as long as most tokens of its client, else ``assumed_lifetime_s``.
    """
    suggestions: list[Suggestion] = []
    wasteful_clients: set[str] = set()

    for kind in (LimitKind.CLIENT, LimitKind.USER, LimitKind.CLIENT_TOTAL):
        profiles = []
        for subject, load in traffic.loads[kind].items():
            lifetime_s = token_lifetime_s or traffic.lifetime_s(subject.client_id) or assumed_lifetime_s
            profiles.append(Profile(subject, load, kind=kind, traffic=traffic, lifetime_s=lifetime_s))
        _mark_wasteful(profiles)
        if kind is not LimitKind.CLIENT_TOTAL:
            wasteful_clients.update(profile.subject.client_id for profile in profiles if profile.is_wasteful)
            suggestions += _limits(kind, profiles, traffic)
        elif calm := [each for each in profiles if each.subject.client_id not in wasteful_clients]:
            ceiling = rounded_up(GOOD_DEAL * max(each.safe_limit for each in calm))
            suggestions.append(Suggestion(kind, None, ceiling, profiles, traffic))
    return Proposal(traffic, suggestions)


def configuration(proposal: Proposal) -> dict[str, object]:
    """Return the proposed limits as the sections ``limits`` and ``clients`` of the configuration."""
    limits: dict[str, object] = {}
    clients: dict[str, dict[str, dict[str, object]]] = {}
    for one in proposal.suggestions:
        section = limits if one.client_id is None else clients.setdefault(one.client_id, {}).setdefault("limits", {})
        hours, rest_s = divmod(one.window_s, HOUR_S)
        window = f"{one.window_s // MINUTE_S}m" if rest_s else f"{hours}h"
        more = {"on_limit": "reuse"} if one.spared and 2 * one.spared >= one.denied else {}  # if it spares most denials
        section[one.kind.value] = [{"limit": one.limit, "window": window, **more}]
    return {"limits": limits, "clients": clients} if clients else {"limits": limits}


def proposal_data(proposal: Proposal) -> dict[str, Any]:
    traffic = proposal.traffic
    return {
        "window_s": traffic.window_s,
        "request_count": traffic.request_count,
        "day_count": traffic.day_count,
        "span_s": traffic.span_s,
        "is_enough": proposal.is_enough,
        "basis": proposal.basis,
        "left_out_requests": traffic.left_out_count,
        "trusted_requests": traffic.trusted_count,
        "suggestions": [
            {**vars(one), "kind": one.kind.value, "safest": one.safest and one.safest._asdict()}
            for one in proposal.suggestions
        ],
        "configuration": configuration(proposal),
    }


def _mark_wasteful(profiles: list[Profile]) -> None:
    """Mark the profiles that are wasteful, or whose client is."""
    offered, needed = Counter[str](), Counter[str]()
    for profile in profiles:
        offered[profile.subject.client_id] += profile.offered
        needed[profile.subject.client_id] += profile.needed
    wasteful = {client_id for client_id, count in offered.items() if _wastes(count, needed[client_id])}
    for each in profiles:
        each.is_wasteful = _wastes(each.offered, each.needed) or each.subject.client_id in wasteful


def _wastes(offered: int, needed: int) -> bool:
    return offered >= MIN_REQUESTS and offered > WASTEFUL_RATIO * needed


def _limits(kind: LimitKind, profiles: list[Profile], traffic: Traffic) -> list[Suggestion]:
    """Return the limit of a kind for all clients, and those of clients that need their own."""
    if not profiles:
        return []
    calm = [profile for profile in profiles if not profile.is_wasteful]
    wasteful = [profile for profile in profiles if profile.is_wasteful]
    if not calm:
        return [Suggestion(kind, None, max(each.needed_in_window for each in profiles), profiles, traffic)]
    safe_limits = Counter[str]()
    for profile in calm:
        client_id = profile.subject.client_id
        safe_limits[client_id] = max(profile.safe_limit, safe_limits[client_id])
    ordered = sorted(safe_limits.values(), reverse=True)
    floor = ordered[MAX_OWN] if len(ordered) > MAX_OWN else ordered[-1]  # what all but ten clients need
    limit = _largest_that_stops(wasteful, at_most=rounded_up(GOOD_DEAL * ordered[0]))
    limit = rounded_up(floor) if limit < floor else limit
    own = {client_id: rounded_up(safe) for client_id, safe in safe_limits.items() if safe > limit}
    own |= _limits_of_wasteful(wasteful, limit)
    groups: dict[str | None, list[Profile]] = {None: [], **{client_id: [] for client_id in own}}
    for profile in profiles:
        client_id = profile.subject.client_id
        groups[client_id if client_id in own else None].append(profile)
    return [
        Suggestion(kind, client_id, limit if client_id is None else own[client_id], group, traffic)
        for client_id, group in groups.items()
    ]


def _limits_of_wasteful(wasteful: list[Profile], limit: int) -> dict[str, int]:
    """Return limits of single wasteful clients, if the limit for all stops too little: what they need in a window."""
    missing = TO_STOP * sum(profile.reusable for profile in wasteful)
    needs = {profile.subject.client_id: profile.needed_in_window for profile in wasteful}
    left = Counter[str]()  # needless requests that the limit for all would admit
    for profile in wasteful:
        denied = profile.denied(limit)
        missing -= denied
        left[profile.subject.client_id] += max(0, profile.reusable - denied)
    own: dict[str, int] = {}
    for client_id, count in left.most_common(MAX_OWN):
        if missing > 0 and needs[client_id] < limit:
            own[client_id] = needs[client_id]
            missing -= count
    return own


def _largest_that_stops(wasteful: list[Profile], *, at_most: int) -> int:
    """Return the largest limit that stops 98 % of the needless requests, found by bisection."""
    target = TO_STOP * sum(profile.reusable for profile in wasteful)

    def stops(limit: int) -> bool:
        return sum(profile.denied(limit) for profile in wasteful) >= target

    if stops(at_most):
        return at_most
    lowest, highest = 1, at_most  # the first may not stop enough either; the caller has a floor
    while highest - lowest > max(1, lowest // 50):
        middle = (lowest + highest) // 2
        lowest, highest = (middle, highest) if stops(middle) else (lowest, middle)
    return _rounded_down(lowest)


def rounded_up(value: float) -> int:
    return -_rounded_down(-value)


def _rounded_down(value: float) -> int:
    """Return a number with two digits that people can read, not above the value."""
    unit = int(10 ** max(0, math.floor(math.log10(max(1.0, abs(value)))) - 1))
    return math.floor(value / unit) * unit
