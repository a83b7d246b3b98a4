"""Limits proposed from recorded traffic, as docs/statistics.md describes in five steps."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean, pvariance
from typing import Any, NamedTuple

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, MINUTE_S, OTHER_CLIENTS, ClientMinute
from oauth_ratelimit.operations.format import counted, duration, rounded_down, rounded_up
from oauth_ratelimit.traffic.minutes import OF_USERS, ReuseShares, Subject, requests_of, rolling_sums
from oauth_ratelimit.traffic.need import ClientNeed, Need, NeedCounter

BINS_PER_WINDOW = 12
MAX_SUBJECTS = 200_000  # of each kind, some 100 MB
DEVIATIONS = 3.0  # standard deviations of a day's peak above the mean
MAX_OWN = 10  # clients with a limit of their own; more are no configuration that anybody reads
GOOD_DEAL = 2.0  # times the safe limit that costs nothing while wasteful clients are far above
TO_STOP = 0.98  # of the needless requests, so that 95 % are stopped in a week that differs a little
ENOUGH_REQUESTS = 1000
ENOUGH_S = 20 * HOUR_S


class Traffic:
    """Requests of clients and users in bins of a twelfth of the window of the limits to propose, whole minutes.

    A token is valid for ``token_lifetime_s``, else as long as those of its client, else ``assumed_lifetime_s``.
    """

    def __init__(
        self,
        window_s: int = HOUR_S,
        *,
        is_trusted: Callable[[str], bool] = lambda _: False,
        token_lifetime_s: float | None = None,
        assumed_lifetime_s: float | None = None,
    ) -> None:
        self.window_s = window_s
        self.bin_s = max(1, window_s // BINS_PER_WINDOW // MINUTE_S) * MINUTE_S
        self.request_count = 0
        self.minutes: set[int] = set()  # with requests: their starts, seconds since the epoch
        self.trusted_count = 0  # requests of trusted clients, which are left out
        self.left_out_count = 0  # requests of subjects for which there was no room
        self.reuse = ReuseShares(LimitKind.CLIENT)
        # Requests by the start of the bin, seconds since the epoch
        self._loads: dict[LimitKind, dict[Subject, Counter[int]]] = {kind: {} for kind in LimitKind}
        new = partial(ClientNeed, token_lifetime_s, assumed_lifetime_s)
        self._clients: defaultdict[str, ClientNeed] = defaultdict(new)
        self._users: dict[Subject, NeedCounter] = {}
        self._is_trusted = is_trusted

    def add_minute(self, minute: ClientMinute) -> None:
        """Add a recorded minute with its tallies, users, registers and lifetimes. They come in the order of time."""
        total, name, is_full = minute.tally(), minute.client_id, len(self._clients) >= MAX_SUBJECTS
        if name == OTHER_CLIENTS or (is_full and name not in self._clients):
            self.left_out_count += total.offered - total.trusted
        elif total.is_mostly_trusted or self._is_trusted(name):
            self.trusted_count += total.offered
        elif total.offered:
            self.request_count += total.offered - total.trusted
            self.minutes.add(minute.minute_s)
            self._clients[name].add(minute)
            self.reuse.add(minute)
            for kind in LimitKind:
                for subject, count in requests_of(minute, kind):
                    self._add(kind, subject, minute, count)

    def _add(self, kind: LimitKind, subject: Subject, minute: ClientMinute, count: int) -> None:
        loads = self._loads[kind]
        if subject not in loads and len(loads) >= MAX_SUBJECTS:
            self.left_out_count += count if kind is LimitKind.USER else 0  # not again for the user through all clients
            return
        loads.setdefault(subject, Counter())[minute.minute_s // self.bin_s * self.bin_s] += count
        if kind in OF_USERS:
            counter = self._users.setdefault(subject, NeedCounter(LimitKind.USER))
            counter.add(minute.minute_s, count, self._clients[minute.client_id].period_s)

    def profiles(self, kind: LimitKind) -> list["Profile"]:
        found = []
        for subject, load in self._loads[kind].items():
            user, client = self._users.get(subject), self._clients.get(subject.client_id)  # none of all clients
            needs = [*([user.result()] if user else []), *([client.of(kind)] if client else [])]
            needed = client.most_in(self.window_s, kind) if client else 0
            found.append(Profile(subject, load, needs, traffic=self, needed_in_window=needed))
        return found

    @property
    def day_count(self) -> int:
        return len({minute_s // DAY_S for minute_s in self.minutes})

    @property
    def span_s(self) -> int:
        """Time from the first minute with requests to the end of the last one; 0 without requests."""
        return max(self.minutes) + MINUTE_S - min(self.minutes) if self.minutes else 0


class Profile:
    """One client or user: its peaks by day, and the requests that it did not need."""

    def __init__(
        self, subject: Subject, load: Mapping[int, int], needs: list[Need], *, traffic: Traffic, needed_in_window: int
    ) -> None:
        self.subject = subject
        self.is_wasteful = any(need.is_wasteful for need in needs)  # or its client is
        self.needed_in_window = needed_in_window  # tokens, at most
        self.offered = sum(load.values())
        # Requests that came while an earlier token of the same client or user was valid
        self.needless = round(self.offered - needs[0].least)
        self._load, self._window_s = load, traffic.window_s
        peaks: dict[int, int] = {}  # most requests in a window by the day of its end
        # A window that begins within a bin holds all of it.
        for start_s, inside in rolling_sums(load, traffic.window_s + traffic.bin_s):
            peaks[start_s // DAY_S] = max(inside, peaks.get(start_s // DAY_S, 0))
        mean = fmean(peaks.values())
        # Few days say little about their variance, but that of independent requests is known: the mean.
        deviation = math.sqrt(max(mean, pvariance(peaks.values(), mean)))
        self.peak = max(peaks.values())
        # The limit that it stays below on other days, too.
        self.safe_limit = max(self.peak, math.ceil(mean + DEVIATIONS * deviation))

    def denied(self, limit: int) -> int:
        """Return how many requests a limit would deny. A window holds half of the bin that it begins in."""
        if self.peak <= limit:
            return 0
        denied = full = 0.0  # full: admitted in the bins that lie wholly in the window
        admitted: deque[tuple[int, float]] = deque()
        for start_s in sorted(self._load):
            oldest = 0.0  # admitted in the bin that the window begins in
            while admitted and admitted[0][0] <= start_s - self._window_s:
                past_s, count = admitted.popleft()
                full -= count
                oldest = count if past_s == start_s - self._window_s else 0.0
            count = min(float(self._load[start_s]), max(0.0, limit - full - oldest / 2))
            denied += self._load[start_s] - count
            admitted.append((start_s, count))
            full += count
        return round(denied)


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
        needless = sum(profile.needless for profile in wasteful)
        stopped = sum(denied[profile.subject] for profile in wasteful)
        # Share of the needless requests that are denied; None without any
        self.stopped_ratio = min(1.0, stopped / needless) if needless else None


class Proposal(NamedTuple):
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


def suggest(traffic: Traffic) -> Proposal:
    """Propose limits from recorded requests, of a week or more if possible."""
    of_clients, of_users, totals, of_all_clients = (traffic.profiles(kind) for kind in LimitKind)
    wasteful_clients = {each.subject.client_id for each in (*of_clients, *of_users) if each.is_wasteful}
    calm_names = {each.subject.username for each in of_users if not each.is_wasteful}
    has_several = len(of_users) > len({each.subject.username for each in of_users})  # some users have several clients
    calm_users = [each for each in of_all_clients if each.subject.username in calm_names and not each.is_wasteful]
    suggestions = [*_limits(LimitKind.CLIENT, of_clients, traffic), *_limits(LimitKind.USER, of_users, traffic)]
    for kind, profiles, calm in (
        (LimitKind.CLIENT_TOTAL, totals, [each for each in totals if each.subject.client_id not in wasteful_clients]),
        (LimitKind.USER_TOTAL, of_all_clients, calm_users if has_several else []),
    ):
        if calm:
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
    missing = TO_STOP * sum(profile.needless for profile in wasteful)
    needs = {profile.subject.client_id: profile.needed_in_window for profile in wasteful}
    left = Counter[str]()  # needless requests that the limit for all would admit
    for profile in wasteful:
        denied = profile.denied(limit)
        missing -= denied
        left[profile.subject.client_id] += max(0, profile.needless - denied)
    own: dict[str, int] = {}
    for client_id, count in left.most_common(MAX_OWN):
        if missing > 0 and needs[client_id] < limit:
            own[client_id] = needs[client_id]
            missing -= count
    return own


def _largest_that_stops(wasteful: list[Profile], *, at_most: int) -> int:
    """Return the largest limit that stops 98 % of the needless requests, found by bisection."""
    target = TO_STOP * sum(profile.needless for profile in wasteful)

    def stops(limit: int) -> bool:
        return sum(profile.denied(limit) for profile in wasteful) >= target

    if stops(at_most):
        return at_most
    lowest, highest = 1, at_most  # the first may not stop enough either; the caller has a floor
    while highest - lowest > max(1, lowest // 50):
        middle = (lowest + highest) // 2
        lowest, highest = (middle, highest) if stops(middle) else (lowest, middle)
    return rounded_down(lowest)
