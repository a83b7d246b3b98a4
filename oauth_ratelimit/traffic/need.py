"""Tokens that clients and users need if they keep them: what ``report`` and ``suggest`` call wasteful and needless.

A *period* begins with the first request after the last period, and is as long as a token is valid. In each period a
user needs one token, and a client without a user ten, one for each of its processes. More than three times the need is
wasteful. These numbers are generous, so that only those stand out that do not keep tokens.
"""

import math
from operator import add
from typing import NamedTuple

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import HOUR_S, MINUTE_S, ClientMinute, Registers, estimate_distinct, merge_into

# Tokens that one client, or one user, needs in a period
TOKENS = {LimitKind.CLIENT: 10, LimitKind.USER: 1, LimitKind.CLIENT_TOTAL: 10}
WASTEFUL_RATIO = 3.0  # requests to need; users have several devices, and periods begin in the middle
MIN_REQUESTS = 20  # below it nobody is called wasteful
CERTAIN_RATIO = 1.25  # requests to need below which nothing is called needless: numbers of users are off by some 6 %
MIN_LIFETIME_SHARE = 10  # one in ten tokens; rarer lifetimes are exceptions


class Need(NamedTuple):
    """Requests and the tokens that were needed, at most as many."""

    offered: int = 0
    needed: float = 0.0
    least: float = 0.0  # tokens that are enough for one process and for users with one device
    periods: float = 0.0  # of all users together, if they are counted together, estimated

    def __add__(self, other: "Need") -> "Need":  # type: ignore[override]  # needs are added, not appended
        return Need(*map(add, self, other))

    @property
    def is_wasteful(self) -> bool:
        return self.offered >= MIN_REQUESTS and self.offered > WASTEFUL_RATIO * self.needed

    @property
    def excess_ratio(self) -> float:
        return self.offered / max(1.0, self.needed)

    @property
    def needless(self) -> int:
        """Requests beyond the need; 0 within the error of the estimate."""
        return self.offered - round(self.needed) if self.excess_ratio >= CERTAIN_RATIO else 0

    @property
    def per_period(self) -> float | None:
        """Requests of one client or user in a period; None without any."""
        return self.offered / self.periods if self.periods else None


NO_NEED = Need()


class NeedCounter:
    """Need of one client or user, or of the users of a client together, from requests in the order of time."""

    __slots__ = ("_closed", "_end_s", "_offered", "_registers", "_renewals", "_tokens")

    def __init__(self, kind: LimitKind) -> None:
        self._tokens = TOKENS[kind]
        self._closed = NO_NEED  # of all periods but the last
        self._end_s = -math.inf
        self._renewals = 1.0  # periods that are counted as one: as many as are in a minute
        self._offered = 0
        self._registers: dict[int, int] | None = None  # of users that are counted together

    def add(self, at_s: float, offered: int, period_s: float, registers: Registers | None = None) -> None:
        """Add requests of a minute, with the registers of their users if of several. A new period is so long."""
        if at_s >= self._end_s:
            self._closed, self._offered = self.result(), 0
            self._registers = None if registers is None else {}
            self._end_s, self._renewals = at_s + period_s, max(1.0, MINUTE_S / period_s)
        self._offered += offered
        if registers and self._registers is not None:
            merge_into(self._registers, registers)

    def result(self) -> Need:
        if not self._offered:
            return self._closed
        # Users who are not recorded may all be different ones.
        subjects = 1.0 if self._registers is None else estimate_distinct(self._registers) or float(self._offered)
        least = subjects * self._renewals
        needed = min(float(self._offered), self._tokens * least)
        return self._closed + Need(self._offered, needed, min(float(self._offered), least), subjects)


class ClientNeed:
    """Need of a client and of its users together, from its minutes in the order of time.

    A token is valid for ``given_s``, else as long as those that were issued to the client, else for ``assumed_s``, else
    for an hour. ``period_s`` replaces the period that follows from that.
    """

    __slots__ = ("_assumed_s", "_given_s", "_lifetimes", "_own", "_period_s", "_users")

    def __init__(
        self, given_s: float | None = None, assumed_s: float | None = None, *, period_s: float | None = None
    ) -> None:
        self._given_s, self._assumed_s, self._period_s = given_s, assumed_s, period_s
        self._lifetimes: dict[int, int] = {}  # number of tokens issued, by lifetime
        self._own: NeedCounter | None = None  # until there are requests of the kind: clients may be many
        self._users: NeedCounter | None = None

    def add(self, minute: ClientMinute) -> None:
        for lifetime_s, count in minute.lifetimes.items():
            self._lifetimes[lifetime_s] = self._lifetimes.get(lifetime_s, 0) + count
        if own := minute.tally("client").offered:
            self._own = self._own or NeedCounter(LimitKind.CLIENT)
            self._own.add(minute.minute_s, own, self.period_s)
        if for_users := minute.tally("user").offered:
            self._users = self._users or NeedCounter(LimitKind.USER)
            self._users.add(minute.minute_s, for_users, self.period_s, minute.registers)

    def of(self, kind: LimitKind) -> Need:
        """Return the need of its requests without a user, of those of all users, or of both."""
        if kind is LimitKind.CLIENT_TOTAL:
            return self.of(LimitKind.CLIENT) + self.of(LimitKind.USER)
        counter = self._users if kind is LimitKind.USER else self._own
        return counter.result() if counter else NO_NEED

    def most_in(self, window_s: int, kind: LimitKind) -> int:
        """Return the most tokens that are needed in a window; a user may have several devices."""
        return math.ceil(max(TOKENS[kind], WASTEFUL_RATIO) * max(1.0, window_s / self.period_s))

    @property
    def lifetime_range(self) -> tuple[float, float] | None:
        """Shortest and longest lifetime that at least a tenth of the tokens have, in seconds; None if not known."""
        if self._given_s is None and (total := sum(self._lifetimes.values())):
            usual = [each for each, count in self._lifetimes.items() if count * MIN_LIFETIME_SHARE >= total]
            usual = usual or list(self._lifetimes)
            return min(usual), max(usual)
        known_s = self._given_s or self._assumed_s
        return (known_s, known_s) if known_s else None

    @property
    def period_s(self) -> float:
        """Length of a period that begins now: the lifetime of tokens that are issued now."""
        return self._period_s or (self.lifetime_range[0] if self.lifetime_range else float(HOUR_S))
