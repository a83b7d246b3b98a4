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

import structlog

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import ENDPOINT, MINUTE_S, OTHER_CLIENTS, Kind, Share
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe.lost_records import LostRecords
from oauth_ratelimit.observe.minute import OpenMinute
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.yielding import yield_between

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 10.0
BATCH = 500  # one bulk must not keep the interpreter busy for long
MAX_WAITING = 100_000  # clients and users in ended minutes, about 20 MB
CLOSING_TRIES = 2


class StatisticsWriter(Protocol):
    """Store of statistics."""

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> Sequence[int]: ...


class _EndedMinute(NamedTuple):
    """All clients in a minute that is over."""

    writer: str
    minute_s: int
    clients: Sequence[OpenMinute]

    @property
    def size(self) -> int:
        return len(self.clients) + sum(len(client.users) for client in self.clients)


class _Entry(NamedTuple):
    """Counts of a client to write.

    Attributes:
        writer: Name of the writer in the document.
        minute_s: Start of the minute, seconds since the epoch.
        client: The counts.
        is_complete: True if the minute is over, so that the counts do not change again.
    """

    writer: str
    minute_s: int
    client: OpenMinute
    is_complete: bool


class Outbox:
    """Entries that are to be written, in order. Only the background thread uses it.

    Args:
        writer: Store of the statistics.
        lock: Guards the counts of clients in a minute that is not over.
        lost: Counts entries that cannot be written.
    """

    def __init__(self, writer: StatisticsWriter, lock: threading.Lock, lost: LostRecords) -> None:
        self._writer = writer
        self._lock = lock
        self._lost = lost
        self._entries: deque[_Entry] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def complete(self) -> list[_Entry]:
        """Entries whose minute is over."""
        return [entry for entry in self._entries if entry.is_complete]

    def replace(self, entries: Iterable[_Entry]) -> None:
        """Hold these entries instead of the present ones."""
        self._entries = deque(entries)

    def write_batch(self, *, keep_s: float) -> bool:
        """Write the first entries. Return True if the store accepted them."""
        batch = self._take_batch()
        shares: list[Share] = []
        counts: list[int] = []
        for entry in yield_between(batch):
            with self._lock if not entry.is_complete else nullcontext():  # no request changes one that is over
                counts.append(entry.client.request_count)
                minute = entry.client.snapshot(entry.minute_s, is_complete=entry.is_complete)
            shares.append(Share(minute, entry.is_complete))
        try:
            refused = self._writer.put(batch[0].writer, shares, keep_s=keep_s)
        except StoreUnavailable:
            self._entries.extendleft(reversed(batch))
            return False
        except StoreRejected as exc:
            self._lose(batch, reason=str(exc))
            return False
        self._lose([batch[index] for index in refused], reason="a document of another form has the same _id")
        for entry, count in zip(batch, counts, strict=True):
            entry.client.written_count = count
        return True

    def _take_batch(self) -> list[_Entry]:
        """Remove and return the first entries of one writer."""
        batch = [self._entries.popleft()]
        while self._entries and len(batch) < BATCH and self._entries[0].writer == batch[0].writer:
            batch.append(self._entries.popleft())
        return batch

    def _lose(self, entries: Sequence[_Entry], *, reason: str) -> None:
        self._lost.add(sum(entry.is_complete for entry in entries), reason=reason)  # the others are written again later


class StatisticsRecorder:
    """Counts requests, and writes the counts every ten seconds as a task of the background thread.

    The counts that one writer stores for a minute never shrink. So a late request of a slow thread counts in the next
    minute, and if the clock is set back, the process continues under another writer name.

    Args:
        writer: Store of the statistics.
        settings: Returns the settings that apply now.
        clock: Returns the corrected time, seconds since the epoch.
    """

    def __init__(
        self, writer: StatisticsWriter, *, settings: Callable[[], StatisticsSettings], clock: Callable[[], float]
    ) -> None:
        self._read_settings = settings
        self._settings = settings()
        self._clock = clock
        self._process = secrets.token_urlsafe(6)
        self._next_s = 0.0
        self._lost = LostRecords()

        self._lock = threading.Lock()  # guards the attributes up to the next empty line
        self._restart_count = 0  # how often the clock was put back
        self._minute_s = 0
        self._end_s = 0
        self._clients: dict[str, OpenMinute] = {}
        self._ended: deque[_EndedMinute] = deque()
        self._ended_size = 0

        self._outbox = Outbox(writer, self._lock, self._lost)

    @property
    def _is_on(self) -> bool:
        return self._settings.keep_s > 0

    @property
    def _writer_name(self) -> str:
        return f"{self._process}-{self._restart_count}"

    def count(
        self,
        decision: Decision,
        client_id: str,
        *,
        username: str | None,
        grant: str,
        endpoint: str = TOKEN_ENDPOINT,
        now_s: float,
    ) -> None:
        """Count one request.

        Args:
            decision: The decision about it.
            client_id: The client.
            username: Pseudonym of the user, None for grants without a user.
            grant: Name of the grant type, one of a bounded number.
            endpoint: Endpoint of the request.
            now_s: Time of the request, seconds since the epoch.
        """
        if not self._is_on:
            return
        prefix = ""
        is_token = endpoint == TOKEN_ENDPOINT
        if not is_token:
            prefix, grant = f"{endpoint}/", ENDPOINT + endpoint
        kind: Kind = "client" if username is None else "user"
        with self._lock:
            if not self._minute_s <= now_s < self._end_s:
                self._start_minute(now_s)
            client = self._clients.get(client_id)
            if client is None:
                client = self._add_client(client_id)
            client.count(decision, kind, grant, policy_prefix=prefix)
            if is_token:
                client.count_token_request(decision, username, now_s)

    def count_lifetime(self, client_id: str, lifetime_s: int) -> None:
        """Count the lifetime of a token, unless the minute of its request is over."""
        with self._lock:
            client = self._clients.get(client_id)
            if client is not None:
                client.count_lifetime(lifetime_s)

    def _add_client(self, client_id: str) -> OpenMinute:
        name = client_id if len(self._clients) < self._settings.clients_per_minute else OTHER_CLIENTS
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = OpenMinute(storable_name(name), self._settings.users_per_client)
        return client

    def _start_minute(self, now_s: float) -> None:
        """Start the minute of this time, unless a thread was only late."""
        minute_s = int(now_s // MINUTE_S) * MINUTE_S
        if self._minute_s - MINUTE_S <= minute_s < self._minute_s:
            return
        if self._clients:
            ended = _EndedMinute(self._writer_name, self._minute_s, list(self._clients.values()))
            self._ended.append(ended)
            self._ended_size += ended.size
            while self._ended_size > MAX_WAITING:
                oldest = self._ended.popleft()
                self._ended_size -= oldest.size
                self._lost.add(len(oldest.clients), reason="MongoDB did not answer for too long")
        if minute_s < self._minute_s:
            self._restart_count += 1
        self._clients = {}
        self._minute_s, self._end_s = minute_s, minute_s + MINUTE_S

    def run(self) -> None:
        """Write one bulk at most, because the next sync cycle waits for it."""
        self._settings = self._read_settings()
        if not self._is_on:
            with self._lock:
                self._clients, self._ended, self._ended_size = {}, deque(), 0
            self._outbox.replace(())
            return
        now_s = self._clock()
        if not self._next_s - WRITE_EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + WRITE_EVERY_S
            self._fill_outbox(now_s)
        if self._outbox:
            self._outbox.write_batch(keep_s=self._settings.keep_s)
        self._log_lost()

    def close(self, deadline: Deadline | None = None) -> None:
        """Write the remaining records. The current minute counts as complete.

        Args:
            deadline: When to give up; None gives it all the time that a process has to end.
        """
        deadline = deadline or Deadline()
        failure_count = 0
        self._fill_outbox(self._end_s)
        while self._outbox and failure_count < CLOSING_TRIES and not deadline.is_over:
            failure_count += not self._outbox.write_batch(keep_s=self._settings.keep_s)
            if not self._outbox:
                self._fill_outbox(self._end_s)  # with minutes that did not fit before
        left_count = len(self._outbox.complete) + sum(len(ended.clients) for ended in self._ended)
        self._lost.add(left_count, reason="the process has ended")
        self._log_lost(is_final=True)

    def _log_lost(self, *, is_final: bool = False) -> None:
        loss = self._lost.take(is_final=is_final)
        if loss is not None:
            log.warning("statistics_unrecorded", count=loss.count, reason=loss.reason)

    def _fill_outbox(self, now_s: float) -> None:
        """Collect the counts to write, ended minutes first, and more of them only when the former are written."""
        complete = self._outbox.complete
        with self._lock:
            if self._clients and now_s >= self._end_s:
                self._start_minute(now_s)
            if not complete:
                ended, self._ended, self._ended_size = self._ended, deque(), 0
                complete = [
                    _Entry(minute.writer, minute.minute_s, client, is_complete=True)
                    for minute in ended
                    for client in minute.clients
                ]
            growing = [
                _Entry(self._writer_name, self._minute_s, client, is_complete=False)
                for client in self._clients.values()
                if client.request_count != client.written_count
            ]
        self._outbox.replace(complete + growing)
