"""Minutes of recorded requests, counted as an instance counts them, and decided by a limiter if wanted."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.settings import OFF
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.statistics import MINUTE_S, ClientMinute
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.statistics import TRACKED_RATIO, OpenMinute
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.traffic.formats import SECOND_US, Row

ADMITTED = Decision(Mode.OFF)
ALL_USERS = sys.maxsize // TRACKED_RATIO


class _QuietEvents(DenialEvents):
    def report(self, *args: object, now_s: float, **kwargs: object) -> bool:
        return True


def quiet_limiter(settings: Settings, store: MemoryStore | None, clock: Callable[[], float]) -> Limiter:
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
            yield from (client.snapshot(minute_s, is_complete=True) for client in clients.values())
            minute_s, clients = int(at_s // MINUTE_S) * MINUTE_S, {}
        client = clients.get(row.client)
        if client is None:
            client = clients[row.client] = OpenMinute(row.client, ALL_USERS)
        decision = decide(row)
        client.count(decision, "client" if row.user is None else "user", row.grant or "none", at_s, has_peak=False)
        client.count_token_request(decision, pseudonym_of(row.user), at_s)
    yield from (client.snapshot(minute_s, is_complete=True) for client in clients.values())
