"""Estimated denials under another limit, from recorded statistics.

The statistics know the minute of a request, not its second. A window that begins within a minute holds between none and
all of that minute's requests, so the number of denials has a lower and an upper bound. The estimate between them takes
the share of that minute that fits recorded traffic best. docs/statistics.md lists its errors.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS
from oauth_ratelimit.traffic.minutes import Loads, Subject

SHORT_WINDOW_MINUTES = 4
HELD_OF_SHORT, HELD_OF_LONG = 1 / 3, 1 / 2  # share of the first minute; bursts matter more to short windows


class Effect(NamedTuple):
    """Effect that a limit would have had on one subject: its requests, and the estimated denials with their bounds."""

    subject: Subject
    offered: int
    denied: int
    at_least: int
    at_most: int
    peak: int  # most requests in a minute


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
