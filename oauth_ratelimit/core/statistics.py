"""Statistics of a client: minutes, and sums of minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from oauth_ratelimit.core.hyperloglog import Registers, estimate_distinct, merge_into

MINUTE_S = 60

OTHER_CLIENTS = ""
"""Id of all clients together that a process had no room for in a minute. No client has it."""

MIN_LIFETIME_SHARE = 10  # one in ten tokens; rarer lifetimes are exceptions

ENDPOINT = "endpoint:"

Kind = Literal["client", "user"]
"""Kind of limit that a request meets, as in the configuration: ``client`` if it has no user, else ``user``."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of requests by outcome, see ``core.decision.Outcome``.

    Args:
        allowed: Requests within all limits.
        denied: Requests that were over a limit and denied.
        would_deny: Requests that were over a limit in a dry run and admitted.
        trusted: Requests of a trusted client.
        retries: Denied requests that came earlier than an earlier denial had asked for.
    """

    allowed: int = 0
    denied: int = 0
    would_deny: int = 0
    trusted: int = 0
    retries: int = 0

    @property
    def offered(self) -> int:
        """Number of all requests."""
        return self.allowed + self.denied + self.would_deny + self.trusted

    @property
    def issued(self) -> int:
        """Number of requests that were admitted."""
        return self.allowed + self.would_deny + self.trusted

    @property
    def over(self) -> int:
        """Number of requests over a limit, denied or not."""
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
    """Source of requests.

    Attributes:
        kind: ``user`` if they have a user, else ``client``.
        grant: Grant type. ``other`` if the server has no such grant, ``none`` if it is not known. For another endpoint,
            ``endpoint:`` and its name.
    """

    kind: Kind
    grant: str

    @property
    def is_token(self) -> bool:
        """True for the token endpoint."""
        return not self.grant.startswith(ENDPOINT)


class Peak(NamedTuple):
    """Highest use of a limit. For a limit per user, the highest of any user.

    Attributes:
        share: Share of the limit. Peaks are compared by it, also if the limit has changed.
        used: Estimated hits in the window.
        limit: Hits per window.
        window_s: Length of the window in seconds.
    """

    share: float
    used: float
    limit: int
    window_s: int


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Requests of one user, without those on instances where it was not among the heaviest users.

    Args:
        username: Pseudonym of the user.
        offered: Number of all requests.
        denied: Number of denied requests.
        would_deny: Number of requests that would have been denied under enforce.
    """

    username: str
    offered: int
    denied: int = 0
    would_deny: int = 0

    def plus(self, other: "UserLoad") -> "UserLoad":
        """Return the sum of both, under this user's name."""
        return UserLoad(
            self.username,
            self.offered + other.offered,
            self.denied + other.denied,
            self.would_deny + other.would_deny,
        )


class Load:
    """Requests of a client over some time, by source."""

    __slots__ = ()

    tallies: Mapping[Source, Tally]
    registers: Registers

    def tally(self, kind: Kind | None = None) -> Tally:
        """Return the requests at the token endpoint, all or of one kind."""
        total = NO_REQUESTS
        for source, tally in self.tallies.items():
            if source.is_token and kind in (None, source.kind):
                total += tally
        return total

    @property
    def user_count(self) -> float:
        """Estimated number of users."""
        return estimate_distinct(self.registers)


@dataclass(frozen=True, slots=True)
class ClientMinute(Load):
    """One client in one minute, over all instances.

    Args:
        client_id: The client, or ``OTHER_CLIENTS``.
        minute_s: Start of the minute, seconds since the epoch.
        tallies: Requests by source.
        peaks: Highest use of each policy, by name.
        users: Users with most requests at the token endpoint, the heaviest first. Empty until the minute is over.
        registers: HyperLogLog registers of the users. Empty until the minute is over.
        burst: Most token requests within a second in one process.
        lifetimes: Number of issued tokens by their lifetime in seconds, ``expires_in``; not all if there are many.
    """

    client_id: str
    minute_s: int
    tallies: Mapping[Source, Tally] = field(default_factory=dict)
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    users: tuple[UserLoad, ...] = ()
    registers: Registers = field(default_factory=dict)
    burst: int = 0
    lifetimes: Mapping[int, int] = field(default_factory=dict)


class StepSums(NamedTuple):
    """Token requests of many clients in one step of time, as columns of equal length.

    Attributes:
        start_s: Start of the step, seconds since the epoch.
        client_ids: The clients. One may occur several times.
        counts: For each name of ``COUNTS`` the numbers of the clients.
        peaks: Highest use of a limit: its share and the policy's name; None if none is recorded.
    """

    start_s: int
    client_ids: list[str]
    counts: list[list[int]]
    peaks: list[tuple[float, str] | None]


@dataclass(frozen=True, slots=True)
class Share:
    """Counts of one process for a client's minute.

    Args:
        minute: The counts. They only grow from one write to the next.
        is_complete: True if the minute is over. Only then users are written, so that users who were among the heaviest
            only briefly are not stored.
    """

    minute: ClientMinute
    is_complete: bool


@dataclass(slots=True)
class ClientSum(Load):
    """One client over some time: a sum to which minutes are added.

    Args:
        client_id: The client, or ``OTHER_CLIENTS``.

    Attributes:
        minute_count: Number of minutes with requests at any endpoint.
        tallies: Requests by source.
        peaks: Highest use of each policy, by name.
        users: Users that were among the heaviest in any minute, by name, with the requests of those minutes only.
        registers: HyperLogLog registers of the users.
        burst: Most token requests within a second in one process.
        busiest: Token requests in the busiest minute, and the start of that minute.
        lifetimes: Number of issued tokens by their lifetime in seconds.
    """

    client_id: str
    minute_count: int = 0
    tallies: dict[Source, Tally] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    users: dict[str, UserLoad] = field(default_factory=dict)
    registers: dict[int, int] = field(default_factory=dict)
    burst: int = 0
    busiest: tuple[int, int] = (0, 0)
    lifetimes: dict[int, int] = field(default_factory=dict)

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
        for lifetime_s, count in minute.lifetimes.items():
            self.lifetimes[lifetime_s] = self.lifetimes.get(lifetime_s, 0) + count
        self.burst = max(self.burst, minute.burst)
        self.busiest = max(self.busiest, (minute.tally().offered, minute.minute_s))

    @property
    def lifetime_range(self) -> tuple[int, int] | None:
        """Shortest and longest lifetime that at least a tenth of the tokens have, in seconds; None if not recorded."""
        total = sum(self.lifetimes.values())
        usual = [seconds for seconds, count in self.lifetimes.items() if count * MIN_LIFETIME_SHARE >= total]
        usual = usual or list(self.lifetimes)
        return (min(usual), max(usual)) if usual else None

    def heaviest(self, count: int) -> list[UserLoad]:
        """Return the users with most requests, the heaviest first."""
        return sorted(self.users.values(), key=lambda user: -user.offered)[:count]
