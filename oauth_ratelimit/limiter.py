"""One pass from a request's facts to a decision."""

import math
import time
from collections.abc import Callable

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Admission, Decision, FullDecision, check_cost
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from oauth_ratelimit.counters.key_state import Counts, KeyState
from oauth_ratelimit.counters.registry import ClientRegistry
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.process.fork import call_in_child
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.factory import open_counters
from oauth_ratelimit.sync.cycle import SyncCycle
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.reservation import Reservations

CLOSING_TRIES = 3
CLOSING_S = 5.0  # well within the 30 s that gunicorn gives a worker


class Limiter:
    """Decides in memory whether a client may have one more token, and shares what it counted through a store.

    Thread-safe. Starts no thread: its owner calls ``sync``.

    Args:
        settings: From ``load_config``.
        store: Where counters are shared; None takes the one that the settings name, if any.
        clock: Returns the time in seconds since the epoch. All instances must roughly agree.
        denial_events: Logs denials; None creates one.

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
    ) -> None:
        self.settings = settings
        self._clock = self._given_clock = clock
        self._store = store if store is not None else open_counters(settings.store)
        self._names = None if settings.privacy.key is None else settings.privacy.names()
        self.denial_events = denial_events or DenialEvents(settings.events.per_minute)
        self._begin()
        call_in_child(self.forget_parent)

    def pseudonym_of(self, username: str | None) -> str | None:
        """
        Return the pseudonym of a user, as the store, logs and hooks have it: the name itself, unless names are hashed.

        The other methods take the name: they hash it themselves.
        """
        return username if self._names is None else self._names(username)

    def _begin(self) -> None:
        """Start with nothing known."""
        sync = self.settings.sync
        self._reservations: Reservations | None = None
        reserves = self._store is not None and sync.near_limit == "reserve"
        dirty_queue = DirtyQueue(is_shared=self._store is not None)
        self._clients = ClientRegistry(
            self.settings.policies,
            dirty_queue=dirty_queue,
            clock=self._now,
            max_keys=self.settings.max_keys,
            reserves=reserves,
        )
        self._cycle = SyncCycle(self._store, clients=self._clients, interval_s=sync.interval_s)
        if reserves:
            self._reservations = Reservations(self._cycle, clock=self._now, deadline_s=sync.deadline_s)

    def check(
        self,
        client_id: str,
        username: str | None = None,
        *,
        endpoint: str = TOKEN_ENDPOINT,
        cost: int = 1,
        grant_type: str | None = None,
    ) -> Decision:
        """Decide about a request and count it, if it is admitted or would be under enforce.

        Args:
            client_id: The authenticated client.
            username: The resource owner, None for grants without a user.
            endpoint: Where the request came in.
            cost: Hits that it consumes.
            grant_type: Matters where a grant type has limits of its own.

        Raises:
            TypeError: An id is not text.
            ValueError: The cost is not a whole number from 1 to 2^53.
        """
        if cost != 1 or type(cost) is not int:
            check_cost(cost)
        else:
            cost = 1  # True and 1.0 are equal to it, but must not get into a counter
        pseudonym = username if self._names is None else self._names(username)
        now_s = self._clock()
        clients = self._clients
        if endpoint is TOKEN_ENDPOINT and not clients.grants:
            client = clients.plain.get(client_id) or clients.get(client_id)
        else:
            client = clients.get(client_id, endpoint=endpoint, grant_type=grant_type)
        if client.exempt is not None:
            return client.exempt
        client.lock.acquire()  # with try and finally half the price of a with statement
        try:
            state = client.keys.get(pseudonym)
            if state is None:
                if client.is_gone:  # since it was found
                    return self.check(client_id, username, endpoint=endpoint, cost=cost, grant_type=grant_type)
                state = clients.add_key(client, pseudonym, now_s)
            tier, full = state.tier, state.full
            if tier.is_alone and full + cost <= state.ceiling and now_s < state.frame_end_s:
                if full == state.sent:
                    client.dirty_queue.mark_dirty(state)
                state.full = full = full + cost
                return Admission(tier, full, state.edge, state.frame_end_s, now_s)
            cached_denial = state.cached_denial
            if cached_denial is None or not cached_denial.since_s <= now_s < cached_denial.until_s or cost != 1:
                if self._reservations is not None and client.is_near_limit(state):
                    decision = self._reservations.decide(client, state, now_s, cost)
                else:
                    decision = client.decide(state, now_s, cost)
                if not decision.would_deny or not isinstance(decision, FullDecision):
                    return decision
            else:
                if not state.is_dirty:
                    client.dirty_queue.mark_dirty(state)
                return cached_denial.repeat(now_s)
        finally:
            client.lock.release()
        self._report(client, state, decision, grant_type=grant_type, now_s=now_s)
        return decision

    def _report(
        self, client: ClientState, state: KeyState, decision: FullDecision, *, grant_type: str | None, now_s: float
    ) -> None:
        """Tell of a denial. Until its end the same answer is given to all that follow it."""
        suppression = self.denial_events.report(
            client.client_id,
            state.username,
            scope=client.scope,
            grant_type=grant_type,
            decision=decision,
            is_canary=client.is_canary,
            now_s=now_s,
        )
        cached_denial = state.cached_denial
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
        with self._clients.held(client_id, endpoint=endpoint, grant_type=grant_type) as client:
            if client.exempt is not None:
                return client.exempt
            state = client.keys.get(pseudonym) or self._clients.add_key(client, pseudonym, now_s)
            return client.preview(state, now_s, cost=cost)

    def peek_if_known(
        self, client_id: str, username: str | None = None, *, endpoint: str = TOKEN_ENDPOINT
    ) -> FullDecision | None:
        """Decide as ``peek`` does, but return None if this instance does not know the key, and keep no memory of it."""
        pseudonym = username if self._names is None else self._names(username)
        client = self._clients.find(client_id, endpoint=endpoint)
        if client is None or client.exempt is not None:
            return None
        now_s = self._clock()
        with client.lock:
            state = client.keys.get(pseudonym)
            if state is None:
                if pseudonym not in client.former:
                    return None
                state = self._clients.add_key(client, pseudonym, now_s)
            return client.preview(state, now_s, cost=1)

    def count(self, client_id: str, username: str | None = None, *, endpoint: str = TOKEN_ENDPOINT) -> None:
        """Count a request without deciding about it, even above the limit."""
        pseudonym = username if self._names is None else self._names(username)
        now_s = self._clock()
        with self._clients.held(client_id, endpoint=endpoint) as client:
            if client.exempt is None:
                state = client.keys.get(pseudonym) or self._clients.add_key(client, pseudonym, now_s)
                client.count(state, now_s)

    def counts(self, client_id: str, username: str | None = None, *, endpoint: str = TOKEN_ENDPOINT) -> Counts:
        """Return what this instance knows of a key: the global snapshot and its own in-flight hits."""
        pseudonym = username if self._names is None else self._names(username)
        client = self._clients.get(client_id, endpoint=endpoint)
        with client.lock:
            state = client.keys.get(pseudonym if pseudonym is None else storable_name(pseudonym))
            return state.counts() if state else Counts(0, 0)

    def sync(self) -> CycleReport:
        """Run one cycle now: flush what was counted here, pull what was counted elsewhere.

        Never raises for what the store does; ``CycleReport.error`` tells.
        """
        now_s = self._clock()
        self.denial_events.end_minute(now_s)
        return self._cycle.run(now_s)

    def sync_urgent(self) -> CycleReport | None:
        """Synchronise the keys that should not wait: new here, or near their limit. None if there are none."""
        return self._cycle.run(self._clock(), urgent_only=True) if self._clients.dirty_queue.has_urgent else None

    def reconfigure(self, settings: Settings) -> None:
        """Take over new limits, modes and trusted clients. Counters stay where the frames stay as long as they are. The
        store, the interval and the keys of user names need a new limiter.
        """
        self.settings = settings
        self.denial_events.reconfigure(settings.events.per_minute)
        self._clients.apply(settings.policies)

    def preload(self, count: int = 1000) -> int:
        """
        Learn the counts of the keys that were busy last, so that a new instance starts with them, and return how many
        they are; 0 if the store did not answer, for which this waits.
        """
        return self._cycle.preload(count, self._clock())

    @property
    def clock_offset_s(self) -> float:
        """How far MongoDB's clock is ahead of this machine's; 0.0 while that is too little to matter, for the owner to
        correct.
        """
        return self._cycle.clock_offset_s

    def correct_clock(self, offset_s: float) -> None:
        """Go by the given clock plus an offset from now on."""
        given = self._given_clock
        self._clock = (lambda: given() + offset_s) if offset_s else given

    def _now(self) -> float:
        return self._clock()

    def close(self, *, flush: bool = True) -> None:
        """Flush once more and release everything. Logs ``hits_undelivered`` with the hits that could not be sent.

        Args:
            flush: Try up to three times to send the last hits, with no new try after five seconds.
        """
        if self._reservations is not None:
            self._reservations.close()
        deadline_s = time.monotonic() + CLOSING_S
        for _ in range(CLOSING_TRIES if flush else 0):
            if self.sync().error is None or time.monotonic() > deadline_s:
                break
        self.denial_events.end_minute(math.inf)
        self._cycle.log_undelivered()
        self._cycle.close()

    def forget_parent(self) -> None:
        """After a fork, in the child: drop what the parent has counted and will send."""
        self.denial_events.reset()
        self._begin()
