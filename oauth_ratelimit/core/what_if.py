"""Who would have been denied under another limit, from what the statistics have recorded.

An approximation, because a minute is all that is known of when requests came. A window that begins within a minute
holds some of that minute: none of its requests at best, all of them at worst, and so the number of denials has two
bounds. In between, the window is taken to hold the share of that minute that fits recorded traffic best; the errors are
in docs/statistics.md.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute, Kind

By = Literal["client", "user", "total"]
"""
What a limit counts, as ``limits`` in the configuration: requests without a user, those of each user, all of a client.
"""

SHORT_WINDOW_MINUTES = 4
HELD_OF_SHORT, HELD_OF_LONG = 1 / 3, 1 / 2  # of the minute that a window begins in; bursts matter more to short windows


class Bearer(NamedTuple):
    """Whose limit it is.

    Attributes:
        client_id: The client.
        username: The user, None for all that the client's own limit counts.
    """

    client_id: str
    username: str | None


Loads = Mapping[Bearer, Mapping[int, int]]
"""Requests by whom, and by the start of the minute in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a limit would have done to one bearer.

    Args:
        bearer: Whose requests.
        offered: All requests.
        denied: Those denied, about.
        at_least: The lower bound of that.
        at_most: The upper bound.
        peak: Most requests in a minute.
    """

    bearer: Bearer
    offered: int
    denied: int
    at_least: int
    at_most: int
    peak: int


def loads(minutes: Iterable[ClientMinute], by: By) -> dict[Bearer, dict[int, int]]:
    """Return what was offered, denied requests included.

    Args:
        minutes: The statistics, with the parts ``by``, and ``users`` for users.
        by: What the limit counts. Of users, only those are known that were among the heaviest of their client.

    Returns:
        The requests, without those of trusted clients. Those of ``OTHER_CLIENTS`` stand under it, without a user.
    """
    found: dict[Bearer, dict[int, int]] = {}
    kind: Kind | None = None if by == "total" else by
    for minute in minutes:
        tally = minute.tally(kind)
        is_rest = minute.client_id == OTHER_CLIENTS
        if not is_rest and tally.trusted * 2 > tally.offered:
            continue
        offers: list[tuple[str | None, int]]
        if by == "user" and not is_rest:
            offers = [(user.username, user.offered) for user in minute.users]
        else:
            offers = [(None, tally.offered - tally.trusted)]
        for username, offered in offers:
            if offered:
                load = found.setdefault(Bearer(minute.client_id, username), {})
                load[minute.minute_s] = load.get(minute.minute_s, 0) + offered
    return found


def effect_of(
    bearer: Bearer, load: Mapping[int, int], *, limit: int, window_minutes: int, since_s: float = 0.0
) -> Effect:
    """Return what a limit would have done to a bearer.

    Args:
        bearer: Whose requests.
        load: They, by minute. Those before ``since_s`` fill the first windows.
        limit: Hits per window.
        window_minutes: The window.
        since_s: What came before is not told of.
    """
    held = HELD_OF_SHORT if window_minutes <= SHORT_WINDOW_MINUTES else HELD_OF_LONG
    at_least, denied, at_most = (
        _denied(load, limit=limit, window_minutes=window_minutes, held=share, since_s=since_s)
        for share in (0.0, held, 1.0)
    )
    counted = [offered for minute_s, offered in load.items() if minute_s >= since_s]
    return Effect(
        bearer,
        offered=sum(counted),
        denied=round(denied),
        at_least=round(min(at_least, denied)),
        at_most=round(max(at_most, denied)),
        peak=max(counted, default=0),
    )


def effects(found: Loads, *, limit: int, window_minutes: int, since_s: float = 0.0) -> list[Effect]:
    """Return what a limit would have done to each bearer with requests, the most denied first.

    Not to ``OTHER_CLIENTS``: those are many, each with a limit of its own.

    Args:
        found: What was offered.
        limit: Hits per window.
        window_minutes: The window.
        since_s: What came before only fills the first windows.
    """
    all_effects = (
        effect_of(bearer, load, limit=limit, window_minutes=window_minutes, since_s=since_s)
        for bearer, load in found.items()
        if bearer.client_id != OTHER_CLIENTS
    )
    return sorted(
        (effect for effect in all_effects if effect.offered), key=lambda effect: (-effect.denied, -effect.offered)
    )


def unjudged_count(found: Loads, *, since_s: float = 0.0) -> int:
    """Return how many requests ``effects`` leaves out, because it is not known whose they are."""
    load = found.get(Bearer(OTHER_CLIENTS, None), {})
    return sum(offered for minute_s, offered in load.items() if minute_s >= since_s)


def _denied(load: Mapping[int, int], *, limit: int, window_minutes: int, held: float, since_s: float) -> float:
    """Return how many would have been denied. What is denied does not count, as with the limits themselves.

    Args:
        load: Requests by minute.
        limit: Hits per window.
        window_minutes: The window.
        held: How much of the minute that it begins in a window holds.
        since_s: What was denied before is left out.
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
