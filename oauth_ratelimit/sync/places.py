"""
All places and keys that an instance knows.
"""

import threading
from collections.abc import Callable, Iterator

import structlog

from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, PolicySet
from oauth_ratelimit.sync.counters import Bucket
from oauth_ratelimit.sync.notices import Notices
from oauth_ratelimit.sync.place import Place

log = structlog.get_logger(__name__)

CROWDED_RATIO = 0.95  # of the number of keys allowed: from here on the sync cycle makes room
ROOMY_RATIO = 0.9  # until here


class Places:
    """
    Finds the place of a request, and makes those that are new.

    Args:
        policies: What applies.

        notices: Tells the sync cycle.

        clock: Returns the time in seconds since the epoch.

        max_keys: How many keys are kept at most. Requests of further ones are admitted uncounted.

        reserves: See ``Place``.

    Attributes:
        grants: Grant types with limits of their own.

        plain: By client id, the places that most requests ask for: at the token endpoint, without a grant of their own.
    """

    def __init__(
        self,
        policies: PolicySet,
        *,
        notices: Notices,
        clock: Callable[[], float],
        max_keys: int,
        reserves: bool = False,
    ) -> None:
        self.grants = policies.grants
        self.plain: dict[str, Place] = {}
        self.notices = notices
        self._special: dict[tuple[str, str, str | None], Place] = {}
        self._policies = policies
        self._clock = clock
        self._max_keys = max_keys
        self._reserves = reserves
        self._key_count = 0
        self._has_said_full = False
        self._lock = threading.Lock()  # guards additions to the two mappings, the policies and the count

    @property
    def key_count(self) -> int:
        """
        How many keys are known.
        """
        return self._key_count

    @property
    def excess_count(self) -> int:
        """
        How many keys should be forgotten to make room for new ones.
        """
        if self._key_count < self._max_keys * CROWDED_RATIO:
            return 0
        return self._key_count - int(self._max_keys * ROOMY_RATIO)

    def get(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> Place:
        """
        Return a client's place.

        Raises:
            TypeError: The client id is not text.
        """
        if not isinstance(client_id, str):
            raise TypeError(f"client_id must be text, got {client_id!r}")
        name = storable_name(client_id)
        if endpoint == TOKEN_ENDPOINT and grant_type not in self.grants:
            place = self.plain.get(name)
        else:
            if endpoint != TOKEN_ENDPOINT:
                grant_type = None
            place = self._special.get((name, endpoint, grant_type))
        if place is not None:
            return place
        with self._lock:
            policies = self._policies.matching(client_id, endpoint=endpoint, grant_type=grant_type)
            place = Place(name, policies, self._clock(), notices=self.notices, reserves=self._reserves)
            if endpoint == TOKEN_ENDPOINT and grant_type not in self.grants:
                return self.plain.setdefault(name, place)
            return self._special.setdefault((name, endpoint, grant_type), place)

    def __iter__(self) -> Iterator[Place]:
        with self._lock:
            places = [*self.plain.values(), *self._special.values()]
        return iter(places)

    def add_key(self, place: Place, username: str | None, now_s: float) -> Bucket:
        """
        Return the first bucket of a key that the place does not have under this name. Its lock is held by the caller.

        Raises:
            TypeError: The user name is neither text nor None.
        """
        if username is not None:
            if not isinstance(username, str):
                raise TypeError(f"username must be text or None, got {username!r}")
            username = storable_name(username)
            head = place.heads.get(username)
            if head is not None:
                return head
        if self._key_count >= self._max_keys:
            self._say_full()
            return place.blank
        head = place.add_key(username, now_s)
        if head is not place.blank:
            self.notices.hurry(head.state)
            with self._lock:
                self._key_count += 1
        return head

    def count_forgotten(self) -> None:
        """
        Note that a key was dropped.
        """
        with self._lock:
            self._key_count -= 1
            self._has_said_full = False

    def apply(self, policies: PolicySet) -> None:
        """
        Take over new policies, place by place: a request sees the old ones or the new ones.
        """
        now_s = self._clock()
        with self._lock:
            self._policies = policies
            self.grants = policies.grants
            plain, special = list(self.plain.values()), list(self._special.items())
        for place in plain:
            place.apply(policies.matching(place.client_id), now_s)
        for (_, endpoint, grant_type), place in special:
            place.apply(policies.matching(place.client_id, endpoint=endpoint, grant_type=grant_type), now_s)

    def _say_full(self) -> None:
        if not self._has_said_full:
            self._has_said_full = True
            log.error("keys_exhausted", max_keys=self._max_keys, effect="requests of new keys are admitted uncounted")
