"""Recorded traffic by client and user: peaks by day, the tokens that each one needs, and what reuse would spare."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, ClientMinute, Tally
from oauth_ratelimit.traffic.minutes import Subject, requests_of, rolling_sums

BINS_PER_WINDOW = 12
MAX_SUBJECTS = 200_000  # of each kind, some 100 MB
DEVIATIONS = 3.0
# Processes of a client or devices of a user, each with a token of its own.
TOKENS = {LimitKind.CLIENT: 10, LimitKind.USER: 3, LimitKind.CLIENT_TOTAL: 10}

Load = dict[int, int]
"""Requests by the start of the bin, seconds since the epoch."""


class ReuseShares:
    """Share of each client's requests over a limit that reuse answered, or would have answered in a dry run."""

    def __init__(self, kind: LimitKind) -> None:
        self._kind = kind
        self._tallies: dict[str, Tally] = {}

    def add(self, minute: ClientMinute) -> None:
        tally = minute.tally(None if self._kind is LimitKind.CLIENT_TOTAL else "client")
        self._tallies[minute.client_id] = self._tallies.get(minute.client_id, NO_REQUESTS) + tally

    def noting(self, minutes: Iterable[ClientMinute]) -> Iterator[ClientMinute]:
        for minute in minutes:
            self.add(minute)
            yield minute

    def spared(self, client_id: str, denied: int) -> int | None:
        """Return how many denials of a client reuse would have spared.

        None if that is not known: for a limit per user, and for a client that was over no limit so far.
        """
        tally = self._tallies.get(client_id, NO_REQUESTS)
        if self._kind is LimitKind.USER or not tally.over:
            return None
        return round(denied * (tally.reused + tally.would_reuse) / tally.over)


class Traffic:
    """Requests of clients and users in bins of a twelfth of the window of the limits to propose, whole minutes."""

    def __init__(self, window_s: int = HOUR_S, *, is_trusted: Callable[[str], bool] = lambda _: False) -> None:
        self.window_s = window_s
        self.trusted_count = 0  # requests of trusted clients, which are left out
        self._is_trusted = is_trusted
        self.bin_s = max(1, window_s // BINS_PER_WINDOW // MINUTE_S) * MINUTE_S
        self.loads: dict[LimitKind, dict[Subject, Load]] = {kind: {} for kind in LimitKind}
        self.left_out_count = 0  # requests of subjects for which there was no room
        self.reuse = ReuseShares(LimitKind.CLIENT)
        self._lifetimes: dict[str, Counter[int]] = {}

    def add_minute(self, minute: ClientMinute) -> None:
        """Add a recorded minute with its tallies, users and lifetimes. Trusted clients are left out."""
        total = minute.tally()
        if minute.client_id == OTHER_CLIENTS:
            self.left_out_count += total.offered - total.trusted
        elif total.is_mostly_trusted or self._is_trusted(minute.client_id):
            self.trusted_count += total.offered
        else:
            for kind in LimitKind:
                for subject, count in requests_of(minute, kind):
                    self._add(kind, subject, minute.minute_s, count)
            self.reuse.add(minute)
            self._lifetimes.setdefault(minute.client_id, Counter()).update(minute.lifetimes)

    def _add(self, kind: LimitKind, subject: Subject, at_s: float, count: int) -> None:
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
        return sum(sum(load.values()) for load in self.loads[LimitKind.CLIENT_TOTAL].values())

    @property
    def day_count(self) -> int:
        return len({start_s // DAY_S for start_s in self._starts()})

    @property
    def span_s(self) -> int:
        """Time from the first bin with requests to the end of the last one; 0 without requests."""
        starts = set(self._starts())
        return max(starts) + self.bin_s - min(starts) if starts else 0

    def _starts(self) -> Iterator[int]:
        return chain.from_iterable(self.loads[LimitKind.CLIENT_TOTAL].values())


class Profile:
    """One client or user whose tokens are valid for ``lifetime_s``: the tokens that it needs, and its peaks."""

    def __init__(self, subject: Subject, load: Load, *, kind: LimitKind, traffic: Traffic, lifetime_s: float) -> None:
        window_s, tokens = traffic.window_s, TOKENS[kind]
        self.subject = subject
        self._load, self._window_s = load, window_s
        self.is_wasteful = False  # whether it, or its client, asks for several times its need
        self.offered = sum(load.values())
        self.needed = _needed(load, lifetime_s=lifetime_s, tokens=tokens)  # with several devices or processes
        self.needed_in_window = math.ceil(tokens * max(1.0, window_s / lifetime_s))  # at most
        # Requests that came while an earlier token of the same client or user was valid.
        self.reusable = self.offered - _needed(load, lifetime_s=lifetime_s, tokens=1)
        peaks: Counter[int] = Counter()  # most requests in a window by the day of its end
        # A window that begins within a bin holds all of it.
        for start_s, inside in rolling_sums(load, window_s + traffic.bin_s):
            peaks[start_s // DAY_S] = max(inside, peaks[start_s // DAY_S])
        values = list(peaks.values())
        mean = sum(values) / len(values)
        # Few days say little about their variance, but that of independent requests is known: the mean.
        deviation = math.sqrt(max(mean, sum((value - mean) ** 2 for value in values) / len(values)))
        self.peak = max(values)
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


def _needed(load: Mapping[int, int], *, lifetime_s: float, tokens: int) -> int:
    """Return the number of tokens needed: up to ``tokens`` in each lifetime, from the first request after the last."""
    needed, end_s, left = 0, -math.inf, 0
    for start_s in sorted(load):
        if start_s >= end_s:
            end_s, left = start_s + lifetime_s, tokens
        used = min(left, load[start_s])
        needed += used
        left -= used
    return needed
