"""What happened in a minute, client by client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from oauth_ratelimit.core.hyperloglog import Registers, estimate_distinct, merge_into

MINUTE_S = 60

OTHER_CLIENTS = ""
"""Stands for the clients that a process had no room for in a minute. No client has this id."""

ENDPOINT = "endpoint:"

Kind = Literal["client", "user"]
"""What a request counts for, in the words of the configuration: without a user for the client, else for the user."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests by outcome: see ``core.decision.Outcome``.

    Args:
        allowed: Admitted within all limits.
        denied: Over a limit, and told so.
        would_deny: Over a limit in a dry run: admitted.
        trusted: Of a trusted client: admitted without looking.
        retries: Those of the denied that came earlier than an answer before them had asked for.
    """

    allowed: int = 0
    denied: int = 0
    would_deny: int = 0
    trusted: int = 0
    retries: int = 0

    @property
    def offered(self) -> int:
        """All requests."""
        return self.allowed + self.denied + self.would_deny + self.trusted

    @property
    def issued(self) -> int:
        """Those that were admitted."""
        return self.allowed + self.would_deny + self.trusted

    @property
    def over(self) -> int:
        """Those over a limit, denied or not."""
        return self.denied + self.would_deny

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.allowed + other.allowed,
            self.denied + other.denied,
            self.would_deny + other.would_deny,
            self.trusted + other.trusted,
            self.retries + other.retries,
        )


COUNTS = tuple(count.name for count in fields(Tally))
NO_REQUESTS = Tally()


class Source(NamedTuple):
    """Where requests come from.

    Attributes:
        kind: Whether they are for a user.
        grant: The grant type; ``other`` if it is none of the server's, ``none`` if it is not known. Of another endpoint
            ``endpoint:`` and its name.
    """

    kind: Kind
    grant: str

    @property
    def is_token(self) -> bool:
        """Whether it is the token endpoint."""
        return not self.grant.startswith(ENDPOINT)


class Peak(NamedTuple):
    """The most that was used of a limit; of one per user, by any of them.

    Attributes:
        share: Of the limit. Peaks compare by it, so that the fullest wins where a limit has changed.
        used: Hits in the window, by the estimate that decides.
        limit: Hits per window.
        window_s: The window.
    """

    share: float
    used: float
    limit: int
    window_s: int


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Requests for one user, those of instances that did not count it among the heaviest left out.

    Args:
        username: The user's pseudonym.
        offered: All requests.
        denied: Those that were denied.
        would_deny: Those that would have been under enforce.
    """

    username: str
    offered: int
    denied: int = 0
    would_deny: int = 0

    def plus(self, other: "UserLoad") -> "UserLoad":
        """Return both together, under this one's name."""
        return UserLoad(
            self.username,
            self.offered + other.offered,
            self.denied + other.denied,
            self.would_deny + other.would_deny,
        )


class Load:
    """Requests of a client over some time: sums over where they come from."""

    __slots__ = ()

    tallies: Mapping[Source, Tally]
    registers: Registers

    def tally(self, kind: Kind | None = None) -> Tally:
        """Return all requests at the token endpoint, or those of one kind."""
        total = NO_REQUESTS
        for source, tally in self.tallies.items():
            if source.is_token and kind in (None, source.kind):
                total += tally
        return total

    @property
    def user_count(self) -> float:
        """How many users there were, about."""
        return estimate_distinct(self.registers)


@dataclass(frozen=True, slots=True)
class ClientMinute(Load):
    """One client in one minute, over all instances.

    Args:
        client_id: The client, or ``OTHER_CLIENTS``.
        minute_s: When the minute begins, seconds since the epoch.
        tallies: Requests by where they come from.
        peaks: By name of the policy, the most that was used of it.
        users: The heaviest users at the token endpoint, the heaviest first. Known once the minute is over, as is the
            next.
        registers: Who the users were, for a count of them.
        burst: The most requests for tokens that one process has seen within a second.
    """

    client_id: str
    minute_s: int
    tallies: Mapping[Source, Tally] = field(default_factory=dict)
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    users: tuple[UserLoad, ...] = ()
    registers: Registers = field(default_factory=dict)
    burst: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has counted of a client's minute.

    Args:
        minute: Its numbers. They only ever grow from one write to the next.
        is_complete: Whether the minute is over. Users are written then, so that those that led for a moment leave
            nothing behind.
    """

    minute: ClientMinute
    is_complete: bool


@dataclass(slots=True)
class ClientSum(Load):
    """One client over some time. Grows minute by minute.

    Args:
        client_id: The client, or ``OTHER_CLIENTS``.

    Attributes:
        minute_count: Minutes with requests, at whatever endpoint.
        tallies: Requests by where they come from.
        peaks: By name of the policy, the most that was used of it.
        users: By name, those that were among the heaviest in any minute; what they did in other minutes is not in it.
        registers: Who the users were, for a count of them.
        burst: The most requests for tokens that one process has seen within a second.
        busiest: Requests for tokens in the busiest minute, and when that began.
    """

    client_id: str
    minute_count: int = 0
    tallies: dict[Source, Tally] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    users: dict[str, UserLoad] = field(default_factory=dict)
    registers: dict[int, int] = field(default_factory=dict)
    burst: int = 0
    busiest: tuple[int, int] = (0, 0)

    def add(self, minute: ClientMinute) -> None:
        """Add a minute."""
        self.minute_count += 1
        for source, tally in minute.tallies.items():
            self.tallies[source] = self.tallies.get(source, NO_REQUESTS) + tally
        for policy, peak in minute.peaks.items():
            self.peaks[policy] = max(peak, self.peaks.get(policy, peak))
        for user in minute.users:
            known = self.users.get(user.username)
            self.users[user.username] = known.plus(user) if known else user
        merge_into(self.registers, minute.registers)
        self.burst = max(self.burst, minute.burst)
        self.busiest = max(self.busiest, (minute.tally().offered, minute.minute_s))

    def heaviest(self, count: int) -> list[UserLoad]:
        """Return the users with most requests, the heaviest first."""
        return sorted(self.users.values(), key=lambda user: -user.offered)[:count]
