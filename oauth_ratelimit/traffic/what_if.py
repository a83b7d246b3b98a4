"""Estimated denials under another limit, from recorded statistics.

The statistics know the minute of a request, not its second. A window that begins within a minute holds between none and
all of that minute's requests, so the number of denials has a lower and an upper bound. The estimate between them takes
the share of that minute that fits recorded traffic best. docs/statistics.md lists its errors.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute

SHORT_WINDOW_MINUTES = 4
HELD_OF_SHORT, HELD_OF_LONG = 1 / 3, 1 / 2  # share of the first minute; bursts matter more to short windows


class Subject(NamedTuple):
    """Client, or user of a client, that has a limit of its own."""

    client_id: str
    username: str | None


Loads = Mapping[Subject, Mapping[int, int]]
"""Requests by subject, and by the start of the minute in seconds since the epoch."""


class Effect(NamedTuple):
    """Effect that a limit would have had on one subject: its requests, and the estimated denials with their bounds."""

    subject: Subject
    offered: int
    denied: int
    at_least: int
    at_most: int
    peak: int  # most requests in a minute


def loads(minutes: Iterable[ClientMinute], kind: LimitKind) -> dict[Subject, dict[int, int]]:
    """Return the requests of each subject, denied ones included and those of trusted clients left out.

    The minutes need their ``users`` for a limit per user. Only the heaviest users of each client are known.
    """
    found: dict[Subject, dict[int, int]] = {}
    for minute in minutes:
        for subject, offered in requests_of(minute, kind):
            load = found.setdefault(subject, {})
            load[minute.minute_s] = load.get(minute.minute_s, 0) + offered
    return found


def requests_of(minute: ClientMinute, kind: LimitKind) -> Iterator[tuple[Subject, int]]:
    """Yield the requests of each subject in a minute of a client; none of a trusted one."""
    tally = minute.tally(None if kind is LimitKind.CLIENT_TOTAL else "user" if kind is LimitKind.USER else "client")
    is_rest = minute.client_id == OTHER_CLIENTS
    if tally.is_mostly_trusted and not is_rest:
        return
    if kind is not LimitKind.USER or is_rest:
        if tally.offered > tally.trusted:
            yield Subject(minute.client_id, None), tally.offered - tally.trusted
        return
    for user in minute.users:
        if user.offered:
            yield Subject(minute.client_id, user.username), user.offered


def rolling_sums(load: Mapping[int, int], span_s: int) -> Iterator[tuple[int, int]]:
    """Yield each start of a load with the requests of all starts in the time span that ends with it."""
    starts = sorted(load)
    inside = first = 0
    for start_s in starts:
        inside += load[start_s]
        while starts[first] <= start_s - span_s:
            inside -= load[starts[first]]
            first += 1
        yield start_s, inside


def effect_of(
    subject: Subject, load: Mapping[int, int], *, limit: int, window_minutes: int, since_s: float = 0.0
) -> Effect:
    """Return the effect that a limit would have had on a subject with this load, its requests by minute.

    Requests before ``since_s`` only fill the first windows.
    """
    held = HELD_OF_SHORT if window_minutes <= SHORT_WINDOW_MINUTES else HELD_OF_LONG
    at_least = denied = at_most = 0.0
    # A window that begins within a minute touches one minute more.
    if max(load.values(), default=0) * min(len(load), window_minutes + 1) > limit:
        at_least, denied, at_most = (
            _denied(load, limit=limit, window_minutes=window_minutes, held=share, since_s=since_s)
            for share in (0.0, held, 1.0)
        )
    counted = [offered for minute_s, offered in load.items() if minute_s >= since_s]
    return Effect(
        subject,
        offered=sum(counted),
        denied=round(denied),
        at_least=round(min(at_least, denied)),
        at_most=round(max(at_most, denied)),
        peak=max(counted, default=0),
    )


def effects(found: Loads, *, limit: int, window_minutes: int, since_s: float = 0.0) -> list[Effect]:
    """Return the effect on each subject with requests, the most denied first.

    ``OTHER_CLIENTS`` is left out: it is many clients, each with a limit of its own.
    """
    all_effects = (
        effect_of(subject, load, limit=limit, window_minutes=window_minutes, since_s=since_s)
        for subject, load in found.items()
        if subject.client_id != OTHER_CLIENTS
    )
    return sorted(
        (effect for effect in all_effects if effect.offered), key=lambda effect: (-effect.denied, -effect.offered)
    )


def excluded_count(found: Loads, *, since_s: float = 0.0) -> int:
    """Return the number of requests that ``effects`` leaves out, because their clients are not known."""
    load = found.get(Subject(OTHER_CLIENTS, None), {})
    return sum(offered for minute_s, offered in load.items() if minute_s >= since_s)


def _denied(load: Mapping[int, int], *, limit: int, window_minutes: int, held: float, since_s: float) -> float:
    """Return the number of denials. Denied requests do not count towards the limit.

    A window holds the share ``held`` of the minute in which it begins.
    """
    denied = 0.0
    window_s = window_minutes * MINUTE_S
    admitted: deque[tuple[int, float]] = deque()
    full = 0.0  # admitted in the minutes that lie wholly in the window
    for minute_s in sorted(load):
        oldest = 0.0  # admitted in the minute that the window begins in
        while admitted and admitted[0][0] <= minute_s - window_s:
            past_s, count = admitted.popleft()
            full -= count
            if past_s == minute_s - window_s:
                oldest = count
        count = min(float(load[minute_s]), max(0.0, limit - full - oldest * held))
        if minute_s >= since_s:
            denied += load[minute_s] - count
        admitted.append((minute_s, count))
        full += count
    return denied
