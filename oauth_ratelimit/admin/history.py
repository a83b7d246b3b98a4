"""Requests of all clients over time, kept in memory as compact sums and read incrementally.

Instances write a minute until shortly after its end, so only the youngest minutes change. They are read at most every
few seconds for all viewers; MongoDB sums the documents. Older steps are read once, and again when their age has
doubled, because an instance that could not reach MongoDB writes late.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from operator import add

from oauth_ratelimit.admin.sums import ClientTotal, Names, Step, Sums
from oauth_ratelimit.core.statistics import MINUTE_S, StepSums, Tally

SPANS_S = {"15m": (900, 60), "1h": (3600, 60), "6h": (21_600, 300), "1d": (86_400, 3600), "7d": (604_800, 3600)}
"""Length of a span and of its steps, in seconds."""

FINER_STEP_S = {3600: 300, 300: 60}
"""Steps that make up a step that still changes."""

KEPT = {60: 75, 300: 85, 3600: 180}
"""Number of steps kept in memory, by their length."""

SETTLED_S = 90  # after the end of a minute; instances write every ten seconds
FRESH_S = 5.0  # the youngest minutes are read at most this often
MAX_RECHECKS = 2  # per poll
BUDGET_S = 4.0  # for reading during one poll; the rest is read by the next ones
NAMES_KEPT_S = 3600.0  # before a full list of names is started anew
BATCH = 12  # steps read at once

ReadSums = Callable[[float, float, int], Iterable[StepSums]]
"""Reads the sums of a period by its start, its end and the length of a step, as ``StatisticsStore.sums``."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Equal steps of time; the last one is not complete.

    Args:
        start_s: Start of the first step, in seconds since the epoch.
        step_s: Length of a step, in seconds; whole minutes.
        count: Number of steps.
        now_s: The present, within the last step.
    """

    start_s: int
    step_s: int
    count: int
    now_s: float

    @classmethod
    def until(cls, now_s: float, *, length_s: int, step_s: int) -> "Timeline":
        """Return the steps of a length up to now."""
        count = length_s // step_s
        return cls(int(now_s // step_s - count + 1) * step_s, step_s, count, now_s)

    @property
    def starts_s(self) -> range:
        """Starts of the steps."""
        return range(self.start_s, self.start_s + self.count * self.step_s, self.step_s)

    def minutes_of(self, start_s: int) -> float:
        """Return the minutes of a step that have passed, at least one."""
        return max(MINUTE_S, min(self.step_s, self.now_s - start_s)) / MINUTE_S


@dataclass(frozen=True)
class SpanTraffic:
    """Requests of all clients in a span. Clients have numbers, so that thousands of them can be sorted quickly.

    Args:
        timeline: Its steps.
        steps: Sums of each step; None for a step that is not read yet.
        names: Numbers of the clients.
        sums: Sums over all steps.
    """

    timeline: Timeline
    steps: Sequence[Step | None]
    names: Names
    sums: Sums

    @cached_property
    def offered(self) -> list[int]:
        """All requests, by the number of the client."""
        allowed, denied, would_deny, trusted, _ = self.sums.counts
        return list(map(sum, zip(allowed, denied, would_deny, trusted, strict=True)))

    @cached_property
    def over(self) -> list[int]:
        """Requests over a limit, by the number of the client."""
        _, denied, would_deny, _, _ = self.sums.counts
        return list(map(add, denied, would_deny))

    @cached_property
    def ranked(self) -> list[int]:
        """Numbers of the clients with requests or peaks, most requests over a limit first, then most requests."""
        names, over, offered, shares = self.names.all, self.over, self.offered, self.sums.shares
        found = [number for number, count in enumerate(offered) if count or shares[number] >= 0]
        found.sort(key=names.__getitem__)  # three stable sorts take half the time of one by all keys
        found.sort(key=offered.__getitem__, reverse=True)
        found.sort(key=over.__getitem__, reverse=True)
        return found

    @property
    def clients(self) -> dict[str, ClientTotal]:
        """Totals of the clients with requests or peaks, by client id."""
        return {self.names.all[number]: self.sums.client(number) for number in self.ranked}

    @property
    def is_complete(self) -> bool:
        """False while some steps are not read yet."""
        return None not in self.steps

    def line(self, client_id: str) -> list[Tally | None]:
        """Return the requests of a client in each step."""
        number = self.names.known_number(client_id)
        if number is None:
            return [None if step is None else Tally() for step in self.steps]
        return [None if step is None else step.tally(number) for step in self.steps]

    def total_line(self) -> list[Tally | None]:
        """Return the requests of all clients in each step."""
        return [None if step is None else Tally(*step.totals) for step in self.steps]

    def between(self, since_s: float, until_s: float) -> list[Step]:
        """Return the steps that begin in a period."""
        pairs = zip(self.timeline.starts_s, self.steps, strict=True)
        return [step for start_s, step in pairs if step is not None and since_s <= start_s < until_s]

    def highest_use(self, since_s: float, count: int) -> list[str]:
        """Return the clients with the highest use of a limit in the steps since a time, the highest first."""
        sums = Sums(self.names, Names())
        for step in self.between(since_s, math.inf):
            sums.add_step(step)
        numbers = nlargest(count, range(1, len(sums.shares)), key=sums.shares.__getitem__)
        return [self.names.all[number] for number in numbers if sums.shares[number] >= 0]

    def over_limit(self, steps: Iterable[Step]) -> tuple[int, ClientTotal | None]:
        """Return the number of clients with requests over a limit in some steps, and the one with most of them."""
        sums = Sums(self.names, Names())
        for step in steps:
            sums.add_counts(step)
        _, denied, would_deny, _, _ = sums.counts
        over = list(map(add, denied, would_deny))
        over[:1] = [0]  # other clients together are none
        most = max(over)
        if not most:
            return 0, None
        worst = [sums.client(number) for number, count in enumerate(over) if count == most]
        return len(over) - over.count(0), min(worst, key=lambda client: (client.tally.offered, client.client_id))


@dataclass(frozen=True, slots=True)
class _Poll:
    """One read of a span.

    Args:
        now_s: The present, seconds since the epoch.
        read_sums: Reads sums from the store.
        end_s: Time by the monotonic clock after which nothing more is read.
    """

    now_s: float
    read_sums: ReadSums
    end_s: float

    def is_settled(self, start_s: int, step_s: int) -> bool:
        """Return True if a step no longer changes, as long as instances reach MongoDB."""
        return start_s + step_s + SETTLED_S <= self.now_s

    def young_minutes(self) -> range:
        """Return the starts of the minutes that still change."""
        first_s = int((self.now_s - MINUTE_S - SETTLED_S) // MINUTE_S + 1) * MINUTE_S
        return range(first_s, int(self.now_s // MINUTE_S + 1) * MINUTE_S, MINUTE_S)


class TrafficHistory:
    """Sums of recent steps, for all viewers of one process. Thread-safe.

    A step takes 28 bytes for each client that stays within its limits, and up to 76 for others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below; held while reading, so that several viewers read once
        self._start_anew()

    def _start_anew(self) -> None:
        self._names, self._policies = Names(), Names()
        self._steps: dict[int, dict[int, Step]] = {step_s: {} for step_s in KEPT}
        self._young: dict[int, Step] = {}  # minutes that still change
        self._young_at_s = -math.inf  # time of their read, seconds since the epoch
        self._summed: dict[str, tuple[list[Step], Sums]] = {}  # by span; sums of steps that no longer change
        self._begun_s: float | None = None  # time of the first read, seconds since the epoch

    def read(self, span: str, *, now_s: float, read_sums: ReadSums) -> SpanTraffic:
        """Return the requests in a span of ``SPANS_S`` up to now.

        Args:
            span: Name of the span.
            now_s: The present, seconds since the epoch.
            read_sums: Reads sums from the store; its errors are passed on.
        """
        length_s, step_s = SPANS_S[span]
        timeline = Timeline.until(now_s, length_s=length_s, step_s=step_s)
        with self._lock:
            if self._begun_s is None:
                self._begun_s = now_s
            elif (self._names.is_full or self._policies.is_full) and now_s - self._begun_s > NAMES_KEPT_S:
                self._start_anew()
                self._begun_s = now_s
            poll = _Poll(now_s, read_sums, time.monotonic() + BUDGET_S)
            self._drop_old(now_s)
            self._read_young(poll)
            self._check_again(poll, step_s)
            steps = self._read_steps(poll, step_s, timeline.starts_s)
            return SpanTraffic(timeline, steps, self._names, self._sums(span, timeline, steps))

    def _drop_old(self, now_s: float) -> None:
        for step_s, kept in self._steps.items():
            oldest_s = now_s - step_s * KEPT[step_s]
            for start_s in [start_s for start_s in kept if start_s < oldest_s]:
                del kept[start_s]

    def _read_young(self, poll: _Poll) -> None:
        """Read the minutes that still change, unless that was a moment ago."""
        starts_s = poll.young_minutes()
        is_fresh = 0 <= poll.now_s - self._young_at_s < FRESH_S
        if not is_fresh or not all(start_s in self._young for start_s in starts_s):
            self._young = self._read(poll, MINUTE_S, starts_s)
            self._young_at_s = poll.now_s

    def _check_again(self, poll: _Poll, step_s: int) -> None:
        """Read steps again whose age has doubled, those first that were not read for longest."""
        kept = self._steps[step_s]
        due = [start_s for start_s, step in kept.items() if step.is_due(start_s + step_s, now_s=poll.now_s)]
        for start_s in sorted(due, key=lambda start_s: kept[start_s].read_at_s)[:MAX_RECHECKS]:
            fresh = self._read(poll, step_s, range(start_s, start_s + 1))[start_s]
            if fresh.has_content_of(kept[start_s]):
                kept[start_s].read_at_s = poll.now_s  # sums with this step stay valid
            else:
                kept[start_s] = fresh

    def _read_steps(self, poll: _Poll, step_s: int, starts_s: range) -> list[Step | None]:
        """Return steps. Unknown ones are read from the store, the newest first, as long as there is time."""
        kept = self._steps[step_s]
        missing = [start_s for start_s in starts_s if start_s not in kept and poll.is_settled(start_s, step_s)]
        while missing and time.monotonic() < poll.end_s:
            missing, batch = missing[:-BATCH], missing[-BATCH:]
            kept |= self._read(poll, step_s, range(batch[0], batch[-1] + 1, step_s))
        return [
            kept.get(start_s) if poll.is_settled(start_s, step_s) else self._unsettled(poll, step_s, start_s)
            for start_s in starts_s
        ]

    def _unsettled(self, poll: _Poll, step_s: int, start_s: int) -> Step | None:
        """Return a step that still changes, put together from finer ones."""
        if step_s == MINUTE_S:
            return self._young.get(start_s)
        finer_s = FINER_STEP_S[step_s]
        end_s = min(start_s + step_s, int(poll.now_s) + 1)
        sums = Sums(self._names, self._policies)
        for step in self._read_steps(poll, finer_s, range(start_s, end_s, finer_s)):
            if step is None:
                return None
            sums.add_step(step)
        return sums.step(read_at_s=poll.now_s)

    def _read(self, poll: _Poll, step_s: int, starts_s: range) -> dict[int, Step]:
        """Read consecutive steps from the store."""
        found = {start_s: Sums(self._names, self._policies) for start_s in starts_s}
        for part in poll.read_sums(starts_s[0], starts_s[-1] + step_s, step_s):
            found[part.start_s].add_part(part)
        return {start_s: sums.step(read_at_s=poll.now_s) for start_s, sums in found.items()}

    def _sums(self, span: str, timeline: Timeline, steps: Sequence[Step | None]) -> Sums:
        """Return the sums over all steps. Those that no longer change are summed once."""
        kept = self._steps[timeline.step_s]
        settled: list[Step] = []
        changing: list[Step] = []
        for start_s, step in zip(timeline.starts_s, steps, strict=True):
            if step is not None:
                (settled if step is kept.get(start_s) else changing).append(step)
        summed, sums = self._summed.get(span, ([], None))
        sums = sums or Sums(self._names, self._policies)
        if summed != settled:  # steps are compared by identity
            for step in set(summed).difference(settled):
                sums.add_counts(step, sign=-1)
            for step in set(settled).difference(summed):
                sums.add_counts(step)
            sums.set_peaks(settled)
            self._summed[span] = settled, sums
        sums = sums.copy()
        for step in changing:
            sums.add_step(step)
        return sums
