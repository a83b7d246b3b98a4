"""Recorded traffic by client and user: peaks by day, and the tokens that each one needs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, pstdev

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute
from oauth_ratelimit.core.what_if import Subject

DAY_S = 86_400
HOUR_S = 3600
BINS_PER_WINDOW = 12
MAX_SUBJECTS = 200_000  # of each kind, some 100 MB
DEVIATIONS = 3.0
# Processes of a client or devices of a user, each with a token of its own.
TOKENS = {LimitKind.CLIENT: 10, LimitKind.USER: 3, LimitKind.CLIENT_TOTAL: 10}

Load = dict[int, int]
"""Requests by the start of the bin, seconds since the epoch."""


class Traffic:
    """Requests of clients and users in bins of a twelfth of the window.

    Args:
        window_s: Length of the window of the limits to propose, whole minutes.

    Attributes:
        loads: Requests by kind and subject.
        left_out_count: Requests of subjects for which there was no room.
    """

    def __init__(self, window_s: int = HOUR_S) -> None:
        self.window_s = window_s
        self.bin_s = max(1, window_s // BINS_PER_WINDOW // MINUTE_S) * MINUTE_S
        self.loads: dict[LimitKind, dict[Subject, Load]] = {kind: {} for kind in LimitKind}
        self.left_out_count = 0
        self._lifetimes: dict[str, dict[int, int]] = {}

    def add_minute(self, minute: ClientMinute) -> None:
        """Add a recorded minute with its tallies, users and lifetimes. Trusted clients are left out."""
        client_id = minute.client_id
        total = minute.tally()
        if client_id == OTHER_CLIENTS or total.trusted * 2 > total.offered:
            self.left_out_count += total.offered - total.trusted if client_id == OTHER_CLIENTS else 0
            return
        self._add(LimitKind.CLIENT, Subject(client_id, None), minute.minute_s, minute.tally("client").offered)
        self._add(LimitKind.CLIENT_TOTAL, Subject(client_id, None), minute.minute_s, total.offered)
        for user in minute.users:
            self._add(LimitKind.USER, Subject(client_id, user.username), minute.minute_s, user.offered)
        if minute.lifetimes:
            lifetimes = self._lifetimes.setdefault(client_id, {})
            for lifetime_s, count in minute.lifetimes.items():
                lifetimes[lifetime_s] = lifetimes.get(lifetime_s, 0) + count

    def add_request(self, at_s: float, client_id: str, username: str | None) -> None:
        """Add one request."""
        kind = LimitKind.CLIENT if username is None else LimitKind.USER
        self._add(kind, Subject(client_id, username), at_s, 1)
        self._add(LimitKind.CLIENT_TOTAL, Subject(client_id, None), at_s, 1)

    def _add(self, kind: LimitKind, subject: Subject, at_s: float, count: int) -> None:
        if not count:
            return
        loads = self.loads[kind]
        load = loads.get(subject)
        if load is None:
            if len(loads) >= MAX_SUBJECTS:
                self.left_out_count += count
                return
            load = loads[subject] = {}
        start_s = int(at_s // self.bin_s) * self.bin_s
        load[start_s] = load.get(start_s, 0) + count

    def lifetime_s(self, client_id: str) -> int | None:
        """Return the lifetime that most tokens of a client have, None if none is recorded."""
        lifetimes = self._lifetimes.get(client_id)
        return max(lifetimes, key=lambda seconds: (lifetimes[seconds], -seconds)) if lifetimes else None

    @property
    def request_count(self) -> int:
        """Number of requests."""
        return sum(sum(load.values()) for load in self.loads[LimitKind.CLIENT_TOTAL].values())

    @property
    def day_count(self) -> int:
        """Number of days with requests."""
        return len({start_s // DAY_S for start_s in self._starts()})

    @property
    def span_s(self) -> int:
        """Time from the first bin with requests to the end of the last one; 0 without requests."""
        starts = set(self._starts())
        return max(starts) + self.bin_s - min(starts) if starts else 0

    def _starts(self) -> Iterator[int]:
        return chain.from_iterable(self.loads[LimitKind.CLIENT_TOTAL].values())


@dataclass(frozen=True, slots=True)
class Profile:
    """One client or user.

    Args:
        subject: The client or user.
        offered: Number of its requests.
        needed: Number of tokens that it needs if it has several devices or processes.
        reusable: Number of requests that came while an earlier token of the same client or user was valid.
        peak: Most requests in a window.
        safe_limit: Limit that it stays below on other days, too.
        is_wasteful: True if it, or its client, asks for several times its need.
    """

    subject: Subject
    offered: int
    needed: int
    reusable: int
    peak: int
    safe_limit: int
    is_wasteful: bool = False


def profile_of(subject: Subject, load: Load, *, kind: LimitKind, traffic: Traffic, lifetime_s: float) -> Profile:
    """Return the profile of a client or user.

    Args:
        subject: The client or user.
        load: Its requests.
        kind: Kind of the limit.
        traffic: The traffic that it is part of.
        lifetime_s: Lifetime of its tokens in seconds.
    """
    peaks = _daily_peaks(load, traffic.window_s)
    values = list(peaks.values())
    mean, offered = fmean(values), sum(load.values())
    # Few days say little about their variance, but that of independent requests is known: the mean.
    deviation = max(pstdev(values), math.sqrt(mean))
    return Profile(
        subject,
        offered=offered,
        needed=_needed(load, lifetime_s=lifetime_s, tokens=TOKENS[kind]),
        reusable=offered - _needed(load, lifetime_s=lifetime_s, tokens=1),
        peak=max(values),
        safe_limit=max(max(values), math.ceil(mean + DEVIATIONS * deviation)),
    )


def _daily_peaks(load: Mapping[int, int], window_s: int) -> dict[int, int]:
    """Return the most requests in a window by the day of its end. A window that begins within a bin holds all of it."""
    starts = sorted(load)
    peaks: dict[int, int] = {}
    inside = first = 0
    for start_s in starts:
        inside += load[start_s]
        while starts[first] < start_s - window_s:
            inside -= load[starts[first]]
            first += 1
        day = start_s // DAY_S
        peaks[day] = max(inside, peaks.get(day, 0))
    return peaks


def _needed(load: Mapping[int, int], *, lifetime_s: float, tokens: int) -> int:
    """Return the number of tokens needed: some in each lifetime, which begins with the first request after the last."""
    needed, end_s, left = 0, -math.inf, 0
    for start_s in sorted(load):
        if start_s >= end_s:
            end_s, left = start_s + lifetime_s, tokens
        used = min(left, load[start_s])
        needed += used
        left -= used
    return needed
