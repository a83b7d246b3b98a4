"""All clients and keys that an instance knows."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies, Limits, PolicySet
from oauth_ratelimit.counters.client import ClientState
from oauth_ratelimit.counters.due_queue import DueQueue
from oauth_ratelimit.counters.key import KeyState, SharingState
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.process.yielding import yield_between

log = get_logger(__name__)

CROWDED_RATIO = 0.95  # of the number of keys allowed: from here on the sync cycle makes room
ROOMY_RATIO = 0.9  # until here
MAX_CONFIGURED_LENGTH = 1024  # characters of a client id in the configuration
SPARE_CLIENTS = 1000  # clients beyond one for each key allowed: those without limits, and new ones
SWEEP_GAP_S = 60.0  # between two searches for clients without keys
LOG_INTERVAL_S = 60.0


class ClientRegistry:
    """Finds the state of a client, and creates it if it is new. There is room for ``max_keys`` keys.

    There is one state for each client and scope, so each document has one state, whatever policies lead to it. Without
    room requests are admitted uncounted.
    """

    def __init__(
        self,
        policies: PolicySet,
        *,
        queue: DueQueue,
        clock: Callable[[], float],
        max_keys: int,
        sharing: SharingState,
    ) -> None:
        self._policies = policies
        self._grants = policies.grants  # those that some rule names; all others share the plain token counter
        self._queue = queue
        self._sharing = sharing
        self._clock = clock
        self._max_keys = max_keys
        self._max_clients = max_keys + SPARE_CLIENTS
        self._clients: dict[tuple[str, str | None], ClientState] = {}  # by client id and scope
        self._plain: dict[str, ClientState] = {}  # of the plain token counter, by client id
        self._routes: dict[tuple[str, str, str | None], ClientState] = {}  # of others, by endpoint and grant type, too
        self._key_count = 0
        self._swept_s = -math.inf
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)
        self._lock = threading.Lock()  # guards changes of the mappings, the policies and the count

    @property
    def key_count(self) -> int:
        return self._key_count

    @property
    def excess_count(self) -> int:
        """Number of keys to forget, to make room for new ones."""
        if self._key_count < self._max_keys * CROWDED_RATIO:
            return 0
        return self._key_count - int(self._max_keys * ROOMY_RATIO)

    def find(self, client_id: str, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientState | None:
        """Return the state that a client's requests count in, None if it is not known."""
        client_id = storable_name(client_id)
        if grant_type not in self._grants:
            if endpoint == TOKEN_ENDPOINT:
                return self._plain.get(client_id)
            grant_type = None
        return self._routes.get((client_id, endpoint, grant_type))

    def get(self, client_id: str, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientState:
        """Return the state that a client's requests count in, after creating it if it is new.

        Raises ``TypeError`` if a name is not text.
        """
        for name, value in (("client_id", client_id), ("endpoint", endpoint)):
            if not isinstance(value, str):
                raise TypeError(f"{name} must be text, got {value!r}")
        known = self.find(client_id, endpoint, grant_type)
        if known is not None and not known.is_gone:
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
        if endpoint != TOKEN_ENDPOINT or grant_type not in self._grants:
            grant_type = None
        scope = self._policies.limits_at(configured_id, endpoint=endpoint, grant_type=grant_type)[0]
        stored_scope = None if scope is None else storable_name(scope)
        client = self._clients.get((name, stored_scope))
        if client is None:
            own_grant_type = None if scope is None else grant_type
            policies, grants = self._policies_at(configured_id, endpoint, own_grant_type)
            client = ClientState(
                name,
                policies,
                now_s,
                configured_id=configured_id,
                queue=self._queue,
                sharing=self._sharing,
                endpoint=endpoint,
                grant_type=own_grant_type,
                grants=grants,
            )
            if len(self._clients) >= self._max_clients:
                return client, False
            self._clients[name, stored_scope] = client
        if endpoint == TOKEN_ENDPOINT and grant_type is None:
            self._plain[name] = client
        elif len(endpoint) <= MAX_CONFIGURED_LENGTH:  # one with a longer name is looked up each time
            self._routes[name, endpoint, grant_type] = client
        return client, True

    def _policies_at(
        self, client_id: str, endpoint: str, grant_type: str | None
    ) -> tuple[ClientPolicies, Mapping[str, ClientPolicies]]:
        """Return a client's policies, and those of grant types that count with them under other modes."""
        policies = self._policies.matching(client_id, endpoint=endpoint, grant_type=grant_type)
        grants = self._policies.by_grant(client_id) if policies.scope is None else {}
        return policies, {name: found for name, found in grants.items() if found != policies}

    def acquire(self, client_id: str, endpoint: str, grant_type: str | None) -> ClientState:
        """Return the state that a client's requests count in, with its lock held: the caller releases it.

        Raises ``TypeError`` if a name is not text.
        """
        while True:
            client = None
            if endpoint == TOKEN_ENDPOINT and grant_type not in self._grants:
                client = self._plain.get(client_id)  # most names are storable as they are
            if client is None:
                client = self.get(client_id, endpoint, grant_type)
            # Who waits inside a lock owns it before it has the interpreter, so that all others would have to wait, too.
            while not client.lock.acquire(False):
                time.sleep(0)
            if not client.is_gone:
                return client
            client.lock.release()

    @contextmanager
    def locked(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Iterator[ClientState]:
        """Do as ``acquire`` does, and release the lock at the end."""
        client = self.acquire(client_id, endpoint, grant_type)
        try:
            yield client
        finally:
            client.lock.release()

    def key_of(self, client: ClientState, username: str | None, now_s: float) -> KeyState | None:
        """Return the counters of a key, after creating them if it is new. The client's lock is held.

        None if the key has no limits of its own, or if there is no room for a new one. Raises ``TypeError`` if the
        username is neither text nor None.
        """
        key = client.keys.get(username)
        if key is not None:
            return key
        if username is not None:
            if not isinstance(username, str):
                raise TypeError(f"username must be text or None, got {username!r}")
            username = storable_name(username)
            key = client.keys.get(username)
            if key is not None:
                return key
        if not client.rules.own_tiers(username):
            return None
        if username not in client.former:
            with self._lock:
                is_full = self._key_count >= self._max_keys
                self._key_count += not is_full
            if is_full:
                self._log_exhausted()
                return None
        return client.add_key(username, now_s)

    def forget(self, key: KeyState) -> bool:
        """Drop a key, unless hits of it are still to be sent, and return whether there is one key less."""
        client = self._clients.get((key.client.client_id, key.client.scope))
        if client is None or client is not key.client:
            return False
        with client.lock:
            is_forgotten = client.forget(key)
        if is_forgotten:
            with self._lock:
                self._key_count -= 1
        return is_forgotten

    def sweep(self, now_s: float) -> None:
        """Drop clients without keys if they are many: once a minute, or at once if there is no room for new ones."""
        client_count = len(self._clients)
        is_crowded = client_count >= self._max_clients * CROWDED_RATIO
        if not is_crowded and 0 <= now_s - self._swept_s < SWEEP_GAP_S:
            return
        without_key_count = client_count - self._key_count  # at least so many: a client may have several keys
        if without_key_count <= (0 if is_crowded else self._key_count + SPARE_CLIENTS // 2):
            return
        self._swept_s = now_s
        for client in yield_between(self):
            with client.lock:  # until the client is marked and unlisted, so that a key never has two states
                if client.retire(now_s):
                    with self._lock:
                        del self._clients[client.client_id, client.scope]
        self.drop_retired()

    def drop_retired(self) -> None:
        with self._lock:
            self._clients = {name: client for name, client in self._clients.items() if not client.is_gone}
            self._plain = {name: client for name, client in self._plain.items() if not client.is_gone}
            self._routes = {route: client for route, client in self._routes.items() if not client.is_gone}

    def __iter__(self) -> Iterator[ClientState]:
        with self._lock:
            clients = list(self._clients.values())
        return iter(clients)

    def all_keys(self) -> Iterator[KeyState]:
        """Yield the keys of all clients. No lock is held between them."""
        for client in self:
            with client.lock:
                keys = client.all_keys()
            yield from keys

    def apply(self, policies: PolicySet) -> None:
        """Apply new policies, client by client: a request meets either the old ones or the new ones."""
        now_s = self._clock()
        self._queue.end_waiting()
        with self._lock:
            self._policies = policies
            self._grants = policies.grants
            # Grant types may have limits of their own now, or none any more.
            self._routes = {route: client for route, client in self._routes.items() if route[2] is None}
        for client in self:
            found, grants = self._policies_at(client.configured_id, client.endpoint, client.grant_type)
            scope = None if found.scope is None else storable_name(found.scope)
            if scope != client.scope:  # the grant type has no limits of its own any more
                found, grants = found._replace(limits=Limits()), {}
            client.apply(found, now_s, grants=grants)

    def _log_exhausted(self) -> None:
        self._log.error("keys_exhausted", max_keys=self._max_keys, effect="requests of new keys are admitted uncounted")
