"""Counts of requests by client and minute, which are written to the store.

A request costs a few look-ups under a lock that nobody holds for long. Memory is bounded: clients per minute, users per
client, and what waits while the store is unreachable; ``statistics_unrecorded`` says how much is lost.
"""

import secrets
import threading
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from heapq import nlargest

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import Answer, DecidedRequest, Decision, outcome_of
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import (
    ENDPOINT,
    GUARD,
    MINUTE_S,
    OTHER_CLIENTS,
    OVER,
    ClientMinute,
    Denials,
    Kind,
    Peak,
    Source,
    Tally,
    UserLoad,
    register_of,
)
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import LostRecords
from oauth_ratelimit.process.yielding import yield_between
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

WRITE_EVERY_S = 10.0
BATCH = 500  # one bulk must not keep the interpreter busy for long
MAX_WAITING = 100_000  # users in ended minutes, about 25 MB
CLIENT_SIZE = 8  # users whose memory the counts of a client take
CLOSING_TRIES = 2
MAX_LIFETIMES = 8  # different ones in a minute; a server that computes each from the time of day would have thousands
MAX_LIFETIME_S = 100 * 366 * 86_400  # more is a mistake
TRACKED_RATIO = 10  # tracked users per reported one, so that the heaviest are among them


class OpenMinute:
    """Counts of a client, which grow until the minute is over. Not thread-safe.

    ``writer`` is their name in the document. ``max_users`` are reported by name. When there are too many in ``users``,
    the lighter half is dropped.
    """

    def __init__(self, client_id: str, minute_s: int, *, max_users: int, writer: str = "") -> None:
        self.client_id = client_id
        self.minute_s = minute_s
        self.writer = writer
        self.is_over = False
        self.request_count = 0
        self.written_count = 0  # of the requests in the counts that were written last
        self.is_newly_denied = False  # for the first time in the minute with this outcome, and not written since
        self.users: dict[str, list[int]] = {}  # all, denied and would-be denied requests
        self._max_users = max_users
        self._tallies: defaultdict[tuple[Kind, str], Counter[str]] = defaultdict(Counter)  # by kind and grant
        self._peaks: dict[str, Peak] = {}
        self._denials: dict[tuple[str, str, str], Denials] = {}
        self._registers: dict[int, int] = {}  # of users that were dropped
        self._seconds = array("L", [0]) * MINUTE_S
        self._lifetimes: Counter[int] = Counter()

    def count(
        self,
        decision: Decision,
        kind: Kind,
        grant: str,
        now_s: float,
        policy_prefix: str = "",
        *,
        has_peak: bool = True,
    ) -> None:
        """Count a request at any endpoint; without ``has_peak`` the use of its limits is left out."""
        self.request_count += 1
        tally = self._tallies[kind, grant]
        outcome: str = outcome_of(decision)
        if decision.answer is Answer.REUSABLE:
            outcome = "would_deny" if decision.allowed else "denied"
            tally["would_reuse"] += 1
        tally[outcome] += 1
        tally["retries"] += decision.is_early
        if outcome in OVER:
            self.is_newly_denied |= all(other != outcome for _, _, other in self._denials)
            key, second = (f"{policy_prefix}{decision.policy}", grant, outcome), int(now_s)
            new = Denials(0, second, second, decision.limit or 0, decision.window_s or 0)
            known = self._denials.get(key, new)
            self._denials[key] = known._replace(total=known.total + 1, last_s=max(known.last_s, second))
        for tier, content in zip(decision.tiers, decision.counted, strict=True) if has_peak else ():
            used, name = content.estimate, policy_prefix + tier.policy.name
            peak, share = self._peaks.get(name), used / tier.limit
            if peak is None or share > peak.share:
                self._peaks[name] = Peak(share, used, tier.limit, tier.window_s)

    def count_token_request(self, decision: Decision, username: str | None, now_s: float) -> None:
        """Count the user and the second of a request at the token endpoint."""
        if username is not None:
            user = self.users.get(username) or self._track(storable_name(username))
            user[0] += 1
            if decision.denial is not None:
                user[2 if decision.allowed else 1] += 1
        self._seconds[int(now_s) % MINUTE_S] += 1

    def count_lifetime(self, lifetime_s: object) -> None:
        """Count the lifetime of the request's token, if it is whole seconds."""
        if type(lifetime_s) is not int or not 0 < lifetime_s <= MAX_LIFETIME_S:
            return
        if lifetime_s in self._lifetimes or len(self._lifetimes) < MAX_LIFETIMES:
            self._lifetimes[lifetime_s] += 1

    def _track(self, name: str) -> list[int]:
        """Return the counts of a user, who may be new."""
        if name not in self.users and len(self.users) >= self._max_users * TRACKED_RATIO:
            self._registers = self._all_registers()
            self.users = dict(self._heaviest_users(len(self.users) // 2))
        return self.users.setdefault(name, [0, 0, 0])

    @property
    def size(self) -> int:
        return CLIENT_SIZE + len(self.users)

    def snapshot(self, *, is_complete: bool) -> ClientMinute:
        """Return the present counts; users only if the minute is over."""
        heaviest = self._heaviest_users(self._max_users) if is_complete else ()
        return ClientMinute(
            client_id=self.client_id,
            minute_s=self.minute_s,
            tallies={Source(*source): Tally(**tally) for source, tally in self._tallies.items()},
            peaks=dict(self._peaks),
            denials=dict(self._denials),
            users=tuple(UserLoad(name, *counts) for name, counts in heaviest),
            registers=self._all_registers() if is_complete else {},
            seconds=tuple(self._seconds) if any(self._seconds) else (),
            lifetimes=dict(self._lifetimes),
        )

    def _heaviest_users(self, max_count: int) -> list[tuple[str, list[int]]]:
        return nlargest(max_count, self.users.items(), key=lambda user: user[1][0])

    def _all_registers(self) -> dict[int, int]:
        registers = dict(self._registers)
        for register, rank in map(register_of, self.users):
            registers[register] = max(rank, registers.get(register, 0))
        return registers


class StatisticsRecorder:
    """Counts of requests, written every ten seconds by a task of the background thread.

    A client that is denied for the first time in a minute is written at once, so that operators see it soon.

    The counts that one writer stores for a minute never shrink. So a late request of a slow thread counts in the next
    minute, and if the clock is set back, the process continues under another writer name.
    """

    def __init__(
        self, store: StatisticsStore, *, settings: Callable[[], StatisticsSettings], clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._process = secrets.token_urlsafe(6)
        self._store = store
        self._next_s = 0.0
        self._lost = LostRecords("statistics_unrecorded")

        self._lock = threading.Lock()  # guards the attributes below, and the counts of the present minute
        self._restart_count = 0  # how often the clock was put back
        self._minute_s = 0
        self._end_s = 0
        self._clients: dict[str, OpenMinute] = {}
        self._ended: deque[OpenMinute] = deque()
        self._ended_size = 0
        self._growing: deque[OpenMinute] = deque()

    @property
    def _writer_name(self) -> str:
        return f"{self._process}-{self._restart_count}"

    def count(self, requests: Iterable[DecidedRequest]) -> None:
        settings = self._settings()
        for request in requests if settings.keep_s else ():
            decision, username, now_s = request.decision, request.username, request.now_s
            kind: Kind = "client" if username is None else "user"
            with self._lock:  # for one request at a time
                client = self._client(settings, request.client_id, now_s)
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
                self._client(settings, request.client_id, request.now_s).count_lifetime(lifetime_s)

    def count_guard_denial(self, decision: Decision, client_id: str, *, kind: str, now_s: float) -> None:
        """Count an attempt that the guard denies, or would deny. Nobody has proven to be that client.

        So clients of such attempts get half of the places of a minute: made-up ids must not push out real ones.
        """
        settings = self._settings()
        if not settings.keep_s:
            return
        with self._lock:
            client = self._client(settings, client_id, now_s, is_proven=False)
            client.count(decision, "client", GUARD + kind, now_s, "guard/", has_peak=False)

    def _client(
        self, settings: StatisticsSettings, client_id: str, now_s: float, *, is_proven: bool = True
    ) -> OpenMinute:
        if not self._minute_s <= now_s < self._end_s:
            self._start_minute(now_s)
        room = settings.clients_per_minute if is_proven else settings.clients_per_minute // 2
        name = client_id if client_id in self._clients or len(self._clients) < room else OTHER_CLIENTS
        if name not in self._clients:
            self._clients[name] = OpenMinute(
                storable_name(name), self._minute_s, max_users=settings.users_per_client, writer=self._writer_name
            )
        return self._clients[name]

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
        for client in self._clients.values():
            client.is_over = True
            self._ended.append(client)
            self._ended_size += client.size
        self._clients, self._growing = {}, deque()
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
                    client
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
        """Write the first counts, those of ended minutes first. Return True if the store accepted them."""
        batch: list[OpenMinute] = []
        with self._lock:
            are_ended = bool(self._ended)
            waiting = self._ended if are_ended else self._growing
            while waiting and len(batch) < BATCH and waiting[0].writer == (batch or waiting)[0].writer:
                batch.append(waiting.popleft())
            self._ended_size -= sum(client.size for client in batch) if are_ended else 0
        if not batch:
            return True
        minutes: list[ClientMinute] = []
        counts: list[int] = []
        for client in yield_between(batch):
            with self._lock if not client.is_over else nullcontext():  # no request changes one that is over
                counts.append(client.request_count)
                client.is_newly_denied = False
                minutes.append(client.snapshot(is_complete=client.is_over))
        try:
            refused = self._store.put(batch[0].writer, minutes, keep_s=self._settings().keep_s)
        except StoreUnavailable:
            if are_ended:  # the others are written again later
                with self._lock:
                    self._ended.extendleft(reversed(batch))
                    self._ended_size += sum(client.size for client in batch)
            return False
        except StoreRejected as exc:
            self._lost.add(len(batch) if are_ended else 0, reason=str(exc))
            return False
        self._lost.add(len(refused) if are_ended else 0, reason="a document of another form has the same _id")
        for client, count in zip(batch, counts, strict=True):
            client.written_count = count
        return True
