"""All clients and keys that an instance knows."""

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import structlog

from oauth_ratelimit.core.failed_auth import NAMING_SCOPES, claimed_name
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies, Limits, PolicySet
from oauth_ratelimit.core.pseudonyms import erasure_mark
from oauth_ratelimit.counters.client_scope import Peers
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.process.yielding import yield_between

log = structlog.get_logger(__name__)

CROWDED_RATIO = 0.95  # of the number of keys allowed: from here on the sync cycle makes room
ROOMY_RATIO = 0.9  # until here
MAX_CONFIGURED_LENGTH = 1024  # characters of a client id in the configuration
SPARE_CLIENTS = 1000  # clients beyond one for each key allowed: those without limits, and new ones
SWEEP_GAP_S = 60.0  # between two searches for clients without keys
LOG_INTERVAL_S = 60.0


class ClientRegistry:
    """Finds the state of a client, and creates it if it is new.

    There is one state for each client and scope, so each document has one state, whatever policies lead to it.

    Args:
        policies: The policies that apply.
        dirty_queue: Queue of keys for the sync cycle.
        clock: Returns the time in seconds since the epoch.
        max_keys: Maximum number of keys. Requests of further ones are admitted uncounted.
        peers: Other instances.

    Attributes:
        grants: Grant types that some rule names. All others share the plain token counter.
        plain: States of the plain token counter, by client id.
    """

    def __init__(
        self,
        policies: PolicySet,
        *,
        dirty_queue: DirtyQueue,
        clock: Callable[[], float],
        max_keys: int,
        peers: Peers,
    ) -> None:
        self.grants = policies.grants
        self.plain: dict[str, ClientState] = {}
        self.dirty_queue = dirty_queue
        self._scoped: dict[tuple[str, str], ClientState] = {}  # by client id and scope
        self._by_grant: dict[tuple[str, str], ClientState] = {}  # by client id and grant type, once looked up
        self._policies = policies
        self._peers = peers
        self._clock = clock
        self._max_keys = max_keys
        self._key_count = 0
        self._max_clients = max_keys + SPARE_CLIENTS
        self._swept_s = -math.inf
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)
        self._lock = threading.Lock()  # guards changes of the mappings, the policies and the count

    @property
    def key_count(self) -> int:
        """Number of known keys."""
        return self._key_count

    @property
    def client_count(self) -> int:
        """Number of known clients, once for each scope."""
        return len(self.plain) + len(self._scoped)

    @property
    def excess_count(self) -> int:
        """Number of keys to forget, to make room for new ones."""
        if self._key_count < self._max_keys * CROWDED_RATIO:
            return 0
        return self._key_count - int(self._max_keys * ROOMY_RATIO)

    def find(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> ClientState | None:
        """Return the state that a client's requests count in, None if it is not known.

        Raises:
            TypeError: A name is not text.
        """
        if not isinstance(client_id, str):
            raise TypeError(f"client_id must be text, got {client_id!r}")
        if not isinstance(endpoint, str):
            raise TypeError(f"endpoint must be text, got {endpoint!r}")
        name = storable_name(client_id)
        if endpoint != TOKEN_ENDPOINT:
            return self._scoped.get((name, storable_name(endpoint)))
        if grant_type is None or grant_type not in self.grants:
            return self.plain.get(name)
        return self._by_grant.get((name, grant_type))

    def get(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientState:
        """Return the state that a client's requests count in, after creating it if it is new.

        Raises:
            TypeError: A name is not text.
        """
        known = self.find(client_id, endpoint=endpoint, grant_type=grant_type)
        if known is not None:
            return known
        now_s = self._clock()
        with self._lock:
            client, is_kept = self._resolve(client_id, endpoint, grant_type, now_s)
        if not is_kept:
            self._log_exhausted()
            client.exempt_all()
        return client

    def _resolve(self, client_id: str, endpoint: str, grant_type: str | None, now_s: float) -> tuple[ClientState, bool]:
        """Return the state of a client, and whether it is kept: there may be no room. The registry's lock is held."""
        name = storable_name(client_id)
        configured_id = client_id if len(client_id) <= MAX_CONFIGURED_LENGTH else name
        if endpoint != TOKEN_ENDPOINT or grant_type not in self.grants:
            grant_type = None
        policies = self._policies.matching(configured_id, endpoint=endpoint, grant_type=grant_type)
        client = self._at(name, policies.scope)
        if client is None:
            own_grant_type = None if policies.scope is None else grant_type
            client = self._new_client(name, configured_id, endpoint, own_grant_type, now_s)
            if self.client_count >= self._max_clients:
                return client, False
            if client.scope is None:
                self.plain[name] = client
            else:
                self._scoped[name, client.scope] = client
        if grant_type is not None:
            self._by_grant[name, grant_type] = client
        return client, True

    def _new_client(
        self, name: str, configured_id: str, endpoint: str, grant_type: str | None, now_s: float
    ) -> ClientState:
        """Return the state of a client that has none, of one grant type if that is counted apart."""
        policies, grants = self._policies_at(configured_id, endpoint, grant_type)
        return ClientState(
            name,
            policies,
            now_s,
            configured_id=configured_id,
            dirty_queue=self.dirty_queue,
            peers=self._peers,
            endpoint=endpoint,
            grant_type=grant_type,
            grants=grants,
        )

    def _at(self, name: str, scope: str | None) -> ClientState | None:
        return self.plain.get(name) if scope is None else self._scoped.get((name, storable_name(scope)))

    def _policies_at(
        self, client_id: str, endpoint: str, grant_type: str | None
    ) -> tuple[ClientPolicies, Mapping[str, ClientPolicies]]:
        """Return a client's policies, and those of grant types that count with them under other modes."""
        policies = self._policies.matching(client_id, endpoint=endpoint, grant_type=grant_type)
        grants = {}
        if policies.scope is None:
            for name in self._policies.grants:
                found = self._policies.matching(client_id, grant_type=name)
                if found.scope is None and found != policies:
                    grants[name] = found
        return policies, grants

    def acquire(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientState:
        """Return the state that a client's requests count in, with its lock held: the caller releases it.

        Raises:
            TypeError: A name is not text.
        """
        while True:
            client = self.get(client_id, endpoint=endpoint, grant_type=grant_type)
            client.lock.acquire()
            if not client.is_gone:
                return client
            client.lock.release()

    @contextmanager
    def locked(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Iterator[ClientState]:
        """Do as ``acquire`` does, and release the lock at the end."""
        client = self.acquire(client_id, endpoint=endpoint, grant_type=grant_type)
        try:
            yield client
        finally:
            client.lock.release()

    def key_of(self, client: ClientState, username: str | None, now_s: float) -> KeyState | None:
        """Return the state of a key, after creating it if it is new. The client's lock is held.

        Returns:
            None if the key has no limits of its own, or if there is no room for a new one.

        Raises:
            TypeError: The username is neither text nor None.
        """
        state = client.keys.get(username)
        if state is not None:
            return state
        if username is not None:
            if not isinstance(username, str):
                raise TypeError(f"username must be text or None, got {username!r}")
            username = storable_name(username)
            state = client.keys.get(username)
            if state is not None:
                return state
        if not client.is_limited(username):
            return None
        if username not in client.former:
            with self._lock:
                is_full = self._key_count >= self._max_keys
                self._key_count += not is_full
            if is_full:
                self._log_exhausted()
                return None
        return client.add_key(username, now_s)

    def forget(self, state: KeyState) -> bool:
        """Drop a key, unless hits of it are still to be sent, and return whether there is one key less."""
        client = self._at(state.client.client_id, state.client.scope)
        if client is not state.client:
            return False
        with client.lock:
            is_forgotten = client.forget(state)
        if is_forgotten:
            with self._lock:
                self._key_count -= 1
        return is_forgotten

    def erase(self, marks: Collection[str]) -> None:
        """Drop the keys of erased users, with all their hits.

        Args:
            marks: The ``erasure_mark`` of each name.
        """
        for client in self:
            with client.lock:
                states = client.states()
            for state in yield_between(states):
                if _is_erased(state, marks):
                    with client.lock:
                        is_dropped = client.erase(state)
                    with self._lock:
                        self._key_count -= is_dropped

    def sweep(self, now_s: float) -> None:
        """Drop clients without keys if they are many: once a minute, or at once if there is no room for new ones."""
        is_crowded = self.client_count >= self._max_clients * CROWDED_RATIO
        if not is_crowded and 0 <= now_s - self._swept_s < SWEEP_GAP_S:
            return
        without_key_count = self.client_count - self._key_count  # at least so many: a client may have several keys
        if without_key_count <= (0 if is_crowded else self._key_count + SPARE_CLIENTS // 2):
            return
        self._swept_s = now_s
        for client in self:
            with client.lock:  # until the client is marked and unlisted, so that a key never has two states
                if client.is_empty(now_s):
                    client.leave()
                    self._remove(client)

    def _remove(self, client: ClientState) -> None:
        with self._lock:
            if client.scope is None:
                del self.plain[client.client_id]
            else:
                del self._scoped[client.client_id, client.scope]
            if self._by_grant:
                self._by_grant = {}

    def __iter__(self) -> Iterator[ClientState]:
        with self._lock:
            clients = [*self.plain.values(), *self._scoped.values()]
        return iter(clients)

    def apply(self, policies: PolicySet) -> None:
        """Apply new policies, client by client: a request meets either the old ones or the new ones."""
        now_s = self._clock()
        with self._lock:
            self._policies = policies
            self.grants = policies.grants
            self._by_grant = {}
        for client in self:
            found, grants = self._policies_at(client.configured_id, client.endpoint, client.grant_type)
            scope = None if found.scope is None else storable_name(found.scope)
            if scope != client.scope:  # the grant type has no limits of its own any more
                found, grants = replace(found, limits=Limits()), {}
            client.apply(found, now_s, grants=grants)

    def _log_exhausted(self) -> None:
        self._log.error("keys_exhausted", max_keys=self._max_keys, effect="requests of new keys are admitted uncounted")


def _is_erased(state: KeyState, marks: Collection[str]) -> bool:
    """Return True if a key is that of an erased user, or of failed authentications in the user's name."""
    name = state.username
    if name is not None and state.scope in NAMING_SCOPES:
        name = claimed_name(name)
    if name is None:
        return False
    return erasure_mark(name) in marks or erasure_mark(name, state.client.client_id) in marks
