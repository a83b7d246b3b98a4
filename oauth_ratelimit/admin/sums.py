"""Sums of requests by client, as columns of numbers: those of one step of time, and those of several."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import repeat
from typing import NamedTuple

from oauth_ratelimit.core.statistics import COUNTS, OTHER_CLIENTS, StepSums, Tally

RECHECK_S = 300  # earliest second read of a step
MAX_CLIENTS = 10_000  # in one step; those with fewer requests are counted together
MAX_NAMES = 50_000
NO_PEAK = -1.0

Column = tuple["array[int]", "array[int]"]
"""Numbers of clients, in ascending order, and their counts, which are not 0."""

Peaks = tuple["array[int]", "array[float]", "array[int]"]
"""Numbers of clients, the highest share of a limit of each, and the numbers of these policies."""


class Step:
    """Sums of one step of time.

    Args:
        columns: For each name of ``COUNTS`` the counts of the clients.
        peaks: The highest use of limits.
        read_at_s: Time of the read, seconds since the epoch.

    Attributes:
        totals: For each name of ``COUNTS`` the sum over all clients.
    """

    __slots__ = ("columns", "peaks", "read_at_s", "totals")

    def __init__(self, columns: Sequence[Column], peaks: Peaks, *, read_at_s: float) -> None:
        self.columns = columns
        self.peaks = peaks
        self.read_at_s = read_at_s
        self.totals = [sum(counts) for _, counts in columns]

    def tally(self, number: int) -> Tally:
        """Return the requests of one client."""
        return Tally(*[_count_of(column, number) for column in self.columns])

    def is_due(self, end_s: int, *, now_s: float) -> bool:
        """Return True if the step, which ended at ``end_s``, has twice the age that it was read at."""
        return now_s - self.read_at_s >= max(RECHECK_S, self.read_at_s - end_s)

    def has_content_of(self, other: "Step") -> bool:
        """Return True if both hold the same sums."""
        return self.columns == other.columns and self.peaks == other.peaks


def _count_of(column: Column, number: int) -> int:
    numbers, counts = column
    at = bisect_left(numbers, number)
    return counts[at] if at < len(numbers) and numbers[at] == number else 0


class Names:
    """Numbers of clients or policies. Number 0 is ``OTHER_CLIENTS``."""

    def __init__(self) -> None:
        self.all = [OTHER_CLIENTS]
        self._numbers = {OTHER_CLIENTS: 0}

    @property
    def is_full(self) -> bool:
        """True if a new name would get number 0."""
        return len(self.all) >= MAX_NAMES

    def number(self, name: str) -> int:
        """Return the number of a name. A new one gets the next number."""
        number = self._numbers.get(name)
        if number is None:
            number = 0 if self.is_full else len(self.all)
            if number:
                self._numbers[name] = number
                self.all.append(name)
        return number

    def known_number(self, name: str) -> int | None:
        """Return the number of a name, None if it has none."""
        return self._numbers.get(name)


class ClientTotal(NamedTuple):
    """Requests of one client in a span.

    Attributes:
        client_id: The client, or ``OTHER_CLIENTS``.
        tally: Its requests.
        highest_use: Highest share of a limit, None if none is recorded.
        policy: Name of that limit.
    """

    client_id: str
    tally: Tally
    highest_use: float | None
    policy: str | None


class Sums:
    """Sums by the number of the client.

    Args:
        names: The clients.
        policies: The policies.

    Attributes:
        counts: For each name of ``COUNTS`` the counts of the clients.
        shares: Highest share of a limit of each client, ``NO_PEAK`` without any.
    """

    def __init__(self, names: Names, policies: Names) -> None:
        self._names = names
        self._policies = policies
        self.counts: list[list[int]] = [[] for _ in COUNTS]
        self.shares: list[float] = []
        self._policy_of: list[int] = []

    def copy(self) -> "Sums":
        """Return an independent copy."""
        other = Sums(self._names, self._policies)
        other.counts = [list(counts) for counts in self.counts]
        other.shares, other._policy_of = list(self.shares), list(self._policy_of)
        return other

    def add_part(self, part: StepSums) -> None:
        """Add what the store returned."""
        numbers = list(map(self._names.number, part.client_ids))
        self._make_room()
        for counts, values in zip(self.counts, part.counts, strict=True):
            for number, value in zip(numbers, values, strict=True):
                counts[number] += value
        shares = self.shares
        for number, peak in zip(numbers, part.peaks, strict=True):
            if peak is not None and peak[0] > shares[number]:
                shares[number] = peak[0]
                self._policy_of[number] = self._policies.number(peak[1])

    def add_step(self, step: Step) -> None:
        """Add a step."""
        self.add_counts(step)
        self._add_peaks(step)

    def add_counts(self, step: Step, *, sign: int = 1) -> None:
        """Add a step without its peaks, or subtract it with ``sign=-1``."""
        self._make_room()
        for counts, (numbers, values) in zip(self.counts, step.columns, strict=True):
            for number, value in zip(numbers, values, strict=True):
                counts[number] += sign * value

    def set_peaks(self, steps: Iterable[Step]) -> None:
        """Replace the peaks by those of some steps."""
        self.shares[:] = repeat(NO_PEAK, len(self.shares))
        for step in steps:
            self._add_peaks(step)

    def _add_peaks(self, step: Step) -> None:
        shares = self.shares
        for number, share, policy in zip(*step.peaks, strict=True):
            if share > shares[number]:
                shares[number] = share
                self._policy_of[number] = policy

    def _make_room(self) -> None:
        missing = len(self._names.all) - len(self.shares)
        for counts in self.counts:
            counts.extend(repeat(0, missing))
        self.shares.extend(repeat(NO_PEAK, missing))
        self._policy_of.extend(repeat(0, missing))

    def step(self, *, read_at_s: float) -> Step:
        """Return the sums as one step. Clients beyond ``MAX_CLIENTS`` are counted together."""
        offered = list(map(sum, zip(*self.counts, strict=True)))
        if len(offered) - offered.count(0) > MAX_CLIENTS:
            self._merge_all_but(nlargest(MAX_CLIENTS, range(1, len(offered)), key=offered.__getitem__))
        numbers = [number for number, share in enumerate(self.shares) if share >= 0]
        return Step(
            [
                (array("I", [n for n, count in enumerate(counts) if count]), array("q", filter(None, counts)))
                for counts in self.counts
            ],
            (
                array("I", numbers),
                array("d", [self.shares[number] for number in numbers]),
                array("I", [self._policy_of[number] for number in numbers]),
            ),
            read_at_s=read_at_s,
        )

    def _merge_all_but(self, kept: Sequence[int]) -> None:
        """Move the counts of all other clients to ``OTHER_CLIENTS``."""
        others = set(range(1, len(self.shares))).difference(kept)
        for counts in self.counts:
            for number in others:
                counts[0] += counts[number]
                counts[number] = 0
        for number in others:
            self.shares[number] = NO_PEAK

    def client(self, number: int) -> ClientTotal:
        """Return the requests of one client."""
        share = self.shares[number]
        tally = Tally(*[counts[number] for counts in self.counts])
        if share < 0:
            return ClientTotal(self._names.all[number], tally, None, None)
        return ClientTotal(self._names.all[number], tally, share, self._policies.all[self._policy_of[number]])
