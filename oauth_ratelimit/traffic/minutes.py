"""Minutes of recorded requests, counted as an instance counts, and the requests of clients and users in them."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.settings import OFF
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, ClientMinute, Tally
from oauth_ratelimit.counters.rules import EVERY_CLIENT
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.statistics import TRACKED_RATIO, OpenMinute
from oauth_ratelimit.operations.format import Record, utc_time
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.traffic.formats import SECOND_US, Row

EVEN = (1,) * MINUTE_S
MAX_RECORDS = 100  # clients and users of a replay
OF_USERS = (LimitKind.USER, LimitKind.USER_TOTAL)
ADMITTED = Decision(Mode.OFF)
ALL_USERS = sys.maxsize // TRACKED_RATIO


class Subject(NamedTuple):
    """Client, user of a client, or user of all clients together, that has a limit of its own."""

    client_id: str
    username: str | None


class MinuteLoad(NamedTuple):
    """Requests of a subject in one minute."""

    offered: int
    # Token requests of its client by second, empty if not recorded. They are those of the subject if ``offered`` is
    # their sum; else its requests are assumed to be spread like them.
    seconds: Sequence[int] = ()

    @property
    def resolution_s(self) -> int:
        """Length of the shortest periods of which the number of requests is known."""
        return 1 if sum(self.seconds) == self.offered else MINUTE_S

    def by_second(self) -> list[int]:
        """Return the number of requests before each second of the minute, and before its end."""
        spread = self.seconds if any(self.seconds) else EVEN
        total = sum(spread)
        return [self.offered * count // total for count in accumulate(spread, initial=0)]


Loads = dict[Subject, dict[int, MinuteLoad]]
"""Requests by subject, and by the start of the minute in seconds since the epoch."""


def loads(minutes: Iterable[ClientMinute], kind: LimitKind) -> Loads:
    """Return the requests of each subject, denied ones included and those of trusted clients left out.

    The minutes need their ``users`` for a limit per user. Only the heaviest users of each client are known.
    """
    found: Loads = {}
    for minute in minutes:
        for subject, offered in requests_of(minute, kind):
            own = found.setdefault(subject, {})
            known = own.get(minute.minute_s)  # through another client
            own[minute.minute_s] = MinuteLoad(known.offered + offered) if known else MinuteLoad(offered, minute.seconds)
    return found


def requests_of(minute: ClientMinute, kind: LimitKind) -> Iterator[tuple[Subject, int]]:
    """Yield the requests of each subject in a minute of a client; none of a trusted one."""
    is_of_users = kind in OF_USERS
    tally = minute.tally(None if kind is LimitKind.CLIENT_TOTAL else "user" if is_of_users else "client")
    is_rest = minute.client_id == OTHER_CLIENTS
    if tally.is_mostly_trusted and not is_rest:
        return
    if not is_of_users or is_rest:
        if tally.offered > tally.trusted:
            yield Subject(minute.client_id, None), tally.offered - tally.trusted
        return
    for user in minute.users:
        if user.offered:
            yield Subject(minute.client_id if kind is LimitKind.USER else EVERY_CLIENT, user.username), user.offered


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
        if self._kind in OF_USERS or not tally.over:
            return None
        return round(denied * (tally.reused + tally.would_reuse) / tally.over)


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
    """Return the number of requests of clients that are not known by name."""
    load = found.get(Subject(OTHER_CLIENTS, None), {})
    return sum(minute.offered for minute_s, minute in load.items() if minute_s >= since_s)


class _QuietEvents(DenialEvents):
    def report(self, *args: object, now_s: float, **kwargs: object) -> bool:
        return False


def quiet_limiter(settings: Settings, store: CounterStore | None, clock: Callable[[], float]) -> Limiter:
    """Return a limiter in the time of a clock that logs no denials: a recording may hold millions."""
    return Limiter(
        replace(settings, host=OFF),
        store,
        clock=clock,
        monotonic=clock,
        denial_events=_QuietEvents(1),
        follows_store_clock=True,
    )


class Replayed:
    """Requests that a limiter decides in their own time. Users have their pseudonyms."""

    def __init__(self, settings: Settings) -> None:
        self.unlimited_count = 0  # requests that no limit applies to
        self._now_s = 0.0
        settings = replace(settings, store=replace(settings.store, uri=None))
        self._limiter = quiet_limiter(settings, None, lambda: self._now_s)

    def minutes(self, rows: Iterable[Row]) -> Iterator[ClientMinute]:
        """Yield the minutes of rows in the order of time, with all users."""
        return minutes_of_rows(rows, self._decide, self._limiter.pseudonym_of)

    def close(self) -> None:
        self._limiter.close()

    def _decide(self, row: Row) -> Decision:
        now_s = row.at_us / SECOND_US
        if now_s // MINUTE_S != self._now_s // MINUTE_S:
            self._limiter.sync(is_scheduled=True)  # forgets idle keys
        self._now_s = now_s
        decision = self._limiter.check(row.client, row.user, grant_type=row.grant)
        self.unlimited_count += not (decision.tiers or decision.trusted)
        return decision


def minutes_of_rows(
    rows: Iterable[Row],
    decide: Callable[[Row], Decision] = lambda _: ADMITTED,
    pseudonym_of: Callable[[str | None], str | None] = lambda username: username,
) -> Iterator[ClientMinute]:
    """Yield the minutes of rows in the order of time, with all users."""
    minute_s = 0
    clients: dict[str, OpenMinute] = {}
    for row in rows:
        at_s = row.at_us / SECOND_US
        if not minute_s <= at_s < minute_s + MINUTE_S:
            yield from (client.snapshot(is_complete=True) for client in clients.values())
            minute_s, clients = int(at_s // MINUTE_S) * MINUTE_S, {}
        client = clients.get(row.client)
        if client is None:
            client = clients[row.client] = OpenMinute(row.client, minute_s, max_users=ALL_USERS)
        decision = decide(row)
        client.count(decision, "client" if row.user is None else "user", row.grant or "none", at_s, has_peak=False)
        client.count_token_request(decision, pseudonym_of(row.user), at_s)
    yield from (client.snapshot(is_complete=True) for client in clients.values())


def denials_data(minutes: Iterable[ClientMinute]) -> Record:
    """Return requests over a limit: by limit, of the clients and users with most, and in the busiest minute."""
    tallies: dict[str, Tally] = {}
    by_limit, by_user, by_minute = Counter[tuple[str, int, int]](), Counter[tuple[str, str]](), Counter[int]()
    for minute in minutes:
        tally = minute.tally()
        tallies[minute.client_id] = tallies.get(minute.client_id, NO_REQUESTS) + tally
        by_minute[minute.minute_s] += tally.over
        for (policy, _, _), denials in minute.denials.items():
            by_limit[policy, denials.limit, denials.window_s] += denials.total
        by_user.update({(minute.client_id, user.username): user.over for user in minute.users if user.over})
    total, users = sum(tallies.values(), NO_REQUESTS), Counter(client_id for client_id, _ in by_user)
    clients = sorted((name for name in tallies if tallies[name].over), key=lambda name: -tallies[name].over)
    busiest_s = min(by_minute, key=lambda minute_s: (-by_minute[minute_s], minute_s), default=0)
    return {
        "trusted": total.trusted,
        "denied": total.denied,
        "over": total.over,
        "client_count": len(clients),
        "user_count": len(by_user),
        "busiest_minute": utc_time(busiest_s) if total.over else None,
        "busiest_minute_over": by_minute[busiest_s],
        "by_limit": [
            {"policy": name, "limit": limit, "window_s": window_s, "over": count}
            for (name, limit, window_s), count in by_limit.most_common()
        ],
        "clients": [
            {
                "client_id": name,
                "requests": tallies[name].offered,
                "over": tallies[name].over,
                "user_count": users[name],
            }
            for name in clients[:MAX_RECORDS]
        ],
        "users": [
            {"client_id": client_id, "username": user, "over": count}
            for (client_id, user), count in by_user.most_common(MAX_RECORDS)
        ],
    }
