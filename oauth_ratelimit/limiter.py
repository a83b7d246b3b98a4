"""The limiter: decides about requests and shares its counters."""

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import chain

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision, check_cost
from oauth_ratelimit.core.key import Key, cross_site_name, storable_name
from oauth_ratelimit.core.policy import CLIENT_CREDENTIALS, TOKEN_ENDPOINT
from oauth_ratelimit.counters.counter import RequestCounter
from oauth_ratelimit.counters.host import Host
from oauth_ratelimit.counters.host_place import HostPlace, named_place
from oauth_ratelimit.counters.rules import ClientRules, Rows, RuleBook, key_of
from oauth_ratelimit.counters.steps import OpenRequest
from oauth_ratelimit.counters.table import HostTable
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.process.deadline import Deadline, uptime_s
from oauth_ratelimit.process.fork import call_in_child
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.factory import open_counters
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.cycle import SyncCycle
from oauth_ratelimit.sync.flusher import CycleReport

REUSED_GRANTS = (CLIENT_CREDENTIALS, None)  # grant types whose tokens may be reused; None is not known


class Limiter:
    """Rate limiter that decides in memory and shares its counters through a store.

    It is thread-safe and starts no thread: its owner calls ``sync``.

    Args:
        settings: Settings from ``load_config``.
        store: The store that shares the counters; None opens the one in the settings, if there is one.
        clock: Returns the time in seconds since the epoch. The clocks of all instances must roughly agree.
        denial_events: Logs denials; None creates one.
        follows_store_clock: Go by the store's clock instead, measured before the first flush and from then on.
        monotonic: Returns the time of a clock that is never set, in seconds.
        place: File that it counts in together with other processes; None goes by ``settings.host``, ``auto`` is none.
        keeps_held: Count held requests apart without a store, too, as ``hold_guess`` needs it.
    """

    def __init__(
        self,
        settings: Settings,
        store: CounterStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
        denial_events: DenialEvents | None = None,
        follows_store_clock: bool = False,
        monotonic: Callable[[], float] = uptime_s,
        place: HostPlace | None = None,
        keeps_held: bool = False,
    ) -> None:
        self.settings = settings
        self._keeps_held = keeps_held
        self._given_clock = clock
        self._follows_store_clock = follows_store_clock
        self._monotonic = monotonic
        self._store = store if store is not None else open_counters(settings.store)
        if place is None and settings.host_path is not None:
            place = named_place(settings.host_path, settings.service)
        self.place = place
        self._pseudonyms = None if settings.privacy.key is None else settings.privacy.pseudonyms()
        self.denial_events = denial_events or DenialEvents(settings.events.per_minute)
        self._start_empty()
        call_in_child(self.forget_parent)

    def _start_empty(self) -> None:
        self._clock_lock = threading.RLock()  # guards the clock
        self._clock = self._given_clock
        if self._follows_store_clock and self.place is not None:
            self._clock = self._first_time_s
        settings, is_shared = self.settings, self._store is not None
        self._rules = RuleBook(settings.policies, max_keys=settings.max_keys)
        self.host = Host(
            place=self.place,
            patience_s=settings.store.timeout_s + 2 * settings.sync.interval_s,
            monotonic=self._monotonic,
        )
        self._table = HostTable(self.host, max_keys=settings.max_keys)
        self._counter = RequestCounter(
            self._table,
            is_shared=is_shared,
            keeps_held=self._keeps_held,
            interval_s=settings.sync.interval_s,
            max_interval_s=settings.sync.max_interval_s,
            clock=self.now_s,
            limits_of=lambda name: self._rules.limits_of(key_of(name)),
        )
        self._server_clock: ServerClock | None = None
        if self._store is not None:
            self._server_clock = ServerClock(
                self._store,
                wall=self._given_clock if self._follows_store_clock else time.time,
                monotonic=self._monotonic,
                on_change=self._correct_clock if self._follows_store_clock else None,
            )
        self._cycle_lock = threading.Lock()  # guards the session of the store: one cycle at a time
        self.cycle = self._cycle_of(self.host)
        self._left: list[SyncCycle] = []  # of files that were replaced, until their hits are sent

    def _cycle_of(self, host: Host) -> SyncCycle:
        return SyncCycle(
            self._store,
            self._table if host is self.host else HostTable(host, max_keys=self.settings.max_keys),
            lambda: self._rules,
            interval_s=self.settings.sync.interval_s,
            max_interval_s=self.settings.sync.max_interval_s,
            clock=self.now_s,
            server_clock=self._server_clock,
            lock=self._cycle_lock,
        )

    def pseudonym_of(self, username: str | None) -> str | None:
        """Return the username as the store, logs and hooks have it: the name itself, or its keyed hash.

        The other methods take the name and hash it themselves.
        """
        return username if self._pseudonyms is None else self._pseudonyms(username)

    def check(
        self,
        client_id: str,
        username: str | None = None,
        *,
        endpoint: str = TOKEN_ENDPOINT,
        cost: int = 1,
        grant_type: str | None = None,
    ) -> Decision:
        """Decide about a request, and count it if it is admitted or would be under enforce.

        Args:
            client_id: The authenticated client.
            username: The resource owner, None for grants without a user.
            endpoint: The endpoint that the request came to.
            cost: Hits that the request consumes.
            grant_type: Matters if a grant type is counted apart.

        Raises:
            TypeError: An id is not text.
            ValueError: The cost is not a whole number from 1 to 2^53.
        """
        check_cost(cost)
        return self._decide(client_id, username, endpoint, grant_type, cost=cost)[0]

    def hold(
        self,
        client_id: str,
        username: str | None = None,
        *,
        endpoint: str = TOKEN_ENDPOINT,
        grant_type: str | None = None,
        is_cross_site: bool = False,
    ) -> tuple[Decision, OpenRequest | None]:
        """Decide as ``check`` does. A request that is within its limits is not sent before ``confirm``.

        Pass what it returns to ``confirm`` once the response is known, or to ``take_back`` if the server has failed.
        With ``is_cross_site`` it counts in a limit as large as the user's, not in the user's.
        """
        return self._decide(client_id, username, endpoint, grant_type, holds=True, is_cross_site=is_cross_site)

    def _decide(
        self,
        client_id: str,
        username: str | None,
        endpoint: str,
        grant_type: str | None,
        *,
        cost: int = 1,
        holds: bool = False,
        is_cross_site: bool = False,
        is_counted: bool = True,
    ) -> tuple[Decision, OpenRequest | None]:
        pseudonym = username if self._pseudonyms is None else self._pseudonyms(username)
        if is_cross_site and pseudonym is not None:
            pseudonym = cross_site_name(pseudonym)
        rules = self._rules.find(client_id, endpoint, grant_type)
        if rules.exempt is not None:
            return rules.exempt, None
        can_reuse = username is None and grant_type in REUSED_GRANTS and endpoint == TOKEN_ENDPOINT
        rows, now_s = rules.rows_of(pseudonym), self._clock()
        decision, held = self._counter.decide(
            rules.mode, rows, now_s=now_s, cost=cost, can_reuse=can_reuse, holds=holds, is_counted=is_counted
        )
        if is_counted and decision.denial is not None and decision.action != "reuse":
            self._report(rules, pseudonym, decision, grant_type)
        return decision, held

    def confirm(self, held: OpenRequest | None) -> None:
        """Have a request sent that was held."""
        self._counter.confirm(held, now_s=self._clock())

    def take_back(self, held: OpenRequest | None) -> bool:
        """Take a request that was held out of the counters, and return whether it was.

        At most ``limit`` requests of a window are taken back; any further one is to be confirmed.
        """
        return self._counter.take_back(held, now_s=self._clock())

    def hold_guess(self, keys: Sequence[Key]) -> tuple[Decision, OpenRequest | None]:
        """Decide about a guess that counts against several keys if it is wrong, and count it in all of them or in none.

        Pass what it returns to ``confirm`` if it was wrong, also where only a dry run denies it, else to ``release``.
        """
        begun_s = time.monotonic()
        mode, rows = self.settings.policies.mode, tuple(dict(chain.from_iterable(map(self._rows_of, keys))).items())
        decision = self._counter.peek_known(mode, rows, now_s=self._clock())  # one that is denied adds no rows
        if not decision.allowed:
            return decision, None
        return self._counter.decide(mode, rows, now_s=self._clock(), holds=True, is_guess=True, begun_s=begun_s)

    def release(self, held: OpenRequest | None) -> None:
        """Take a guess that was right out of the counters. There is no bound, as ``take_back`` has one."""
        self._counter.release(held, now_s=self._clock())

    def peek_known(self, key: Key, *, ignores_held: bool = False) -> Decision:
        """Decide as ``peek`` does, by what is known of a key here, and keep no memory of it.

        With ``ignores_held`` as if all guesses that are held were right.
        """
        mode, rows = self.settings.policies.mode, self._rows_of(key)
        return self._counter.peek_known(mode, rows, now_s=self._clock(), ignores_held=ignores_held)

    def _rows_of(self, key: Key) -> Rows:
        rules = self._rules.find(key.client_id, key.scope or TOKEN_ENDPOINT)
        return () if rules.exempt is not None else rules.rows_of(self.pseudonym_of(key.username))

    def report_denial(self, decision: Decision, client_id: str, *, grant_type: str | None = None) -> None:
        """Log a decision of ``check`` with the action ``reuse`` that was answered with a denial after all."""
        self._report(self._rules.find(client_id, grant_type=grant_type), None, decision, grant_type)

    def _report(self, rules: ClientRules, username: str | None, decision: Decision, grant_type: str | None) -> None:
        decision.is_early = self.denial_events.report(
            rules.client_id,
            None if username is None or (rules.user or rules.user_total) is None else storable_name(username),
            scope=rules.scope,
            grant_type=grant_type,
            decision=decision,
            is_canary=rules.is_canary,
            now_s=decision.now_s,
        )

    def peek(
        self,
        client_id: str,
        username: str | None = None,
        *,
        endpoint: str = TOKEN_ENDPOINT,
        cost: int = 1,
        grant_type: str | None = None,
    ) -> Decision:
        """Decide about a request as ``check`` does, and count nothing. ``remaining`` is what is left now."""
        check_cost(cost)
        return self._decide(client_id, username, endpoint, grant_type, cost=cost, is_counted=False)[0]

    def sync(self, *, error: StoreError | None = None, is_scheduled: bool = False) -> CycleReport:
        """Run one sync cycle now: flush in-flight hits, then pull the totals.

        Errors of the store are not raised; ``CycleReport.error`` holds them.

        Args:
            error: Why the store must not be called; None calls it. Memory is bounded all the same.
            is_scheduled: True for the scheduler, whose cycles leave hits of keys that are far from their limits to
                later ones. Any other cycle sends all hits, and reads every key if it comes soon after another one.
        """
        self.denial_events.end_minute(self._clock())
        left = self.host.follow_file()
        if left is not None:
            self._left.append(self._cycle_of(left))
            self._counter.count_again(left)
        self._counter.write_postponed(now_s=self._clock())
        if self._keeps_held:
            self._counter.release_lost(now_s=self._clock())
        self._left = [cycle for cycle in self._left if not cycle.finish(error=error)]
        return self.cycle.run(error=error, is_scheduled=is_scheduled)

    def sync_urgent(self) -> CycleReport | None:
        """Synchronise the keys that do not wait for a full cycle: near their limit, or new with a small limit.

        After a failure nothing is sent until the next ``sync``. Returns None if there are no such keys.
        """
        return self.cycle.run_urgent()

    def wait_for_urgent(self) -> None:
        """Block until there is a key for ``sync_urgent``, or ``wake`` is called."""
        next_s = self.next_urgent_s if self.host.term.is_held else math.inf
        self.host.wait(None if next_s == math.inf else max(0.0, next_s - self._monotonic()))

    def wake(self) -> None:
        """End the waiting of another thread."""
        self.host.wake()

    @property
    def next_due_s(self) -> float:
        """Time at which a scheduled ``sync`` has a key to look at, by the monotonic clock; infinity without one."""
        return self._table.next_s("due")

    @property
    def next_urgent_s(self) -> float:
        """Time at which ``sync_urgent`` has a key to look at, by the monotonic clock; infinity if there is none."""
        return self._table.next_s("urgent")

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits, modes and trusted clients. Counters of the same series stay.

        The store, the sync interval and the key of pseudonyms need a new limiter.
        """
        self.settings = settings
        self.denial_events.reconfigure(settings.events.per_minute)
        self._rules = RuleBook(settings.policies, max_keys=settings.max_keys)
        self._table.max_keys = settings.max_keys
        now_s = self._monotonic()
        with suppress(sqlite3.Error):  # the file is locked: keys wait as long as before
            self._table.end_waiting(now_s, now_s + settings.sync.max_interval_s)

    def preload(self, count: int = 1000, *, scopes: Collection[str | None] = (None,)) -> int:
        """Read the keys that were busy last and return how many there were, 0 if the store did not answer. Blocks."""
        return self.cycle.preload(count, self._clock(), scopes=scopes)

    @property
    def clock_offset_s(self) -> float:
        """Seconds that MongoDB's clock is ahead of this machine's, 0.0 if they hardly differ."""
        return 0.0 if self._server_clock is None else self._server_clock.offset_s

    def _correct_clock(self, epoch_s: float) -> None:
        """Carry the store's time on with the monotonic clock."""
        with self._clock_lock:
            self._clock = lambda: epoch_s + self._monotonic()

    def _first_time_s(self) -> float:
        """Return the time by the host's measurement, so that no row is changed by a clock that is wrong."""
        with self._clock_lock:
            measurement = self.host.read_clock() if self._clock == self._first_time_s else None
            if measurement is not None and self._server_clock is not None:
                self._server_clock.adopt(measurement)
            if self._clock == self._first_time_s:
                self._clock = self._given_clock
        return self._clock()

    def now_s(self) -> float:
        """Return the time that limits are counted by, seconds since the epoch."""
        return self._clock()

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush once more, remove this instance's marks and release everything: by the deadline, or in seven seconds.

        Logs ``hits_undelivered`` with hits that were not sent, ``hits_unconfirmed`` with those sent without an answer.
        """
        self.denial_events.end_minute(math.inf)
        self._counter.write_postponed(now_s=self._clock(), is_last=True)
        deadline = deadline or Deadline(monotonic=self._monotonic)
        for cycle in (self.cycle, *self._left):
            cycle.end(deadline)
        if self._store is not None:
            with self._store.time_limit(deadline.remaining_s):
                self._store.close()
        for cycle in (self.cycle, *self._left):
            cycle.host.close()

    def forget_parent(self) -> None:
        """In a forked child: drop the hits that the parent will send."""
        self.denial_events.reset()
        for cycle in (*self._left, self.cycle):
            cycle.host.leave_to_parent()
        self._start_empty()
