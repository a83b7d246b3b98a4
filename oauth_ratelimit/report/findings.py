"""Faults of each client, from its minutes.

The measure is what a client needs if it keeps its tokens: one token per user in each hour in which the user is active,
more only if a token is valid for less than an hour; for requests without a user, one token per hour and process of the
client. These assumptions are generous, so that only clients that do not keep tokens stand out.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from oauth_ratelimit.core.hyperloglog import estimate_distinct, merge_into
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, ClientSum

HOUR_S = 3600
REFRESH = "refresh_token"

PROCESSES = 10  # assumed number of processes of a client, each with a token of its own
TOLERANCE = 3.0  # times the need before it is a fault: users have several devices, and hours begin in the middle
CERTAIN_RATIO = 1.25  # estimated numbers of users are off by some 6 %
MIN_REQUESTS = 20  # below it nothing is said about what a client needs
BURST_RATIO = 10.0  # of the busiest minute to the average of the hours with requests
MIN_BURST = 60  # requests in the busiest minute
MIN_DENIED = 10  # denied requests before retries count as a fault
RETRY_SHARE = 0.25  # of the denied requests
REFRESH_SHARE = 0.5  # of the requests for users


class Fault(enum.StrEnum):
    """Kinds of faults."""

    REFRESHES_EARLY = "refreshes-early"
    """Refreshes tokens that are still valid."""

    LOGS_IN_AGAIN = "logs-in-again"
    """Requests new tokens for the same users repeatedly."""

    TOKEN_PER_CALL = "token-per-call"
    """Requests tokens without a user repeatedly."""

    BURSTS = "bursts"
    """Sends requests in bursts, far above its average."""

    IGNORES_RETRY_AFTER = "ignores-retry-after"
    """Retries before the time in ``Retry-After`` is over."""

    OVER_LIMIT = "over-limit"
    """Exceeds its limits."""


class Verdict(enum.StrEnum):
    """Summary of a client's faults."""

    FINE = "fine"
    """Keeps its tokens, or sends too few requests to tell."""

    WASTEFUL = "wasteful"
    """Requests more than it needs, within its limits."""

    OVER_LIMIT = "over its limits"
    """Requests more than its limits allow."""


@dataclass(frozen=True, slots=True)
class ClientFinding:
    """Requests of one client for tokens, denied ones included, and its faults.

    Args:
        total: Sum of its minutes.
        hour_count: Number of hours with requests.
        own_hour_count: Number of hours with requests without a user.
        user_hours: Estimated number of users with requests, summed over the hours.
        needed: Estimated number of tokens that it needs.
        faults: Its faults.
        lifetime_s: Shortest and longest usual lifetime of its tokens in seconds; None if nothing is known about it.
    """

    total: ClientSum
    hour_count: int
    own_hour_count: int
    user_hours: float
    needed: float
    faults: tuple[Fault, ...]
    lifetime_s: tuple[float, float] | None = None

    @property
    def client_id(self) -> str:
        """Id of the client."""
        return self.total.client_id

    @property
    def offered(self) -> int:
        """Number of requests."""
        return self.total.tally().offered

    @property
    def needless(self) -> int:
        """Estimated number of requests beyond the need, which ranks clients; 0 within the error of the estimate."""
        return self.offered - round(self.needed) if self.excess_ratio >= CERTAIN_RATIO else 0

    @property
    def excess_ratio(self) -> float:
        """Ratio of requests to needed tokens."""
        return self.offered / self.needed if self.needed else 0.0

    @property
    def tokens_per_user_hour(self) -> float | None:
        """Requests per user and hour; None without users."""
        return self.total.tally("user").offered / self.user_hours if self.user_hours else None

    @property
    def tokens_per_hour(self) -> float | None:
        """Requests without a user per hour; None if there are none."""
        offered = self.total.tally("client").offered
        return offered / self.own_hour_count if offered else None

    @property
    def refresh_share(self) -> float | None:
        """Share of refreshes in the requests for users; None without such requests."""
        offered = self.total.tally("user").offered
        refreshes = sum(tally.offered for source, tally in self.total.tallies.items() if source == ("user", REFRESH))
        return refreshes / offered if offered else None

    @property
    def retry_share(self) -> float | None:
        """Share of denied requests that came before the time in ``Retry-After`` was over; None without any."""
        tally = self.total.tally()
        return tally.retries / tally.denied if tally.denied else None

    @property
    def requests_per_minute(self) -> float:
        """Average in the hours with requests."""
        return self.offered / (60 * self.hour_count) if self.hour_count else 0.0

    @property
    def is_trusted(self) -> bool:
        """True if the client was trusted in most of its requests."""
        tally = self.total.tally()
        return tally.trusted * 2 > tally.offered

    @property
    def verdict(self) -> Verdict:
        """Summary of the faults."""
        if Fault.OVER_LIMIT in self.faults:
            return Verdict.OVER_LIMIT
        return Verdict.WASTEFUL if self.faults else Verdict.FINE


def find(
    minutes: Iterable[ClientMinute], *, token_lifetime_s: float | None = None, assumed_lifetime_s: float | None = None
) -> list[ClientFinding]:
    """Return a finding for each client, the one with most needless requests first.

    Args:
        minutes: Minutes of the clients, in order of time, with all parts.
        token_lifetime_s: Seconds for which a token is valid; None takes the lifetimes of the tokens issued.
        assumed_lifetime_s: The same for clients of which no lifetime is recorded; None assumes an hour.
    """
    clients: dict[str, _ClientHours] = {}
    for minute in minutes:
        if minute.client_id != OTHER_CLIENTS and minute.tally().offered:
            clients.setdefault(minute.client_id, _ClientHours(minute.client_id)).add(minute)
    findings = [client.finding(token_lifetime_s, assumed_lifetime_s) for client in clients.values()]
    return sorted(findings, key=lambda finding: (-finding.needless, -finding.offered, finding.client_id))


class _ClientHours:
    """Sums of a client, hour by hour."""

    def __init__(self, client_id: str) -> None:
        self._total = ClientSum(client_id)
        self._hour = -1
        self._hour_count = self._own_hour_count = 0
        self._has_own = False
        self._users: dict[int, int] = {}  # registers of the present hour
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

    def finding(self, token_lifetime_s: float | None, assumed_lifetime_s: float | None) -> ClientFinding:
        self._end_hour()
        total = self._total
        lifetime_s: tuple[float, float] | None = None if token_lifetime_s else total.lifetime_range
        given_s = token_lifetime_s or assumed_lifetime_s
        if lifetime_s is None and given_s is not None:
            lifetime_s = (given_s, given_s)
        per_hour = max(1.0, HOUR_S / (lifetime_s[0] if lifetime_s else HOUR_S))
        for_users, own = total.tally("user").offered, total.tally("client").offered
        needed_by_users = min(for_users, self._user_hours * per_hour)
        needed_own = min(own, self._own_hour_count * per_hour * PROCESSES)
        finding = ClientFinding(
            total,
            hour_count=self._hour_count,
            own_hour_count=self._own_hour_count,
            user_hours=self._user_hours,
            needed=needed_by_users + needed_own,
            faults=(),
            lifetime_s=lifetime_s,
        )
        faults = []
        if for_users >= MIN_REQUESTS and self._user_hours and for_users > TOLERANCE * self._user_hours * per_hour:
            is_refreshing = (finding.refresh_share or 0.0) >= REFRESH_SHARE
            faults.append(Fault.REFRESHES_EARLY if is_refreshing else Fault.LOGS_IN_AGAIN)
        if own >= MIN_REQUESTS and own > TOLERANCE * self._own_hour_count * per_hour * PROCESSES:
            faults.append(Fault.TOKEN_PER_CALL)
        faults += _other_faults(finding)
        return replace(finding, faults=tuple(faults))


def _other_faults(finding: ClientFinding) -> list[Fault]:
    """Return the faults that do not depend on what a client needs."""
    faults = []
    tally = finding.total.tally()
    busiest = finding.total.busiest[0]
    if busiest >= MIN_BURST and busiest >= BURST_RATIO * finding.requests_per_minute:
        faults.append(Fault.BURSTS)
    if tally.denied >= MIN_DENIED and tally.retries >= RETRY_SHARE * tally.denied:
        faults.append(Fault.IGNORES_RETRY_AFTER)
    if tally.over:
        faults.append(Fault.OVER_LIMIT)
    return faults
