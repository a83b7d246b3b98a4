"""The limiter: decides about requests and shares its counters."""

import math
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Admission, Decision, FullDecision, check_cost
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.client_scope import Peers
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from oauth_ratelimit.counters.key_state import Counts, KeyState
from oauth_ratelimit.counters.registry import ClientRegistry
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.fork import call_in_child
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.factory import open_counters
from oauth_ratelimit.sync.clock import ServerClock
from oauth_ratelimit.sync.cycle import SyncCycle
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.reservation import Reservations


class _Request(NamedTuple):
    """Arguments of ``Limiter.check``, and the time of the call."""

    client_id: str
    username: str | None
    endpoint: str
    grant_type: str | None
    cost: int
    now_s: float


class Limiter:
    """Rate limiter that decides in memory and shares its counters through a store.

    It is thread-safe and starts no thread: its owner calls ``sync``.

    Args:
        settings: Settings from ``load_config``.
        store: The store that shares the counters; None opens the one in the settings, if there is one.
        clock: Returns the time in seconds since the epoch. The clocks of all instances must roughly agree.
        denial_events: Logs denials; None creates one.
        follows_store_clock: Correct the clock by the store's, before the first flush and from then on.
        monotonic: Returns the time of a clock that is never set, in seconds.

    Attributes:
        settings: The settings that apply now.
        denial_events: Logs denials.
    """

    def __init__(
        self,
        settings: Settings,
        store: CounterStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
        denial_events: DenialEvents | None = None,
        follows_store_clock: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._given_clock = clock
        self._follows_store_clock = follows_store_clock
        self._monotonic = monotonic
        self._store = store if store is not None else open_counters(settings.store)
        self._names = None if settings.privacy.key is None else settings.privacy.names()
        self.denial_events = denial_events or DenialEvents(settings.events.per_minute)
        self._begin()
        call_in_child(self.forget_parent)

    def pseudonym_of(self, username: str | None) -> str | None:
        """Return the username as the store, logs and hooks have it: the name itself, or its keyed hash.

        The other methods take the name and hash it themselves.
        """
        return username if self._names is None else self._names(username)

    def _begin(self) -> None:
        """Start with empty counters."""
        self._clock = self._given_clock
        sync = self.settings.sync
        reserves = self._store is not None and sync.near_limit == "reserve"
        self._clients = ClientRegistry(
            self.settings.policies,
            dirty_queue=DirtyQueue(is_shared=self._store is not None),
            clock=self.now_s,
            max_keys=self.settings.max_keys,
            peers=Peers(is_shared=self._store is not None, reserves=reserves),
        )
        server_clock = None
        if self._store is not None:
            server_clock = ServerClock(
                self._store,
                wall=self._given_clock if self._follows_store_clock else time.time,
                monotonic=self._monotonic,
                on_change=self._correct_clock,
            )
        self._cycle = SyncCycle(
            self._store,
            clients=self._clients,
            interval_s=sync.interval_s,
            clock=self.now_s,
            server_clock=server_clock,
        )
        self._reservations = Reservations(self._cycle, deadline_s=sync.deadline_s) if reserves else None

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
            grant_type: Matters if a grant type has limits or a mode of its own.

        Raises:
            TypeError: An id is not text.
            ValueError: The cost is not a whole number from 1 to 2^53.
        """
        if cost != 1 or type(cost) is not int:
            check_cost(cost)
        pseudonym = username if self._names is None else self._names(username)
        now_s = self._clock()
        clients = self._clients
        if endpoint is TOKEN_ENDPOINT and grant_type not in clients.grants:
            client = clients.plain.get(client_id)
        else:
            client = self._find(client_id, endpoint, grant_type)
        if client is not None:
            if client.exempt is not None:
                return client.exempt
            client.lock.acquire()  # not a with statement: this is the hot path
            try:
                state = client.keys.get(pseudonym)
                if state is not None:
                    tier, full = state.tier, state.full
                    if tier.is_alone and full + cost <= state.ceiling and now_s < state.frame_end_s:
                        if full == state.sent:
                            client.dirty_queue.mark_dirty(state)
                        state.full = full = full + cost
                        return Admission(tier, full, state.edge, state.frame_end_s, now_s)
                    denial = state.cached_denial
                    if denial is not None and cost == 1 and denial.since_s <= now_s < denial.until_s:
                        if not state.is_dirty:
                            client.dirty_queue.mark_dirty(state)
                        return denial.repeat(now_s)
                    admission = client.try_admit(state, now_s, cost)
                    if admission is not None:
                        return admission
            finally:
                client.lock.release()
        return self._decide(_Request(client_id, pseudonym, endpoint, grant_type, cost, now_s))

    def _find(self, client_id: str, endpoint: str, grant_type: str | None) -> ClientState | None:
        """Return the state of a known client, unless the grant type has a mode of its own."""
        client = self._clients.find(client_id, endpoint=endpoint, grant_type=grant_type)
        return None if client is None or grant_type in client.grant_tiers else client

    def _decide(self, request: "_Request") -> Decision:
        """Decide about a request of a new key, or near a limit. Reserve the last requests of a quota if asked to."""
        if self._reservations is not None:
            states = self._keys_to_reserve(request)
            if states:
                return self._reservations.reserve(states, lambda: self._decide_here(request))
        return self._decide_here(request)

    def _decide_here(self, request: "_Request") -> Decision:
        """Decide about a request by the counts of this instance, and report a denial."""
        _, username, endpoint, grant_type, cost, now_s = request
        client = self._clients.acquire(request.client_id, endpoint=endpoint, grant_type=grant_type)
        try:
            exempt = client.under(grant_type).exempt
            if exempt is not None:
                return exempt
            state = self._clients.key_of(client, username, now_s)
            decision = client.decide(state, now_s, cost, grant_type=grant_type)
        finally:
            client.lock.release()
        if decision.would_deny and isinstance(decision, FullDecision):  # in this order: the second test is slow
            self._report(request, client, state, decision)
        return decision

    def _keys_to_reserve(self, request: "_Request") -> tuple[KeyState, ...]:
        """Return the keys to synchronise before a request is decided, if it is one of the last of a quota."""
        client = self._clients.acquire(request.client_id, endpoint=request.endpoint, grant_type=request.grant_type)
        try:
            if client.under(request.grant_type).exempt is not None:
                return ()
            return client.keys_to_reserve(self._clients.key_of(client, request.username, request.now_s))
        finally:
            client.lock.release()

    def _report(self, request: "_Request", client: ClientState, state: KeyState | None, decision: FullDecision) -> None:
        """Log a denial, and have it repeated while its events are suppressed."""
        suppression = self.denial_events.report(
            client.client_id,
            None if state is None else state.username,
            scope=client.scope,
            grant_type=request.grant_type,
            decision=decision,
            is_canary=client.under(request.grant_type).is_canary,
            now_s=request.now_s,
        )
        cached_denial = None if state is None else state.cached_denial
        if cached_denial is not None:
            cached_denial.suppress(suppression)

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
        pseudonym = username if self._names is None else self._names(username)
        now_s = self._clock()
        with self._clients.locked(client_id, endpoint=endpoint, grant_type=grant_type) as client:
            exempt = client.under(grant_type).exempt
            if exempt is not None:
                return exempt
            state = self._clients.key_of(client, pseudonym, now_s)
            return client.preview(state, now_s, cost=cost, grant_type=grant_type)

    def peek_if_known(
        self, client_id: str, username: str | None = None, *, endpoint: str = TOKEN_ENDPOINT, cost: int = 1
    ) -> FullDecision | None:
        """Decide as ``peek`` does, but return None if this instance does not know the key, and keep no memory of it."""
        pseudonym = username if self._names is None else self._names(username)
        client = self._clients.find(client_id, endpoint=endpoint)
        if client is None or client.exempt is not None:
            return None
        now_s = self._clock()
        with client.lock:
            if pseudonym not in client.keys and pseudonym not in client.former:
                return None
            return client.preview(self._clients.key_of(client, pseudonym, now_s), now_s, cost=cost)

    def count(self, client_id: str, username: str | None = None, *, endpoint: str = TOKEN_ENDPOINT) -> None:
        """Count a request that was admitted before: in all limits but those on trial that deny it."""
        pseudonym = username if self._names is None else self._names(username)
        now_s = self._clock()
        with self._clients.locked(client_id, endpoint=endpoint) as client:
            if client.exempt is None:
                client.count(self._clients.key_of(client, pseudonym, now_s), now_s)

    def counts(self, client_id: str, username: str | None = None, *, endpoint: str = TOKEN_ENDPOINT) -> Counts:
        """Return the hits of a key that this instance knows: the global snapshot and its own in-flight hits."""
        pseudonym = username if self._names is None else self._names(username)
        with self._clients.locked(client_id, endpoint=endpoint) as client:
            state = client.keys.get(pseudonym if pseudonym is None else storable_name(pseudonym))
            return state.counts() if state else Counts(0, 0)

    def sync(self, *, is_reachable: bool = True, is_scheduled: bool = False) -> CycleReport:
        """Run one sync cycle now: flush in-flight hits, then pull the totals.

        Errors of the store are not raised; ``CycleReport.error`` holds them.

        Args:
            is_reachable: False if the store is known not to answer. Then it is not called, and memory is bounded.
            is_scheduled: True for the scheduler. Else a cycle soon after another one reads every key.
        """
        self.denial_events.end_minute(self._clock())
        return self._cycle.run(is_reachable=is_reachable, is_scheduled=is_scheduled)

    def sync_urgent(self) -> CycleReport | None:
        """Synchronise the urgent keys: near their limit, or new with a small limit. None if there are none."""
        return self._cycle.run_urgent()

    def wait_for_urgent(self) -> None:
        """Block until there is a key for ``sync_urgent``, or ``wake`` is called."""
        self._cycle.wait_for_urgent()

    def wait_for_critical(self, timeout_s: float) -> None:
        """Block until an urgent key has used half of a limit, ``wake`` is called or the time is over."""
        self._clients.dirty_queue.wait_for_critical(timeout_s)

    def wake(self) -> None:
        """End the waiting of another thread."""
        self._clients.dirty_queue.wake()

    @property
    def next_urgent_s(self) -> float:
        """Time at which ``sync_urgent`` has a key to look at, by the limiter's clock: ``-inf`` now, ``inf`` never."""
        return self._cycle.next_urgent_s

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits, modes and trusted clients. Counters of the same series stay.

        The store, the sync interval and the key of pseudonyms need a new limiter.
        """
        self.settings = settings
        self.denial_events.reconfigure(settings.events.per_minute)
        self._clients.apply(settings.policies)

    def preload(self, count: int = 1000, *, scopes: Collection[str | None] = (None,)) -> int:
        """Read the keys that were busy last and return how many there were, 0 if the store did not answer. Blocks.

        Args:
            count: Number of documents to read.
            scopes: Scopes of the keys to keep: None, or names of endpoints.
        """
        return self._cycle.preload(count, self._clock(), scopes=scopes)

    @property
    def clock_offset_s(self) -> float:
        """Seconds that MongoDB's clock is ahead of this machine's, 0.0 if they hardly differ."""
        return self._cycle.clock_offset_s

    def _correct_clock(self, offset_s: float) -> None:
        """Add an offset to the given clock from now on, if it follows the store's."""
        given = self._given_clock
        if self._follows_store_clock:
            self._clock = (lambda: given() + offset_s) if offset_s else given

    def now_s(self) -> float:
        """Return the time that limits are counted by, seconds since the epoch."""
        return self._clock()

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush once more, remove this instance's marks and release everything, within seven seconds.

        Logs ``hits_undelivered`` with the hits that could not be sent, and ``hits_unconfirmed`` with those that were
        sent without an answer.

        Args:
            deadline: When to give up; None gives it all the time that a process has to end.
        """
        if self._reservations is not None:
            self._reservations.close()
        self.denial_events.end_minute(math.inf)
        self._cycle.end(deadline or Deadline(monotonic=self._monotonic))

    def forget_parent(self) -> None:
        """In a forked child: drop the hits that the parent will send."""
        self.denial_events.reset()
        self._begin()
