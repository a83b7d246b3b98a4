"""Requests of clients and users by minute, from recorded statistics."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute


class Subject(NamedTuple):
    """Client, or user of a client, that has a limit of its own."""

    client_id: str
    username: str | None


Loads = Mapping[Subject, Mapping[int, int]]
"""Requests by subject, and by the start of the minute in seconds since the epoch."""


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


def excluded_count(found: Loads, *, since_s: float = 0.0) -> int:
    """Return the number of requests that ``effects`` leaves out, because their clients are not known."""
    load = found.get(Subject(OTHER_CLIENTS, None), {})
    return sum(offered for minute_s, offered in load.items() if minute_s >= since_s)
