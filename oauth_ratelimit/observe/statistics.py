"""
Counts what happens, client by client and minute by minute, and has it taken to MongoDB now and then.

A request costs a few look-ups under a lock that nobody holds for long. Memory is bounded: clients per minute, users per
client, and what waits while MongoDB is out of reach; what is lost for that is logged with its number.
"""

import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import ENDPOINT, MINUTE_S, OTHER_CLIENTS
from oauth_ratelimit.observe.metric_labels import GrantNames
from oauth_ratelimit.observe.minute import OpenMinute
from oauth_ratelimit.observe.outbox import Entry, Outbox, StatisticsWriter

WRITE_EVERY_S = 10.0
MAX_WAITING = 100_000  # clients and users in the minutes that wait, about 20 MB
CLOSING_TRIES = 2
CLOSING_S = 2.0  # the limiter's own last flush takes of the same time


class _Minute(NamedTuple):
    """
    All clients in one minute that is over.
    """

    writer: str
    minute_s: int
    clients: Sequence[OpenMinute]

    @property
    def weight(self) -> int:
        return len(self.clients) + sum(len(client.users) for client in self.clients)


class StatisticsRecorder:
    """
    A duty of the background thread, fed by requests.

    Numbers of a minute only ever grow under one name of a writer. So requests that a slower thread brings after the
    minute has ended count in the next one, and a clock that is put back makes the process another writer.

    Args:
        store: Where statistics go.

        settings: Returns what applies now.

        clock: Tells the time, seconds since the epoch.

        offset_s: Returns how far the right time is ahead of the clock.
    """

    def __init__(
        self,
        store: StatisticsWriter,
        *,
        settings: Callable[[], StatisticsSettings],
        clock: Callable[[], float],
        offset_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._read_settings = settings
        self._settings = settings()
        self._is_on = self._settings.keep_s > 0
        self._clock = clock
        self._read_offset_s = offset_s
        self._offset_s = offset_s()
        self._grant_name = GrantNames().of
        self._name = secrets.token_urlsafe(6)
        self._life = 0
        self._next_s = 0.0
        self._lock = threading.Lock()  # guards everything down to the empty line
        self._minute_s = 0
        self._end_s = 0
        self._clients: dict[str, OpenMinute] = {}
        self._over: deque[_Minute] = deque()
        self._over_weight = 0

        self._outbox = Outbox(store, self._lock)

    def note(
        self,
        decision: Decision,
        client_id: str,
        *,
        username: str | None,
        grant_type: str | None,
        endpoint: str,
        is_grant: Callable[[str], bool],
    ) -> None:
        """
        Count one request.

        Args:
            decision: What was decided.

            client_id: Who asked.

            username: For whom, None for nobody.

            grant_type: How, None if that is not known.

            endpoint: Where.

            is_grant: Whether a grant type is one of the server's; any other is not worth a name.
        """
        if not self._is_on:
            return
        if endpoint == TOKEN_ENDPOINT:
            place = None
            grant = self._grant_name(grant_type, is_grant)
        else:
            place, grant = endpoint, ENDPOINT + endpoint
        now_s = self._clock() + self._offset_s
        with self._lock:
            if not self._minute_s <= now_s < self._end_s:
                self._turn(now_s)
            client = self._clients.get(client_id)
            if client is None:
                client = self._begin(client_id)
            client.note(decision, grant, username=username, place=place, now_s=now_s)

    def _begin(self, client_id: str) -> OpenMinute:
        name = client_id if len(self._clients) < self._settings.clients_per_minute else OTHER_CLIENTS
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = OpenMinute(storable_name(name), self._settings.users_per_client)
        return client

    def _turn(self, now_s: float) -> None:
        """
        Begin the minute that it is now, unless a thread was only late.
        """
        minute_s = int(now_s // MINUTE_S) * MINUTE_S
        if self._minute_s - MINUTE_S <= minute_s < self._minute_s:
            return
        if self._clients:
            over = _Minute(f"{self._name}-{self._life}", self._minute_s, list(self._clients.values()))
            self._over.append(over)
            self._over_weight += over.weight
            while self._over_weight > MAX_WAITING:
                oldest = self._over.popleft()
                self._over_weight -= oldest.weight
                self._outbox.lose(len(oldest.clients), reason="MongoDB did not answer for too long")
        if minute_s < self._minute_s:
            self._life += 1
        self._clients = {}
        self._minute_s, self._end_s = minute_s, minute_s + MINUTE_S

    def run(self, now_s: float) -> None:
        """
        Write what is new, if it is time to; one bulk at most, because the next sync cycle waits for it.
        """
        self._settings, self._offset_s = self._read_settings(), self._read_offset_s()
        self._is_on = self._settings.keep_s > 0
        if not self._is_on:
            with self._lock:
                self._clients, self._over, self._over_weight = {}, deque(), 0
            self._outbox.refill(())
            return
        if not self._next_s - WRITE_EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + WRITE_EVERY_S
            self._gather(now_s + self._offset_s)
        if self._outbox:
            self._outbox.write_batch(keep_s=self._settings.keep_s)
        self._outbox.complain(now_s)

    def close(self) -> None:
        """
        Write what is left, as far as two seconds go: the process will not count any more in this minute.
        """
        failure_count = 0
        deadline_s = monotonic() + CLOSING_S
        self._gather(self._end_s)
        while self._outbox and failure_count < CLOSING_TRIES and monotonic() < deadline_s:
            failure_count += not self._outbox.write_batch(keep_s=self._settings.keep_s)
            if not self._outbox:
                self._gather(self._end_s)  # what had to wait behind it
        self._outbox.lose(len(self._outbox.complete) + sum(len(over.clients) for over in self._over))
        self._outbox.complain(math.inf)

    def _gather(self, now_s: float) -> None:
        """
        Line up what is to be written. Minutes that are over come first, and further ones wait until they are through.
        """
        left = self._outbox.complete
        with self._lock:
            if self._clients and now_s >= self._end_s:
                self._turn(now_s)
            if not left:
                over, self._over, self._over_weight = self._over, deque(), 0
                left = [
                    Entry(minute.writer, minute.minute_s, client, is_complete=True)
                    for minute in over
                    for client in minute.clients
                ]
            growing = [
                Entry(f"{self._name}-{self._life}", self._minute_s, client, is_complete=False)
                for client in self._clients.values()
                if client.count != client.written_count
            ]
        self._outbox.refill(left + growing)
