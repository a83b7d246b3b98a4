"""All clients and keys that an instance knows."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, Limits, PolicySet
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
        self._queue = queue
        self._sharing = sharing
        self._clock = clock
        self._max_keys = max_keys
        self._max_clients = max_keys + SPARE_CLIENTS
        self._clients: dict[tuple[str, str | None], ClientState] = {}  # by client id and scope
        self._key_count = 0
        self._swept_s = -math.inf
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)
        self._lock = threading.Lock()  # guards changes of the mapping, the policies and the count

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
        scope = self._policies.scope_of(client_id, endpoint=endpoint, grant_type=grant_type)
        return self._clients.get((client_id, scope)) or self._clients.get(_names_of(client_id, scope))

    def get(self, client_id: str, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientState:
        """Return the state that a client's requests count in, after creating it if it is new.

        Raises ``TypeError`` if a name is not text.
        """
        if not isinstance(client_id, str):
            raise TypeError(f"client_id must be text, got {client_id!r}")
        if not isinstance(endpoint, str):
            raise TypeError(f"endpoint must be text, got {endpoint!r}")
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
        configured_id = client_id if len(client_id) <= MAX_CONFIGURED_LENGTH else storable_name(client_id)
        policies = self._policies.matching(configured_id, endpoint=endpoint, grant_type=grant_type)
        names = _names_of(client_id, policies.scope)
        known = self._clients.get(names)
        if known is not None:
            return known, True
        client = ClientState(
            names[0],
            policies,
            now_s,
            configured_id=configured_id,
            queue=self._queue,
            sharing=self._sharing,
            endpoint=endpoint if len(endpoint) <= MAX_CONFIGURED_LENGTH else storable_name(endpoint),
            grant_type=None if policies.scope is None else grant_type,
        )
        is_kept = len(self._clients) < self._max_clients
        if is_kept:
            self._clients[names] = client
        return client, is_kept

    def acquire(self, client_id: str, endpoint: str, grant_type: str | None) -> ClientState:
        """Return the state that a client's requests count in, with its lock held: the caller releases it.

        Raises ``TypeError`` if a name is not text.
        """
        while True:
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

    def drop_retired(self) -> None:
        with self._lock:
            self._clients = {names: client for names, client in self._clients.items() if not client.is_gone}

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
        for client in self:
            found = policies.matching(client.configured_id, endpoint=client.endpoint, grant_type=client.grant_type)
            if client.scope is not None and found.scope is None:  # the grant type is not counted apart any more
                found = found._replace(limits=Limits())
            client.apply(found, now_s)

    def _log_exhausted(self) -> None:
        self._log.error("keys_exhausted", max_keys=self._max_keys, effect="requests of new keys are admitted uncounted")


def _names_of(client_id: str, scope: str | None) -> tuple[str, str | None]:
    """Return client id and scope as documents hold them."""
    return storable_name(client_id), None if scope is None else storable_name(scope)
