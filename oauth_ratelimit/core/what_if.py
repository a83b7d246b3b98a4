"""Estimated denials under another limit, from recorded statistics.

The statistics know the minute of a request, not its second. A window that begins within a minute holds between none and
all of that minute's requests, so the number of denials has a lower and an upper bound. The estimate between them takes
the share of that minute that fits recorded traffic best. docs/statistics.md lists its errors.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute, Kind

By = Literal["client", "user", "total"]
"""Requests that a limit counts: those without a user, those of each user, or all of a client."""

SHORT_WINDOW_MINUTES = 4
HELD_OF_SHORT, HELD_OF_LONG = 1 / 3, 1 / 2  # share of the first minute; bursts matter more to short windows


class Subject(NamedTuple):
    """Client or user that has a limit of its own.

    Attributes:
        client_id: The client.
        username: The user, None for a limit of the client.
    """

    client_id: str
    username: str | None


Loads = Mapping[Subject, Mapping[int, int]]
"""Requests by subject, and by the start of the minute in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect that a limit would have had on one subject.

    Args:
        subject: The client or user.
        offered: Number of all requests.
        denied: Estimated number of denials.
        at_least: Lower bound of ``denied``.
        at_most: Upper bound of ``denied``.
        peak: Most requests in a minute.
    """

    subject: Subject
    offered: int
    denied: int
    at_least: int
    at_most: int
    peak: int


def loads(minutes: Iterable[ClientMinute], by: By) -> dict[Subject, dict[int, int]]:
    """Return the requests of each subject, denied ones included and those of trusted clients left out.

    Args:
        minutes: Recorded minutes, with their tallies, and with ``users`` for a limit per user.
        by: Requests that the limit counts. Only the heaviest users of each client are known.
    """
    found: dict[Subject, dict[int, int]] = {}
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
                load = found.setdefault(Subject(minute.client_id, username), {})
                load[minute.minute_s] = load.get(minute.minute_s, 0) + offered
    return found


def effect_of(
    subject: Subject, load: Mapping[int, int], *, limit: int, window_minutes: int, since_s: float = 0.0
) -> Effect:
    """Return the effect that a limit would have had on a subject.

    Args:
        subject: The client or user.
        load: Requests by minute.
        limit: Hits per window.
        window_minutes: Length of the window in minutes.
        since_s: Start of the time to report on. Earlier requests only fill the first windows.
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
    """Return the effect that a limit would have had on each subject with requests, the most denied first.

    ``OTHER_CLIENTS`` is left out: it is many clients, each with a limit of its own.

    Args:
        found: Requests by subject, from ``loads``.
        limit: Hits per window.
        window_minutes: Length of the window in minutes.
        since_s: Start of the time to report on. Earlier requests only fill the first windows.
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

    Args:
        load: Requests by minute.
        limit: Hits per window.
        window_minutes: Length of the window in minutes.
        held: Share of the minute in which a window begins that the window holds.
        since_s: Start of the time to report on.
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
