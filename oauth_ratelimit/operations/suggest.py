"""Limits proposed from recorded traffic.

1. For each client and each user, count the requests in the busiest window of each day. The *safe limit* is the highest
   of these peaks, or their mean plus three standard deviations over the days, whichever is larger.
2. Compute what each one needs if it keeps its tokens: three tokens per user, or ten per client, in each lifetime of a
   token. A client or user that asks for three times its need is *wasteful*, the others are *well-behaved*.
3. Propose twice the largest safe limit of the well-behaved ones, or less if that is needed to stop 98 % of the requests
   of wasteful ones that came while an earlier token was valid. A well-behaved client that needs more gets its own.
4. At most ten do, so the proposal may stop less; then the worst wasteful clients get limits of their own, their need.
5. All requests of a client together get a ceiling: twice the largest safe limit of the clients without waste.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import Subject, effect_of
from oauth_ratelimit.operations.format import counted, duration
from oauth_ratelimit.operations.profiles import DAY_S, HOUR_S, TOKENS, Profile, Traffic, profile_of

MAX_OWN = 10  # clients with a limit of their own; more are no configuration that anybody reads
GOOD_DEAL = 2.0  # times the safe limit that costs nothing while wasteful clients are far above
TO_STOP = 0.98  # of the needless requests, so that 95 % are stopped in a week that differs a little
WASTEFUL_RATIO = 3.0  # requests to need, as in the report
MIN_REQUESTS = 20  # below it nobody is called wasteful
ENOUGH_REQUESTS = 1000
ENOUGH_S = 20 * HOUR_S


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Proposed limit with its evidence.

    Args:
        kind: Kind of the limit.
        client_id: The client that needs a limit of its own; None for all others.
        limit: Requests per window.
        window_s: Length of the window.
        safe_limit: Safe limit of the well-behaved client or user with most requests below this limit.
        safest: That client or user; None if there is none.
        offered: Requests that the limit applies to.
        denied: Those that it would have denied.
        denied_count: Clients or users that it would have denied anything.
        well_behaved_denied: Denied requests of well-behaved ones.
        needless: Requests of wasteful ones that came while an earlier token was valid.
        needless_denied: Denied requests of wasteful ones.
        next_above: Wasteful client or user with the lowest peak above the limit; None if there is none.
        next_peak: Its most requests in a window.
    """

    kind: LimitKind
    client_id: str | None
    limit: int
    window_s: int
    safe_limit: int = 0
    safest: Subject | None = None
    offered: int = 0
    denied: int = 0
    denied_count: int = 0
    well_behaved_denied: int = 0
    needless: int = 0
    needless_denied: int = 0
    next_above: Subject | None = None
    next_peak: int = 0

    @property
    def stopped_ratio(self) -> float | None:
        """Share of the needless requests that are denied; None without any."""
        return min(1.0, self.needless_denied / self.needless) if self.needless else None


@dataclass(slots=True)
class Proposal:
    """All proposed limits.

    Args:
        window_s: Length of their window.
        request_count: Requests that they are made from.
        day_count: Days with requests.
        span_s: Time from the first request to the last.
        left_out_count: Requests of clients or users for which there was no room, or whose client is unknown.
        suggestions: The limits: for all clients first, then those of single clients.
        wasteful: Wasteful clients and users by kind, the most wasteful first.
    """

    window_s: int
    request_count: int
    day_count: int
    span_s: int
    left_out_count: int
    suggestions: list[Suggestion] = field(default_factory=list)
    wasteful: dict[LimitKind, list[Profile]] = field(default_factory=dict)

    @property
    def is_enough(self) -> bool:
        """True if the traffic is enough to enforce the limits."""
        return self.request_count >= ENOUGH_REQUESTS and self.span_s >= ENOUGH_S

    @property
    def basis(self) -> str:
        """The traffic in words, such as ``45 requests within 5 min``."""
        when = f"on {counted(self.day_count, 'day')}" if self.span_s >= DAY_S else f"within {duration(self.span_s)}"
        return f"{counted(self.request_count, 'request')} {when}"


def suggest(traffic: Traffic, *, token_lifetime_s: float | None = None, assumed_lifetime_s: float = HOUR_S) -> Proposal:
    """Propose limits.

    Args:
        traffic: Recorded requests, of a week or more if possible.
        token_lifetime_s: Lifetime of a token in seconds; None takes the recorded ones.
        assumed_lifetime_s: The same for clients of which none is recorded.
    """
    proposal = Proposal(
        traffic.window_s,
        request_count=traffic.request_count,
        day_count=traffic.day_count,
        span_s=traffic.span_s,
        left_out_count=traffic.left_out_count,
    )
    wasteful_clients: set[str] = set()

    def lifetime_of(client_id: str) -> float:
        return token_lifetime_s or traffic.lifetime_s(client_id) or assumed_lifetime_s

    for kind in (LimitKind.CLIENT, LimitKind.USER, LimitKind.CLIENT_TOTAL):
        profiles = [
            profile_of(
                subject,
                load,
                kind=kind,
                traffic=traffic,
                lifetime_s=lifetime_of(subject.client_id),
            )
            for subject, load in traffic.loads[kind].items()
        ]
        profiles = _classified(profiles)
        if kind is not LimitKind.CLIENT_TOTAL:
            wasteful = [profile for profile in profiles if profile.is_wasteful]
            proposal.wasteful[kind] = sorted(wasteful, key=lambda profile: -profile.reusable)
            wasteful_clients.update(profile.subject.client_id for profile in wasteful)
            proposal.suggestions += _limits(kind, profiles, traffic, lifetime_of)
        elif calm := [each for each in profiles if each.subject.client_id not in wasteful_clients]:
            ceiling = _rounded_up(GOOD_DEAL * max(each.safe_limit for each in calm))
            proposal.suggestions.append(_with_evidence(kind, None, ceiling, profiles, traffic))
    return proposal


def configuration(proposal: Proposal) -> dict[str, object]:
    """Return the proposed limits as the sections ``limits`` and ``clients`` of the configuration."""
    limits: dict[str, object] = {}
    clients: dict[str, dict[str, dict[str, object]]] = {}
    for one in proposal.suggestions:
        section = limits if one.client_id is None else clients.setdefault(one.client_id, {}).setdefault("limits", {})
        section[one.kind.value] = [{"limit": one.limit, "window": _window(one.window_s)}]
    return {"limits": limits, "clients": clients} if clients else {"limits": limits}


def _window(window_s: int) -> str:
    return f"{window_s // HOUR_S}h" if window_s % HOUR_S == 0 else f"{window_s // MINUTE_S}m"


def proposal_data(proposal: Proposal) -> dict[str, object]:
    """Return a proposal as a record."""
    return {
        "window_s": proposal.window_s,
        "request_count": proposal.request_count,
        "day_count": proposal.day_count,
        "span_s": proposal.span_s,
        "is_enough": proposal.is_enough,
        "basis": proposal.basis,
        "left_out_requests": proposal.left_out_count,
        "suggestions": list(map(suggestion_data, proposal.suggestions)),
        "configuration": configuration(proposal),
    }


def suggestion_data(one: Suggestion) -> dict[str, object]:
    """Return a suggestion as a record."""
    return {
        **{each.name: getattr(one, each.name) for each in fields(one)},
        "kind": one.kind.value,
        "safest": one.safest and one.safest._asdict(),
        "next_above": one.next_above and one.next_above._asdict(),
        "stopped_ratio": one.stopped_ratio,
    }


def _classified(profiles: list[Profile]) -> list[Profile]:
    """Return the profiles with those marked that are wasteful, or whose client is."""
    clients: dict[str, list[int]] = {}
    for profile in profiles:
        totals = clients.setdefault(profile.subject.client_id, [0, 0])
        totals[0] += profile.offered
        totals[1] += profile.needed
    return [
        replace(profile, is_wasteful=True)
        if _wastes(profile.offered, profile.needed) or _wastes(*clients[profile.subject.client_id])
        else profile
        for profile in profiles
    ]


def _wastes(offered: int, needed: int) -> bool:
    return offered >= MIN_REQUESTS and offered > WASTEFUL_RATIO * needed


def _limits(
    kind: LimitKind, profiles: list[Profile], traffic: Traffic, lifetime_of: Callable[[str], float]
) -> list[Suggestion]:
    """Return the limit of a kind for all clients, and those of clients that need their own."""
    calm = [profile for profile in profiles if not profile.is_wasteful]
    if not profiles:
        return []
    if not calm:
        needs = (_need(kind, lifetime_of(each.subject.client_id), traffic.window_s) for each in profiles)
        return [_with_evidence(kind, None, max(needs), profiles, traffic)]
    safe_limits: dict[str, int] = {}
    for profile in calm:
        client_id = profile.subject.client_id
        safe_limits[client_id] = max(profile.safe_limit, safe_limits.get(client_id, 0))
    ordered = sorted(safe_limits.values(), reverse=True)
    floor = ordered[MAX_OWN] if len(ordered) > MAX_OWN else ordered[-1]  # what all but ten clients need
    ceiling = _rounded_up(GOOD_DEAL * ordered[0])
    limit = _largest_that_stops([each for each in profiles if each.is_wasteful], traffic, kind, at_most=ceiling)
    limit = _rounded_up(floor) if limit < floor else limit
    own = {client_id: _rounded_up(safe) for client_id, safe in safe_limits.items() if safe > limit}
    own |= _limits_of_wasteful([each for each in profiles if each.is_wasteful], traffic, kind, limit, lifetime_of)
    groups: dict[str | None, list[Profile]] = {None: [], **{client_id: [] for client_id in own}}
    for profile in profiles:
        client_id = profile.subject.client_id
        groups[client_id if client_id in own else None].append(profile)
    return [
        _with_evidence(kind, client_id, limit if client_id is None else own[client_id], group, traffic)
        for client_id, group in groups.items()
    ]


def _limits_of_wasteful(
    wasteful: list[Profile], traffic: Traffic, kind: LimitKind, limit: int, lifetime_of: Callable[[str], float]
) -> dict[str, int]:
    """Return limits of single wasteful clients, if the limit for all stops too little: what they need in a window."""
    missing = TO_STOP * sum(profile.reusable for profile in wasteful)
    left: dict[str, int] = {}  # needless requests that the limit for all would admit
    for profile in wasteful:
        denied = _denied(profile, limit, traffic, kind)
        missing -= denied
        client_id = profile.subject.client_id
        left[client_id] = left.get(client_id, 0) + max(0, profile.reusable - denied)
    own: dict[str, int] = {}
    for client_id, count in sorted(left.items(), key=lambda item: -item[1])[:MAX_OWN]:
        need = _need(kind, lifetime_of(client_id), traffic.window_s)
        if missing > 0 and need < limit:
            own[client_id] = need
            missing -= count
    return own


def _need(kind: LimitKind, lifetime_s: float, window_s: int) -> int:
    """Return the number of tokens that a client or user needs in a window at most."""
    return math.ceil(TOKENS[kind] * max(1.0, window_s / lifetime_s))


def _largest_that_stops(wasteful: list[Profile], traffic: Traffic, kind: LimitKind, *, at_most: int) -> int:
    """Return the largest limit that stops 98 % of the needless requests, found by bisection."""
    target = TO_STOP * sum(profile.reusable for profile in wasteful)

    def stops(limit: int) -> bool:
        return sum(_denied(profile, limit, traffic, kind) for profile in wasteful) >= target

    if stops(at_most):
        return at_most
    lowest, highest = 1, at_most  # the first may not stop enough either; the caller has a floor
    while highest - lowest > max(1, lowest // 50):
        middle = (lowest + highest) // 2
        lowest, highest = (middle, highest) if stops(middle) else (lowest, middle)
    return _rounded_down(lowest)


def _with_evidence(
    kind: LimitKind,
    client_id: str | None,
    limit: int,
    profiles: list[Profile],
    traffic: Traffic,
) -> Suggestion:
    denied = {profile.subject: _denied(profile, limit, traffic, kind) for profile in profiles}
    wasteful = [profile for profile in profiles if profile.is_wasteful]
    calm = [profile for profile in profiles if not profile.is_wasteful]
    safest = max(calm, key=lambda each: each.safe_limit, default=None)
    above = min((each for each in wasteful if each.peak > limit), key=lambda each: each.peak, default=None)
    return Suggestion(
        kind,
        client_id,
        limit,
        traffic.window_s,
        safe_limit=safest.safe_limit if safest else 0,
        safest=safest.subject if safest else None,
        offered=sum(profile.offered for profile in profiles),
        denied=sum(denied.values()),
        denied_count=sum(count > 0 for count in denied.values()),
        well_behaved_denied=sum(denied[profile.subject] for profile in calm),
        needless=sum(profile.reusable for profile in wasteful),
        needless_denied=sum(denied[profile.subject] for profile in wasteful),
        next_above=above.subject if above else None,
        next_peak=above.peak if above else 0,
    )


def _denied(profile: Profile, limit: int, traffic: Traffic, kind: LimitKind) -> int:
    """Return the number of requests that a limit would have denied."""
    if profile.peak <= limit:
        return 0
    load = traffic.loads[kind][profile.subject]
    return effect_of(profile.subject, load, limit=limit, window_minutes=traffic.window_s // MINUTE_S).denied


def _rounded_up(value: float) -> int:
    """Return a number with two digits that people can read, not below the value."""
    unit = _unit(value)
    return math.ceil(value / unit) * unit


def _rounded_down(value: int) -> int:
    unit = _unit(value)
    return value // unit * unit


def _unit(value: float) -> int:
    return int(10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1))
