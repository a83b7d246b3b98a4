"""Counts requests by client and minute, and writes the counts to the store.

A request costs a few look-ups under a lock that nobody holds for long. Memory is bounded: clients per minute, users per
client, and what waits while the store is unreachable; ``statistics_unrecorded`` says how much is lost.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import DecidedRequest, Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import ENDPOINT, GUARD, MINUTE_S, OTHER_CLIENTS, ClientMinute, Kind
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe.lost_records import LostRecords
from oauth_ratelimit.observe.minute import OpenMinute
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.yielding import yield_between

WRITE_EVERY_S = 10.0
BATCH = 500  # one bulk must not keep the interpreter busy for long
MAX_WAITING = 100_000  # clients and users in ended minutes, about 20 MB
CLOSING_TRIES = 2


class StatisticsWriter(Protocol):
    def put(self, writer: str, minutes: Sequence[ClientMinute], *, keep_s: float) -> Sequence[int]: ...


class _Entry(NamedTuple):
    """Counts of a client to write. Those of a complete minute do not change again."""

    writer: str  # name in the document
    minute_s: int
    client: OpenMinute
    is_complete: bool

    @property
    def size(self) -> int:
        return 1 + len(self.client.users)


class StatisticsRecorder:
    """Counts requests, and writes the counts every ten seconds as a task of the background thread.

    A client that is denied for the first time in a minute is written at once, so that operators see it soon.

    The counts that one writer stores for a minute never shrink. So a late request of a slow thread counts in the next
    minute, and if the clock is set back, the process continues under another writer name.
    """

    def __init__(
        self, writer: StatisticsWriter, *, settings: Callable[[], StatisticsSettings], clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._process = secrets.token_urlsafe(6)
        self._writer = writer
        self._next_s = 0.0
        self._lost = LostRecords("statistics_unrecorded")

        self._lock = threading.Lock()  # guards the attributes below, and the counts of the present minute
        self._restart_count = 0  # how often the clock was put back
        self._minute_s = 0
        self._end_s = 0
        self._clients: dict[str, OpenMinute] = {}
        self._ended: deque[_Entry] = deque()
        self._ended_size = 0
        self._growing: deque[_Entry] = deque()

    @property
    def _writer_name(self) -> str:
        return f"{self._process}-{self._restart_count}"

    def count(self, requests: Iterable[DecidedRequest]) -> None:
        settings = self._settings()
        for request in requests if settings.keep_s else ():
            decision, username, now_s = request.decision, request.username, request.now_s
            kind: Kind = "client" if username is None else "user"
            with self._lock:  # for one request at a time
                client = self._client(request.client_id, settings.clients_per_minute, settings.users_per_client, now_s)
                if request.endpoint == TOKEN_ENDPOINT:
                    client.count(decision, kind, request.grant, now_s)
                    client.count_token_request(decision, username, now_s)
                else:
                    client.count(decision, kind, ENDPOINT + request.endpoint, now_s, f"{request.endpoint}/")

    def count_lifetimes(self, issued: Iterable[tuple[DecidedRequest, object]]) -> None:
        """Count the lifetimes of tokens that were issued for requests."""
        settings = self._settings()
        for request, lifetime_s in issued if settings.keep_s else ():
            with self._lock:
                places = settings.clients_per_minute, settings.users_per_client
                self._client(request.client_id, *places, request.now_s).count_lifetime(lifetime_s)

    def count_guard_denial(self, decision: Decision, client_id: str, *, kind: str, now_s: float) -> None:
        """Count an attempt that the guard denies, or would deny. Nobody has proven to be that client.

        So clients of such attempts get half of the places of a minute: made-up ids must not push out real ones.
        """
        settings = self._settings()
        if not settings.keep_s:
            return
        with self._lock:
            client = self._client(client_id, settings.clients_per_minute // 2, settings.users_per_client, now_s)
            client.count(decision, "client", GUARD + kind, now_s, "guard/", has_peak=False)

    def _client(self, client_id: str, room: int, max_users: int, now_s: float) -> OpenMinute:
        if not self._minute_s <= now_s < self._end_s:
            self._start_minute(now_s)
        client = self._clients.get(client_id)
        if client is not None:
            return client
        name = client_id if len(self._clients) < room else OTHER_CLIENTS
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = OpenMinute(storable_name(name), max_users)
        return client

    def _start_minute(self, now_s: float) -> None:
        """Start the minute of this time, unless a thread was only late."""
        minute_s = int(now_s // MINUTE_S) * MINUTE_S
        if self._minute_s - MINUTE_S <= minute_s < self._minute_s:
            return
        self._end_minute()
        if minute_s < self._minute_s:
            self._restart_count += 1
        self._minute_s, self._end_s = minute_s, minute_s + MINUTE_S

    def _end_minute(self) -> None:
        entries = [_Entry(self._writer_name, self._minute_s, client, True) for client in self._clients.values()]
        self._clients = {}
        self._ended.extend(entries)
        self._ended_size += sum(entry.size for entry in entries)
        lost_count = 0
        while self._ended_size > MAX_WAITING:
            self._ended_size -= self._ended.popleft().size
            lost_count += 1
        self._lost.add(lost_count, reason="MongoDB did not answer for too long")

    def run(self) -> None:
        """Write one bulk at most, because the next sync cycle waits for it."""
        if not self._settings().keep_s:
            with self._lock:
                self._clients, self._ended, self._ended_size = {}, deque(), 0
            return
        now_s = self._clock()
        is_due = not self._next_s - WRITE_EVERY_S <= now_s < self._next_s
        with self._lock:
            if is_due:
                self._next_s = now_s + WRITE_EVERY_S
                if now_s >= self._end_s:
                    self._start_minute(now_s)
            if is_due or not self._growing:
                self._growing = deque(
                    _Entry(self._writer_name, self._minute_s, client, False)
                    for client in self._clients.values()
                    if client.request_count != client.written_count and (is_due or client.is_newly_denied)
                )
        self._write_batch()
        self._lost.log()

    def close(self, deadline: Deadline) -> None:
        """Write the remaining records. The current minute counts as complete."""
        failure_count = 0
        with self._lock:
            self._end_minute()
        while self._ended and failure_count < CLOSING_TRIES and not deadline.is_over:
            failure_count += not self._write_batch()
        self._lost.add(len(self._ended), reason="the process has ended")
        self._lost.log(is_final=True)

    def _write_batch(self) -> bool:
        """Write the first entries, ended minutes first. Return True if the store accepted them."""
        batch = self._take_batch()
        if not batch:
            return True
        minutes: list[ClientMinute] = []
        counts: list[int] = []
        for entry in yield_between(batch):
            with self._lock if not entry.is_complete else nullcontext():  # no request changes one that is over
                counts.append(entry.client.request_count)
                entry.client.is_newly_denied = False
                minutes.append(entry.client.snapshot(entry.minute_s, is_complete=entry.is_complete))
        try:
            refused = self._writer.put(batch[0].writer, minutes, keep_s=self._settings().keep_s)
        except StoreUnavailable:
            with self._lock:
                kept = [entry for entry in batch if entry.is_complete]  # the others are written again later
                self._ended.extendleft(reversed(kept))
                self._ended_size += sum(entry.size for entry in kept)
            return False
        except StoreRejected as exc:
            self._lost.add(sum(entry.is_complete for entry in batch), reason=str(exc))
            return False
        lost_count = sum(batch[index].is_complete for index in refused)
        self._lost.add(lost_count, reason="a document of another form has the same _id")
        for entry, count in zip(batch, counts, strict=True):
            entry.client.written_count = count
        return True

    def _take_batch(self) -> list[_Entry]:
        batch: list[_Entry] = []
        with self._lock:
            waiting = self._ended or self._growing
            while waiting and len(batch) < BATCH and waiting[0].writer == (batch or waiting)[0].writer:
                batch.append(waiting.popleft())
            self._ended_size -= sum(entry.size for entry in batch if entry.is_complete)
        return batch
