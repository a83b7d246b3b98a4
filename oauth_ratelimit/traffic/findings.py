"""Faults of each client, from its minutes.

The measure is what a client needs if it keeps its tokens: one token per user in each hour in which the user is active,
more only if a token is valid for less than an hour; for requests without a user, one token per hour and process of the
client. These assumptions are generous, so that only clients that do not keep tokens stand out.
"""

import enum
from collections.abc import Iterable

from oauth_ratelimit.core.hyperloglog import estimate_distinct, merge_into
from oauth_ratelimit.core.statistics import HOUR_S, OTHER_CLIENTS, ClientMinute, ClientSum

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
    REFRESHES_EARLY = "refreshes-early"  # refreshes tokens that are still valid
    LOGS_IN_AGAIN = "logs-in-again"  # requests new tokens for the same users repeatedly
    TOKEN_PER_CALL = "token-per-call"  # requests tokens without a user repeatedly
    BURSTS = "bursts"  # far above its average
    IGNORES_RETRY_AFTER = "ignores-retry-after"
    OVER_LIMIT = "over-limit"


class Verdict(enum.StrEnum):
    FINE = "fine"  # keeps its tokens, or sends too few requests to tell
    WASTEFUL = "wasteful"  # requests more than it needs, within its limits
    OVER_LIMIT = "over its limits"


class _ClientHours:
    """Sums of a client, hour by hour."""

    def __init__(self, client_id: str) -> None:
        self.total = ClientSum(client_id)
        self.hour_count = self.own_hour_count = 0  # hours with requests, and those with requests without a user
        self.user_hours = 0.0  # estimated sum of the users of each hour
        self._hour = -1
        self._has_own = False
        self._users: dict[int, int] = {}  # registers of the present hour

    def add(self, minute: ClientMinute) -> None:
        hour = minute.minute_s // HOUR_S
        if hour != self._hour:
            self.end_hour()
            self._hour = hour
            self.hour_count += 1
        self.total.add(minute)
        merge_into(self._users, minute.registers)
        self._has_own |= minute.tally("client").offered > 0

    def end_hour(self) -> None:
        self.user_hours += estimate_distinct(self._users)
        self._users = {}
        self.own_hour_count += self._has_own
        self._has_own = False


class ClientFinding:
    """Requests of one client for tokens, denied ones included, and its faults."""

    def __init__(self, hours: _ClientHours, token_lifetime_s: float | None, assumed_lifetime_s: float | None) -> None:
        hours.end_hour()
        self.total = total = hours.total
        tally, for_users, own = total.tally(), total.tally("user").offered, total.tally("client").offered
        given_s = token_lifetime_s or assumed_lifetime_s
        # Shortest and longest usual lifetime of its tokens; None if not known
        self.lifetime_s: tuple[float, float] | None = None if token_lifetime_s else total.lifetime_range
        if self.lifetime_s is None and given_s is not None:
            self.lifetime_s = (given_s, given_s)
        renewals_per_hour = max(1.0, HOUR_S / self.lifetime_s[0]) if self.lifetime_s else 1.0
        needed_by_users = hours.user_hours * renewals_per_hour
        needed_own = hours.own_hour_count * PROCESSES * renewals_per_hour

        self.client_id = total.client_id
        self.offered = tally.offered
        # Estimated number of tokens that it needs, at most as many as it requested
        self.needed = min(for_users, needed_by_users) + min(own, needed_own)
        self.tokens_per_user_hour = for_users / hours.user_hours if hours.user_hours else None
        self.tokens_per_hour = own / hours.own_hour_count if own else None  # requests without a user
        refreshes = sum(each.offered for source, each in total.tallies.items() if source == ("user", REFRESH))
        self.refresh_share = refreshes / for_users if for_users else None
        # Share of the denied requests that came before the time in ``Retry-After`` was over
        self.retry_share = tally.retries / tally.denied if tally.denied else None
        self.requests_per_minute = tally.offered / (60 * hours.hour_count)  # average in the hours with requests
        busiest, _ = total.busiest
        wastes_users = for_users >= MIN_REQUESTS and for_users > TOLERANCE * needed_by_users > 0
        is_refreshing = (self.refresh_share or 0.0) >= REFRESH_SHARE
        faults = {
            Fault.REFRESHES_EARLY: wastes_users and is_refreshing,
            Fault.LOGS_IN_AGAIN: wastes_users and not is_refreshing,
            Fault.TOKEN_PER_CALL: own >= MIN_REQUESTS and own > TOLERANCE * needed_own,
            Fault.BURSTS: busiest >= MIN_BURST and busiest >= BURST_RATIO * self.requests_per_minute,
            Fault.IGNORES_RETRY_AFTER: tally.denied >= MIN_DENIED and (self.retry_share or 0.0) >= RETRY_SHARE,
            Fault.OVER_LIMIT: tally.over > 0,
        }
        self.faults = tuple(fault for fault, is_found in faults.items() if is_found)

    @property
    def excess_ratio(self) -> float:
        return self.offered / self.needed if self.needed else 0.0

    @property
    def needless(self) -> int:
        """Estimated number of requests beyond the need, which ranks clients; 0 within the error of the estimate."""
        return self.offered - round(self.needed) if self.excess_ratio >= CERTAIN_RATIO else 0

    @property
    def verdict(self) -> Verdict:
        if Fault.OVER_LIMIT in self.faults:
            return Verdict.OVER_LIMIT
        return Verdict.WASTEFUL if self.faults else Verdict.FINE


def find(
    minutes: Iterable[ClientMinute], *, token_lifetime_s: float | None = None, assumed_lifetime_s: float | None = None
) -> list[ClientFinding]:
    """Return a finding for each client, the one with most needless requests first.

    The minutes come in order of time, with all parts. A token is valid for ``token_lifetime_s``, else as long as those
    that were issued to the client, else ``assumed_lifetime_s``, else an hour.
    """
    clients: dict[str, _ClientHours] = {}
    for minute in minutes:
        if minute.client_id != OTHER_CLIENTS and minute.tally().offered:
            clients.setdefault(minute.client_id, _ClientHours(minute.client_id)).add(minute)
    findings = [ClientFinding(client, token_lifetime_s, assumed_lifetime_s) for client in clients.values()]
    return sorted(findings, key=lambda finding: (-finding.needless, -finding.offered, finding.client_id))
