"""Counts what happens, client by client and minute by minute, and has it taken to MongoDB now and then.

A request costs a few look-ups under a lock that nobody holds for long. Memory is bounded: clients per minute, users per
client, and what waits while MongoDB is out of reach; what is lost for that is logged with its number.
"""

import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import NamedTuple, Protocol

import structlog

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import ENDPOINT, MINUTE_S, OTHER_CLIENTS, Share
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe.minute import OpenMinute
from oauth_ratelimit.process.yielding import gently

log = structlog.get_logger(__name__)

BATCH = 500  # one bulk must not keep the interpreter busy for long
COMPLAIN_EVERY_S = 600.0


class StatisticsWriter(Protocol):
    """Where statistics go: ``store.statistics.StatisticsStore``."""

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> Sequence[int]: ...


class Entry(NamedTuple):
    """What is to be written of a client.

    Attributes:
        writer: Under whose name.
        minute_s: When the minute began, seconds since the epoch.
        client: The counts.
        is_complete: Whether the minute is over, so that they stay as they are.
    """

    writer: str
    minute_s: int
    client: OpenMinute
    is_complete: bool


class Outbox:
    """A line of entries. The background thread alone uses it, but for ``lose``.

    Args:
        store: Where statistics go.
        lock: Guards the counts of clients in a minute that is not over.
    """

    def __init__(self, store: StatisticsWriter, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock
        self._queue: deque[Entry] = deque()
        self._complain_at_s = 0.0
        self._loss_lock = threading.Lock()  # guards what follows
        self._lost_count = 0
        self._reason = ""

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def complete(self) -> list[Entry]:
        """The entries in line whose minute is over."""
        return [entry for entry in self._queue if entry.is_complete]

    def refill(self, entries: Iterable[Entry]) -> None:
        """Take these entries instead of those in line."""
        self._queue = deque(entries)

    def write_batch(self, *, keep_s: float) -> bool:
        """Write the first in line, and return whether there was an answer."""
        batch = self._take_batch()
        shares: list[Share] = []
        counts: list[int] = []
        for entry in gently(batch):
            with self._lock if not entry.is_complete else nullcontext():  # requests have no hold of one that is over
                counts.append(entry.client.count)
                minute = entry.client.minute(entry.minute_s, is_complete=entry.is_complete)
            shares.append(Share(minute, entry.is_complete))
        try:
            refused = self._store.put(batch[0].writer, shares, keep_s=keep_s)
        except StoreUnavailable:
            self._queue.extendleft(reversed(batch))
            return False
        except StoreRejected as exc:
            self._lose_entries(batch, reason=str(exc))
            return False
        self._lose_entries([batch[index] for index in refused], reason="something else is in their place")
        for entry, count in zip(batch, counts, strict=True):
            entry.client.written_count = count
        return True

    def _take_batch(self) -> list[Entry]:
        """Return the first in line that one writer has, out of it."""
        batch = [self._queue.popleft()]
        while self._queue and len(batch) < BATCH and self._queue[0].writer == batch[0].writer:
            batch.append(self._queue.popleft())
        return batch

    def lose(self, count: int, *, reason: str | None = None) -> None:
        """Note that the minutes of so many clients are lost; without a reason, for the last one given."""
        with self._loss_lock:
            self._lost_count += count
            self._reason = reason or self._reason

    def _lose_entries(self, entries: Sequence[Entry], *, reason: str) -> None:
        count = sum(entry.is_complete for entry in entries)  # the others come again
        if count:
            self.lose(count, reason=reason)

    def complain(self, now_s: float) -> None:
        """Say how many minutes of clients are missing, once in a while; at infinity whatever was said before."""
        if not self._lost_count or self._complain_at_s - COMPLAIN_EVERY_S <= now_s < self._complain_at_s:
            return
        self._complain_at_s = now_s + COMPLAIN_EVERY_S
        with self._loss_lock:
            count, self._lost_count = self._lost_count, 0
        log.warning("statistics_unrecorded", count=count, reason=self._reason)


WRITE_EVERY_S = 10.0
MAX_WAITING = 100_000  # clients and users in the minutes that wait, about 20 MB
CLOSING_TRIES = 2
CLOSING_S = 2.0  # the limiter's own last flush takes of the same time


class _Minute(NamedTuple):
    """All clients in one minute that is over."""

    writer: str
    minute_s: int
    clients: Sequence[OpenMinute]

    @property
    def weight(self) -> int:
        return len(self.clients) + sum(len(client.users) for client in self.clients)


class StatisticsRecorder:
    """A duty of the background thread, fed by requests.

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

    def count(
        self, decision: Decision, client_id: str, *, username: str | None, grant: str, endpoint: str = TOKEN_ENDPOINT
    ) -> None:
        """Count one request.

        Args:
            decision: The decision about it.
            client_id: The client.
            username: Pseudonym of the user, None for grants without a user.
            grant: Name of the grant type, one of a bounded number.
            endpoint: Endpoint of the request.
        """
        if not self._is_on:
            return
        place = None
        if endpoint != TOKEN_ENDPOINT:
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
        """Begin the minute that it is now, unless a thread was only late."""
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
        """Write what is new, if it is time to; one bulk at most, because the next sync cycle waits for it."""
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
        """Write what is left, as far as two seconds go: the process will not count any more in this minute."""
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
