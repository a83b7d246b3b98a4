"""What each client does wrong, worked out from its minutes.

The measure is what a client would need if it kept its tokens: for each user one token in each hour in which the user
is active, more only if a token does not last an hour; for grants without a user one per hour and process of the client.
All of it is generous, so that only those stand out that do not keep tokens.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from oauth_ratelimit.core.hyperloglog import estimate_distinct, merge_into
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, ClientSum

HOUR_S = 3600
REFRESH = "refresh_token"

PROCESSES = 10  # that a client may run, each with a token of its own
ALLOWANCE = 3.0  # times the need before it is called a fault: several devices, hours that begin in the middle
CERTAIN_RATIO = 1.25  # numbers of users are right to some 6 %
ENOUGH = 20  # requests to say anything
BURST_RATIO = 10.0  # the busiest minute against the average of its hours
BURST_COUNT = 60  # requests in it
RETRIES = 10  # denied requests before retries are looked at
RETRY_SHARE = 0.25  # of the denied requests that came too early
REFRESH_SHARE = 0.5


class Fault(enum.StrEnum):
    """What a client may do wrong."""

    REFRESHES_EARLY = "refreshes-early"
    """Refreshes tokens that would still be good."""

    LOGS_IN_AGAIN = "logs-in-again"
    """Gets new tokens for the same users again and again."""

    TOKEN_PER_CALL = "token-per-call"
    """Gets tokens of its own, without a user, again and again."""

    BURSTS = "bursts"
    """Asks in bursts, far above its average."""

    IGNORES_RETRY_AFTER = "ignores-retry-after"
    """Comes again before the time that it was told to wait."""

    OVER_LIMIT = "over-limit"
    """Is over its limits."""


class Verdict(enum.StrEnum):
    """What to make of a client."""

    FINE = "fine"
    """Keeps its tokens, or asks too little to tell."""

    WASTEFUL = "wasteful"
    """Asks for more than it needs, within its limits."""

    OVER_LIMIT = "over its limits"
    """Asks for more than it may."""


@dataclass(frozen=True, slots=True)
class ClientFinding:
    """One client over some time. Requests are those at the token endpoint, denied ones included.

    Args:
        total: The sum of its minutes.
        hour_count: Hours with requests.
        own_hour_count: Hours with requests without a user.
        user_hours: Users with requests, about, added up hour by hour.
        needed: Tokens that it needs, about.
        faults: What it does wrong.
    """

    total: ClientSum
    hour_count: int
    own_hour_count: int
    user_hours: float
    needed: float
    faults: tuple[Fault, ...]

    @property
    def client_id(self) -> str:
        """The client."""
        return self.total.client_id

    @property
    def offered(self) -> int:
        """All requests."""
        return self.total.tally().offered

    @property
    def needless(self) -> int:
        """Requests beyond what it needs, about; 0 if that may be due to the estimate. The rank goes by it."""
        return self.offered - round(self.needed) if self.excess_ratio >= CERTAIN_RATIO else 0

    @property
    def excess_ratio(self) -> float:
        """Requests against what it needs."""
        return self.offered / self.needed if self.needed else 0.0

    @property
    def tokens_per_user_hour(self) -> float | None:
        """Tokens asked for per user and hour, None without users."""
        return self.total.tally("user").offered / self.user_hours if self.user_hours else None

    @property
    def tokens_per_hour(self) -> float | None:
        """Tokens without a user asked for per hour, None if there are none."""
        offered = self.total.tally("client").offered
        return offered / self.own_hour_count if offered else None

    @property
    def refresh_share(self) -> float | None:
        """Which share of the requests for users are refreshes, None without such requests."""
        offered = self.total.tally("user").offered
        refreshes = sum(tally.offered for source, tally in self.total.tallies.items() if source == ("user", REFRESH))
        return refreshes / offered if offered else None

    @property
    def retry_share(self) -> float | None:
        """
        Which share of the denied requests came earlier than an answer before them had asked for, None without any.
        """
        tally = self.total.tally()
        return tally.retries / tally.denied if tally.denied else None

    @property
    def requests_per_minute(self) -> float:
        """The average in the hours with requests."""
        return self.offered / (60 * self.hour_count) if self.hour_count else 0.0

    @property
    def is_trusted(self) -> bool:
        """Whether it was a trusted client most of the time."""
        tally = self.total.tally()
        return tally.trusted * 2 > tally.offered

    @property
    def verdict(self) -> Verdict:
        """What to make of it."""
        if Fault.OVER_LIMIT in self.faults:
            return Verdict.OVER_LIMIT
        return Verdict.WASTEFUL if self.faults else Verdict.FINE


def find(minutes: Iterable[ClientMinute], *, token_lifetime_s: float = HOUR_S) -> list[ClientFinding]:
    """Return what each client does, the one with most needless requests first.

    Args:
        minutes: Its minutes, in order of time, with all parts.
        token_lifetime_s: How long a token can be used.
    """
    tracks: dict[str, _Track] = {}
    for minute in minutes:
        if minute.client_id != OTHER_CLIENTS and minute.tally().offered:
            tracks.setdefault(minute.client_id, _Track(minute.client_id)).add(minute)
    found = [track.finding(token_lifetime_s) for track in tracks.values()]
    return sorted(found, key=lambda finding: (-finding.needless, -finding.offered, finding.client_id))


class _Track:
    """A client's way through the hours."""

    def __init__(self, client_id: str) -> None:
        self._total = ClientSum(client_id)
        self._hour = -1
        self._hour_count = self._own_hour_count = 0
        self._has_own = False
        self._users: dict[int, int] = {}  # registers of this hour
        self._user_hours = 0.0

    def add(self, minute: ClientMinute) -> None:
        hour = minute.minute_s // HOUR_S
        if hour != self._hour:
            self._end_hour()
            self._hour = hour
            self._hour_count += 1
        self._total.add(minute)
        merge_into(self._users, minute.registers)
        self._has_own |= minute.tally("client").offered > 0

    def _end_hour(self) -> None:
        self._user_hours += estimate_distinct(self._users)
        self._users = {}
        self._own_hour_count += self._has_own
        self._has_own = False

    def finding(self, token_lifetime_s: float) -> ClientFinding:
        self._end_hour()
        total = self._total
        per_hour = max(1.0, HOUR_S / token_lifetime_s)
        of_users, own = total.tally("user").offered, total.tally("client").offered
        needed_for_users = min(of_users, self._user_hours * per_hour)
        needed_own = min(own, self._own_hour_count * per_hour * PROCESSES)
        finding = ClientFinding(
            total,
            hour_count=self._hour_count,
            own_hour_count=self._own_hour_count,
            user_hours=self._user_hours,
            needed=needed_for_users + needed_own,
            faults=(),
        )
        faults = []
        if of_users >= ENOUGH and self._user_hours and of_users > ALLOWANCE * self._user_hours * per_hour:
            is_refreshing = (finding.refresh_share or 0.0) >= REFRESH_SHARE
            faults.append(Fault.REFRESHES_EARLY if is_refreshing else Fault.LOGS_IN_AGAIN)
        if own >= ENOUGH and own > ALLOWANCE * self._own_hour_count * per_hour * PROCESSES:
            faults.append(Fault.TOKEN_PER_CALL)
        faults += _manners(finding)
        return replace(finding, faults=tuple(faults))


def _manners(finding: ClientFinding) -> list[Fault]:
    """Return the faults that have nothing to do with what a client needs."""
    faults = []
    tally = finding.total.tally()
    busiest = finding.total.busiest[0]
    if busiest >= BURST_COUNT and busiest >= BURST_RATIO * finding.requests_per_minute:
        faults.append(Fault.BURSTS)
    if tally.denied >= RETRIES and tally.retries >= RETRY_SHARE * tally.denied:
        faults.append(Fault.IGNORES_RETRY_AFTER)
    if tally.over:
        faults.append(Fault.OVER_LIMIT)
    return faults
