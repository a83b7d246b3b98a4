"""All places and keys that an instance knows."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, PolicySet
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from oauth_ratelimit.counters.key_state import KeyState

log = structlog.get_logger(__name__)

Name = TypeVar("Name")

CROWDED_RATIO = 0.95  # of the number of keys allowed: from here on the sync cycle makes room
ROOMY_RATIO = 0.9  # until here
MAX_CONFIGURED_LENGTH = 1024  # characters of a client id in the configuration; what is longer goes by its digest
SPARE_PLACES = 1000  # how many there may be besides one for each key allowed: of clients without limits, and new ones
SWEEP_GAP_S = 60.0  # between two searches for places without keys
REPEAT_FULL_S = 60.0  # between two log lines on the same shortage


class ClientRegistry:
    """Finds the place of a request, and makes those that are new.

    Args:
        policies: What applies.
        notices: Tells the sync cycle.
        clock: Returns the time in seconds since the epoch.
        max_keys: How many keys are kept at most. Requests of further ones are admitted uncounted.
        reserves: See ``ClientState``.

    Attributes:
        grants: Grant types with limits of their own.
        plain: By client id, the places that most requests ask for: at the token endpoint, without a grant of their own.
    """

    def __init__(
        self,
        policies: PolicySet,
        *,
        dirty_queue: DirtyQueue,
        clock: Callable[[], float],
        max_keys: int,
        reserves: bool = False,
    ) -> None:
        self.grants = policies.grants
        self.plain: dict[str, ClientState] = {}
        self.dirty_queue = dirty_queue
        self._special: dict[tuple[str, str, str | None], ClientState] = {}
        self._policies = policies
        self._clock = clock
        self._max_keys = max_keys
        self._reserves = reserves
        self._key_count = 0
        self._max_clients = max_keys + SPARE_PLACES
        self._swept_s = -math.inf
        self._said_full_s = -math.inf
        self._lock = threading.Lock()  # guards changes of the two mappings, the policies and the count

    @property
    def key_count(self) -> int:
        """How many keys are known."""
        return self._key_count

    @property
    def client_count(self) -> int:
        """How many places are known."""
        return len(self.plain) + len(self._special)

    @property
    def excess_count(self) -> int:
        """How many keys should be forgotten to make room for new ones."""
        if self._key_count < self._max_keys * CROWDED_RATIO:
            return 0
        return self._key_count - int(self._max_keys * ROOMY_RATIO)

    def get(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientState:
        """Return a client's place.

        Raises:
            TypeError: The client id is not text.
        """
        if not isinstance(client_id, str):
            raise TypeError(f"client_id must be text, got {client_id!r}")
        if not isinstance(endpoint, str):
            raise TypeError(f"endpoint must be text, got {endpoint!r}")
        name = storable_name(client_id)
        if endpoint == TOKEN_ENDPOINT and grant_type not in self.grants:
            client = self.plain.get(name)
        else:
            if endpoint != TOKEN_ENDPOINT:
                grant_type = None
            client = self._special.get((name, endpoint, grant_type))
        if client is not None:
            return client
        now_s = self._clock()
        with self._lock:
            configured_id = client_id if len(client_id) <= MAX_CONFIGURED_LENGTH else name
            policies = self._policies.matching(configured_id, endpoint=endpoint, grant_type=grant_type)
            client = ClientState(name, policies, now_s, dirty_queue=self.dirty_queue, reserves=self._reserves)
            client.configured_id = configured_id
            is_plain = endpoint == TOKEN_ENDPOINT and grant_type not in self.grants
            if self.client_count < self._max_clients:
                if is_plain:
                    return self.plain.setdefault(name, client)
                return self._special.setdefault((name, endpoint, grant_type), client)
            known = self.plain.get(name) if is_plain else self._special.get((name, endpoint, grant_type))
        if known is None:
            self._say_full(now_s)
            client.exempt = client.exempt or FullDecision(True, False, client.mode)
        return known or client

    def find(self, client_id: str, *, endpoint: str) -> ClientState | None:
        """Return a client's place at another endpoint than the token endpoint if it is known, and make none."""
        return self._special.get((storable_name(client_id), endpoint, None))

    @contextmanager
    def held(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Iterator[ClientState]:
        """Yield a client's place with its lock held, so that keys can be added.

        Raises:
            TypeError: The client id is not text.
        """
        while True:
            client = self.get(client_id, endpoint=endpoint, grant_type=grant_type)
            with client.lock:
                if not client.is_gone:
                    yield client
                    return

    def sweep(self, now_s: float) -> None:
        """
        Forget places without keys, if there are more places than keys can explain: once a minute, or if it is urgent.

        Whoever finds a place and then its lock taken may find it gone: it is so marked, and out of the mappings,
        before the lock is free again. So of one key there are never two states.
        """
        is_crowded = self.client_count >= self._max_clients * CROWDED_RATIO
        if not is_crowded and 0 <= now_s - self._swept_s < SWEEP_GAP_S:
            return
        if self.client_count <= 2 * self._key_count + SPARE_PLACES // 2:
            return
        self._swept_s = now_s
        with self._lock:
            plain, special = list(self.plain.items()), list(self._special.items())
        for name, client in plain:
            self._drop(self.plain, name, client=client, now_s=now_s)
        for identity, client in special:
            self._drop(self._special, identity, client=client, now_s=now_s)

    def _drop(self, clients: dict[Name, ClientState], name: Name, *, client: ClientState, now_s: float) -> None:
        with client.lock:
            if client.is_empty(now_s):
                client.leave()
                with self._lock:
                    del clients[name]

    def __iter__(self) -> Iterator[ClientState]:
        with self._lock:
            clients = [*self.plain.values(), *self._special.values()]
        return iter(clients)

    def add_key(self, client: ClientState, username: str | None, now_s: float) -> KeyState:
        """Return the state of a key that the place does not have under this name. Its lock is held by the caller.

        Raises:
            TypeError: The user name is neither text nor None.
        """
        if username is not None:
            if not isinstance(username, str):
                raise TypeError(f"username must be text or None, got {username!r}")
            username = storable_name(username)
            state = client.keys.get(username)
            if state is not None:
                return state
        if username in client.former:  # counted already
            return client.add_key(username, now_s)
        with self._lock:
            is_full = self._key_count >= self._max_keys
            self._key_count += not is_full
        if is_full:
            self._say_full(now_s)
            return client.blank
        state = client.add_key(username, now_s)
        if state is client.blank:
            self.count_forgotten()
        else:
            self.dirty_queue.mark_urgent(state)
        return state

    def count_forgotten(self) -> None:
        """Note that a key was dropped."""
        with self._lock:
            self._key_count -= 1

    def apply(self, policies: PolicySet) -> None:
        """Take over new policies, place by place: a request sees the old ones or the new ones."""
        now_s = self._clock()
        with self._lock:
            self._policies = policies
            self.grants = policies.grants
            plain, special = list(self.plain.values()), list(self._special.items())
        for client in plain:
            client.apply(policies.matching(client.configured_id), now_s)
        for (_, endpoint, grant_type), client in special:
            client.apply(policies.matching(client.configured_id, endpoint=endpoint, grant_type=grant_type), now_s)

    def _say_full(self, now_s: float) -> None:
        if not 0 <= now_s - self._said_full_s < REPEAT_FULL_S:
            self._said_full_s = now_s
            log.error("keys_exhausted", max_keys=self._max_keys, effect="requests of new keys are admitted uncounted")
