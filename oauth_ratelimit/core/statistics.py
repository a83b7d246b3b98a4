"""Statistics of a client: minutes, and sums of minutes.

Distinct users are estimated by HyperLogLog in 256 small registers. Those of two processes or minutes are merged by
taking the larger value of each, so nobody is counted twice, and order, repetition and delay of writes do not matter.
The standard error is 6.5 %, and less below about 100 users. Source: Flajolet, Fusy, Gandouet, Meunier (2007).
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from typing import Literal, NamedTuple

REGISTER_COUNT = 256
MAX_RANK = 57  # 56 bits remain beside the 8 of the register

_BIAS = 0.7213 / (1 + 1.079 / REGISTER_COUNT)
_INVERSE = tuple(2.0**-rank for rank in range(MAX_RANK + 1))

Registers = Mapping[int, int]
"""Highest rank, 1 to 57, by register, 0 to 255. A missing register is empty."""


def register_of(name: str) -> tuple[int, int]:
    """Return the register of a name and its rank there. They are the same in every process."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return digest[0], MAX_RANK - int.from_bytes(digest[1:], "big").bit_length()


def merge_into(union: dict[int, int], registers: Registers) -> None:
    """Add registers to others in place."""
    for register, rank in registers.items():
        if rank > union.get(register, 0):
            union[register] = rank


def estimate_distinct(registers: Registers) -> int:
    empty_count = REGISTER_COUNT - len(registers)
    inverse = empty_count + sum(_INVERSE[rank] for rank in registers.values())
    estimate = _BIAS * REGISTER_COUNT**2 / inverse
    if estimate <= 2.5 * REGISTER_COUNT and empty_count:
        return round(REGISTER_COUNT * math.log(REGISTER_COUNT / empty_count))
    return round(estimate)


MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400

WRITTEN_S = 12.0  # after a request its count is written; instances write statistics every ten seconds

OTHER_CLIENTS = ""
"""Id of all clients together that a process had no room for in a minute. No client has it."""

ENDPOINT = "endpoint:"
GUARD = "guard:"
NOT_TOKEN = (ENDPOINT, GUARD)
"""Beginnings of a ``Source.grant`` that is no grant type of the token endpoint."""

Kind = Literal["client", "user"]
"""Kind of limit that a request meets, as in the configuration: ``client`` if it has no user, else ``user``."""

OVER = ("denied", "would_deny")
"""Outcomes of requests over a limit: denied, or admitted in a dry run."""


class Tally(NamedTuple):
    """Number of requests by outcome, see ``core.decision.Outcome``."""

    allowed: int = 0
    denied: int = 0
    would_deny: int = 0  # requests that were over a limit in a dry run and admitted
    trusted: int = 0
    retries: int = 0  # denied requests that came before an earlier denial in their process had asked for, at least
    reused: int = 0  # requests over a limit that got the token that their client already had
    would_reuse: int = 0  # of those denied or admitted in a dry run, the ones that reuse would have answered so

    @property
    def offered(self) -> int:
        return self.allowed + self.denied + self.would_deny + self.trusted + self.reused

    @property
    def issued(self) -> int:
        """Number of requests that got a new token."""
        return self.allowed + self.would_deny + self.trusted

    @property
    def over(self) -> int:
        """Number of requests over a limit, denied or not."""
        return self.denied + self.would_deny + self.reused

    @property
    def over_share(self) -> float:
        return self.over / self.offered if self.offered else 0.0

    @property
    def is_mostly_trusted(self) -> bool:
        return self.trusted * 2 > self.offered

    def __add__(self, other: "Tally") -> "Tally":  # type: ignore[override]  # counts are added, not appended
        return Tally(*map(add, self, other))

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(*map(sub, self, other))


COUNTS = Tally._fields
NO_REQUESTS = Tally()


def full_minute(now_s: float) -> int:
    """Return the start of the last minute that is over and written."""
    return int((now_s - WRITTEN_S) // MINUTE_S - 1) * MINUTE_S


class Source(NamedTuple):
    """Kind and grant type of requests, which are counted together."""

    kind: Kind  # ``user`` if they have a user, else ``client``
    # Grant type. ``other`` if the server has no such grant, ``none`` if it is not known. For another endpoint,
    # ``endpoint:`` and its name; for the guard, ``guard:`` and the kind of failure.
    grant: str

    @property
    def is_token(self) -> bool:
        return not self.grant.startswith(NOT_TOKEN)


class Peak(NamedTuple):
    """Highest use of a limit. For a limit per user, the highest of any user."""

    share: float  # Share of the limit. Peaks are compared by it, also if the limit has changed.
    used: float  # estimated hits in the window
    limit: int  # hits per window
    window_s: int


class Denials(NamedTuple):
    """Requests of one source and outcome that one policy denied in a minute, or would have denied."""

    total: int
    first_s: int  # time of the first of them, whole seconds since the epoch
    last_s: int
    limit: int  # hits per window of the policy
    window_s: int


class UserLoad(NamedTuple):
    """Requests of one pseudonym, without those on instances where it was not among the heaviest users."""

    username: str
    offered: int
    denied: int = 0
    would_deny: int = 0

    @property
    def over(self) -> int:
        """Number of requests over a limit, denied or not."""
        return self.denied + self.would_deny


def add_user(users: dict[str, UserLoad], user: UserLoad) -> None:
    known = users.get(user.username, UserLoad(user.username, 0))
    users[user.username] = UserLoad(user.username, *map(add, known[1:], user[1:]))


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
    def user_count(self) -> int | None:
        """Estimated number of users; None while it is not known, because the first minute with users is not over."""
        return estimate_distinct(self.registers) if self.registers or not self.tally("user").offered else None


@dataclass(frozen=True, slots=True)
class ClientMinute(Load):
    """One client in one minute, over all instances."""

    client_id: str  # the client, or ``OTHER_CLIENTS``
    minute_s: int  # start of the minute, seconds since the epoch
    tallies: Mapping[Source, Tally] = field(default_factory=dict)
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    # Users with most requests at the token endpoint, the heaviest first. Empty until the minute is over, so that those
    # who were among the heaviest only briefly are not stored.
    users: tuple[UserLoad, ...] = ()
    # HyperLogLog registers of the users. Empty until the minute is over.
    registers: Registers = field(default_factory=dict)
    seconds: Sequence[int] = ()  # token requests by second of the minute, 60 numbers; empty if not recorded
    # Number of issued tokens by their lifetime in seconds, ``expires_in``; not all if there are many
    lifetimes: Mapping[int, int] = field(default_factory=dict)
    # Denials by policy, ``Source.grant`` and outcome. Policies of another endpoint have its name before their own,
    # those of the guard ``guard/``.
    denials: Mapping[tuple[str, str, str], Denials] = field(default_factory=dict)

    @property
    def burst(self) -> int:
        """Most token requests within a second."""
        return max(self.seconds, default=0)


class ClientTotal(NamedTuple):
    """Requests of one client, or of several together, over some time."""

    client_id: str  # ``OTHER_CLIENTS`` for several together
    tally: Tally  # its requests at the token endpoint
    elsewhere: Tally = NO_REQUESTS  # its requests at other endpoints
    guard: Tally = NO_REQUESTS  # its attempts that the guard denied, or would have denied
    highest_use: float | None = None  # highest share of a limit, that of ``policy``; None if none is recorded
    policy: str | None = None
    # Time of the first request over a limit, seconds since the epoch; None without any
    denied_from_s: int | None = None
    denied_until_s: int | None = None  # time of the last one
    start_s: int = 0  # start of the time, if it is one of several steps

    @property
    def own(self) -> Tally:
        """Its requests at all endpoints."""
        return self.tally if self.elsewhere is NO_REQUESTS else self.tally + self.elsewhere

    @property
    def all(self) -> Tally:
        """Its requests at all endpoints, with the attempts under its id that the guard denied."""
        return self.own if self.guard is NO_REQUESTS else self.own + self.guard


@dataclass(slots=True, eq=False)
class ClientSum(Load):
    """One client over some time: a sum to which minutes are added, with the fields of ``ClientMinute``."""

    client_id: str
    tallies: dict[Source, Tally] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    # Users that were among the heaviest in any minute, by name, with the requests of those minutes only
    users: dict[str, UserLoad] = field(default_factory=dict)
    registers: dict[int, int] = field(default_factory=dict)
    burst: int = 0
    busiest: tuple[int, int] = (0, 0)  # token requests in the busiest minute, and the start of that minute

    @classmethod
    def of(cls, client_id: str, minutes: Iterable[ClientMinute]) -> "ClientSum":
        total = cls(client_id)
        for minute in minutes:
            total.add(minute)
        return total

    def add(self, minute: ClientMinute) -> None:
        for source, tally in minute.tallies.items():
            self.tallies[source] = self.tallies.get(source, NO_REQUESTS) + tally
        for policy, peak in minute.peaks.items():
            self.peaks[policy] = max(peak, self.peaks.get(policy, peak))
        for user in minute.users:
            add_user(self.users, user)
        merge_into(self.registers, minute.registers)
        self.burst = max(self.burst, minute.burst)
        self.busiest = max(self.busiest, (minute.tally().offered, minute.minute_s))
