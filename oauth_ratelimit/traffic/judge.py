"""Denials that limits would have caused, from the seconds in which requests came.

The limiter's own formula decides, about the requests of a few seconds instead of single ones. The bounds hold wherever
in the known seconds or minutes the requests came: at least those are denied that are if all come at the end, at most
those that are if the window holds all that it may hold at the start. docs/statistics.md lists the errors.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from oauth_ratelimit.core.decision import check_limits
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, Policy
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS
from oauth_ratelimit.core.tier import Tier, tiers_of
from oauth_ratelimit.core.window import Estimator, estimate_hits
from oauth_ratelimit.traffic.minutes import Loads, MinuteLoad, Subject, rolling_sums

SLOTS_PER_FRAME = 6
PARTS = 4  # of the requests of a slot, spread over it; more gain nothing
MAX_SLOTS = 200_000  # of all lines; where there would be more, they are longer
LENGTHS_S = (1, 2, 3, 5, 10, 20, 30, 60)  # of slots: parts of a minute
KNOWN_RATIO = 60  # of a window to what is known of the time of requests, for errors below three percent of them


class OpenWindow:
    """Hits of a tier while time goes on. Requests that meet the same counters share the object."""

    def __init__(self, tier: Tier, hits: Mapping[int, int] | None = None) -> None:
        self.tier = tier
        self.hits = dict(hits or {})  # by frame start
        self._start_s = self._end_s = -math.inf  # of the present frame
        self._current = self._past = 0  # hits of the present frame, and of those before it in the window
        self._full = self._edge = 0  # content of the window without the present frame

    def estimate(self, at_s: float) -> float:
        """Return the estimated hits in the window, as the limiter does."""
        if at_s >= self._end_s:
            self._begin_frame(at_s)
        edge = self._edge + self.tier.edge_per_hit * self._current
        return estimate_hits(self._full + self._current, edge, self._end_s - at_s, self.tier.frame_s)

    def all_hits(self, at_s: float) -> int:
        """Return the hits of all frames that reach into the window."""
        if at_s >= self._end_s:
            self._begin_frame(at_s)
        return self._past + self._current

    def add(self, count: int, at_s: float) -> None:
        start_s = self.tier.policy.window.frame_start_s(at_s)
        self.hits[start_s] = self.hits.get(start_s, 0) + count
        self._current += count
        if start_s < self._start_s:
            self._end_s = -math.inf  # these hits are not in the present frame, so begin it anew

    def _begin_frame(self, at_s: float) -> None:
        tier = self.tier
        self.hits = {start_s: count for start_s, count in self.hits.items() if start_s > at_s - tier.horizon_s}
        self._start_s = start_s = tier.policy.window.frame_start_s(at_s)
        self._end_s = start_s + tier.frame_s
        starts = range(start_s - tier.frame_s, start_s - tier.horizon_s, -tier.frame_s)
        past = [self.hits.get(each, 0) for each in starts]
        self._past = sum(past)
        self._current = sum(self.hits.values()) - self._past
        self._full, self._edge = tier.policy.estimator.weigh(0, past, tier.frame_count)


class Line(NamedTuple):
    """Requests that meet the same limits."""

    windows: Sequence[OpenWindow]  # one for each tier, with the hits that are there before
    minutes: Mapping[int, MinuteLoad]  # by the start of the minute


class Judged(NamedTuple):
    """Requests of some lines, and the estimated denials with their bounds."""

    offered: int
    denied: int
    at_least: int
    at_most: int
    by_policy: Mapping[str, int]  # denials by the policy that denies, most first
    first_s: Mapping[str, float]  # time of the first denial of each
    peak: int  # most requests in a minute
    is_known: bool  # False if windows are too short for what is known of the time of requests: the bounds hold alone


def judge(lines: Sequence[Line], *, since_s: float = 0.0, max_slots: int = MAX_SLOTS) -> Judged:
    """Return what the tiers of all lines do to their requests. Requests before ``since_s`` only fill the windows.

    The more slots there may be, of all lines together, the more exact is the estimate.
    """
    offered = Counter[int]()
    for line in lines:
        offered.update({at_s: load.offered for at_s, load in line.minutes.items() if at_s >= since_s})
    minutes = _full_minutes(lines)
    by_policy, first_s = _middle(_copied(lines), minutes, since_s, max_slots)
    at_least, at_most = (
        _bound(_copied(lines), minutes, since_s, max_slots, is_upper=is_upper) for is_upper in (False, True)
    )
    at_most = max(at_least, at_most)
    return Judged(
        offered=offered.total(),
        denied=min(max(by_policy.total(), at_least), at_most),
        at_least=at_least,
        at_most=at_most,
        by_policy=dict(by_policy.most_common()),
        first_s=first_s,
        peak=max(offered.values(), default=0),
        is_known=at_least == at_most
        or all(
            window.tier.window_s >= KNOWN_RATIO * line.minutes[at_s].resolution_s
            for line in lines
            for at_s in minutes & line.minutes.keys()
            for window in line.windows
        ),
    )


def judge_subjects(found: Loads, policy: Policy, *, since_s: float = 0.0) -> list[tuple[Subject, Judged]]:
    """Return what one limit does to each subject with requests, the most denied first.

    ``OTHER_CLIENTS`` is left out: it is many clients, each with a limit of its own.
    """
    (tier,) = tiers_of((policy,), Mode.ENFORCE)
    judged = [
        (subject, judge([Line([OpenWindow(tier)], minutes)], since_s=since_s))
        for subject, minutes in found.items()
        if subject.client_id != OTHER_CLIENTS
    ]
    return sorted((each for each in judged if each[1].offered), key=lambda each: (-each[1].denied, -each[1].offered))


def _copied(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with windows of their own, shared as before."""
    copies = {window: OpenWindow(window.tier, window.hits) for line in lines for window in line.windows}
    return [Line([copies[window] for window in line.windows], line.minutes) for line in lines]


def _full_minutes(lines: Sequence[Line]) -> set[int]:
    """Return the minutes in which a window may be full, and those before them whose hits may be in it."""
    found: set[int] = set()
    for window in {window for line in lines for window in line.windows}:
        load = Counter[int]()
        for start_s, hits in window.hits.items():
            load[start_s // MINUTE_S * MINUTE_S] += hits
        for line in lines:
            if window in line.windows:
                load.update({at_s: minute.offered for at_s, minute in line.minutes.items()})
        span_s, from_s = window.tier.horizon_s + MINUTE_S, math.inf
        for at_s, inside in reversed(list(rolling_sums(load, span_s))):
            if inside > window.tier.limit:
                from_s = at_s - span_s
            if at_s > from_s:
                found.add(at_s)
    return found


class _Slot(NamedTuple):
    """Requests of a line within a few seconds of a minute."""

    line: Line
    minute_s: int
    start_s: int
    end_s: int
    offered: int


def _slots(lines: Sequence[Line], minutes: set[int], length_s: int, *, is_exact: bool = False) -> Iterator[_Slot]:
    """Yield the slots with requests in the order of time, or longer ones where no more is known. Lines take turns."""
    for minute_s in sorted(minutes):
        slots: list[tuple[int, int, _Slot]] = []
        for number, line in enumerate(lines):
            load = line.minutes.get(minute_s)
            if load is None:
                continue
            step_s = max(length_s, load.resolution_s) if is_exact else length_s
            before = load.by_second() if step_s < MINUTE_S else {0: 0, MINUTE_S: load.offered}
            for turn, start in enumerate(range(0, MINUTE_S, step_s)):
                end = start + step_s
                if offered := before[end] - before[start]:
                    slot = _Slot(line, minute_s, minute_s + start, minute_s + end, offered)
                    slots.append((start, (number + turn) % len(lines), slot))
        slots.sort(key=lambda each: each[:2])
        for _, _, slot in slots:
            yield slot


def _length_s(lines: Sequence[Line], minutes: set[int], max_slots: int, *, at_least_s: int = 1) -> int:
    """Return the length of slots, so that there are not too many."""
    least_s = max(at_least_s, len(minutes) * len(lines) * MINUTE_S / max_slots)
    return next((length_s for length_s in LENGTHS_S if length_s >= least_s), MINUTE_S)


def _middle(
    lines: Sequence[Line], minutes: set[int], since_s: float, max_slots: int
) -> tuple[Counter[str], dict[str, float]]:
    """Return the denials by policy, and the time of the first of each, where the limiter decides about each slot."""
    shortest_s = min((window.tier.frame_s for line in lines for window in line.windows), default=MINUTE_S)
    length_s = _length_s(lines, minutes, max_slots, at_least_s=shortest_s // SLOTS_PER_FRAME)
    denials = {id(line): _Denials(line.windows) for line in lines}
    by_policy, first_s = Counter[str](), dict[str, float]()
    for minute_s, slots in groupby(_slots(lines, minutes, length_s), key=attrgetter("minute_s")):
        parts = [part for slot in slots for part in _parts(slot)]
        for at_s, sent, line in sorted(parts, key=itemgetter(0)):
            for policy, denied in denials[id(line)].of(sent, at_s):
                if minute_s >= since_s:
                    by_policy[policy] += denied
                    first_s.setdefault(policy, at_s)
    return by_policy, first_s


def _parts(slot: _Slot) -> Iterator[tuple[float, int, Line]]:
    line, _, start_s, end_s, offered = slot
    parts = min(offered, PARTS)
    for part in range(parts):
        sent = offered * (part + 1) // parts - offered * part // parts
        yield start_s + (end_s - start_s) * (part + 0.5) / parts, sent, line


class _Denials:
    """Denials of the requests that meet some windows."""

    def __init__(self, windows: Sequence[OpenWindow]) -> None:
        self._windows = windows
        self._tiers = tuple(window.tier for window in windows)
        self._known: dict[tuple[float, ...], tuple[str | None, Sequence[OpenWindow]]] = {}  # decisions

    def of(self, count: int, at_s: float) -> Iterator[tuple[str, int]]:
        """Count requests that come at once, and yield those that are denied, with the policy that denies them."""
        while count:
            rooms = [window.tier.limit - window.estimate(at_s) for window in self._windows]
            sent = min([count, *(int(room) for room in rooms if room >= 1)])  # no tier gets full within these
            counting = self._windows
            if min(rooms, default=1) < 1:
                # Which of several tiers denies changes with time, but not often.
                key = (at_s // MINUTE_S, *[room < 1 for room in rooms])
                policy, counting = self._known[key] = self._known.get(key) or self._decide(at_s)
                if not counting:
                    sent = count  # they change nothing, so each of them gets the same answer
                if policy is not None:
                    yield policy, sent
            for window in counting:
                window.add(sent, at_s)
            count -= sent

    def _decide(self, at_s: float) -> tuple[str | None, Sequence[OpenWindow]]:
        """Return the policy that denies a request, None if it is admitted, and the windows in which it counts."""
        contents = [tier.content(window.hits, at_s) for tier, window in zip(self._tiers, self._windows, strict=True)]
        decision = check_limits(Mode.ENFORCE, self._tiers, contents, at_s)
        return None if decision.allowed else decision.policy, list(compress(self._windows, decision.counts))


def _bound(lines: Sequence[Line], minutes: set[int], since_s: float, max_slots: int, *, is_upper: bool) -> int:
    denied, length_s = 0, _length_s(lines, minutes, max_slots)
    for line, minute_s, start_s, end_s, offered in _slots(lines, minutes, length_s, is_exact=True):
        enforced = [window for window in line.windows if window.tier.is_enforced]
        rooms = [(_least_room if is_upper else _most_room)(window, start_s, end_s) for window in enforced]
        admitted = max(0, min([offered, *rooms]))
        if minute_s >= since_s:
            denied += offered - admitted
        for window in line.windows:
            window.add(offered if window.tier.count_denied else admitted, end_s - 1 if is_upper else start_s)
    return denied


def _most_room(window: OpenWindow, start_s: int, end_s: int) -> int:
    """Return what a window admits in a slot at most.

    What it holds when the last request is admitted weighs no more at the end of the slot, unless the estimator weighs
    the present frame by what has passed of it.
    """
    tier, length_s = window.tier, end_s - start_s
    if tier.policy.estimator is Estimator.PROPORTIONAL:
        return MAX_LIMIT
    is_aligned = not (tier.frame_s % length_s and length_s % tier.frame_s)
    if tier.window_s < length_s + (0 if is_aligned else tier.frame_s):
        return tier.limit * (math.ceil(length_s / tier.window_s) + 1)
    return math.ceil(tier.limit - window.estimate(end_s))


def _least_room(window: OpenWindow, start_s: int, _: int) -> int:
    """Return what a window admits in a slot at least: nothing in it weighs more than at the start of the slot."""
    grows = window.tier.policy.estimator is Estimator.PROPORTIONAL
    return math.floor(window.tier.limit - (window.all_hits(start_s) if grows else window.estimate(start_s)))
