"""User pseudonyms: the username or its keyed hash."""

import base64
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from oauth_ratelimit.core.key import storable_name

MIN_SECRET_BYTES = 32  # as long as the hash that it keys
HASH_BYTES = 16
LABEL_LENGTH = 6  # 24 bits: enough to distinguish the few keys that are in use at one time
CACHED_NAMES = 50_000  # about 15 MB, at most 40
MAX_CACHED_LENGTH = 128

_HEX_HASH = re.compile(rf"[0-9a-f]{{{2 * HASH_BYTES}}}")


@dataclass(frozen=True, slots=True)
class PseudonymKey:
    """A key that hashes usernames. It does not keep the secret, so it cannot print it."""

    label: str  # Prefix of every hash under this key. It is derived from the key, so two keys have two labels.
    _mac: hmac.HMAC = field(repr=False, compare=False)

    @classmethod
    def of(cls, secret: bytes) -> "PseudonymKey":
        """Return the key of a secret. Raises ``ValueError`` if that is shorter than 32 bytes."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a key needs {MIN_SECRET_BYTES} bytes, got {len(secret)}")
        mac = hmac.new(secret, digestmod="sha256")
        return cls(_hash(mac, b"oauth_ratelimit: label of this key").hex()[:LABEL_LENGTH], mac)

    def __str__(self) -> str:
        return self.label

    def __call__(self, username: str) -> str:
        """Return the hash of a username. It covers the whole name, however long it is."""
        return f"{self.label}-{_hash(self._mac, username.encode('utf-8', 'surrogatepass')).hex()}"

    def partition(self, client_id: str, username: str) -> str:
        """Return a hash of a client and one of its users, in base64."""
        return base64.b64encode(_hash(self._mac, repr((client_id, username)).encode())).decode()

    def is_hash(self, text: str) -> bool:
        """Return True if a text has the form of a hash under this key."""
        label, _, digest = text.partition("-")
        return label == self.label and _HEX_HASH.fullmatch(digest) is not None


def _hash(mac: hmac.HMAC, content: bytes) -> bytes:
    mac = mac.copy()
    mac.update(content)
    return mac.digest()[:HASH_BYTES]


class Pseudonyms:
    """Turns usernames into pseudonyms; without a key they stay plain. Former keys are for ``all_of``. Thread-safe."""

    def __init__(self, key: PseudonymKey | None, former_keys: Sequence[PseudonymKey] = ()) -> None:
        self._key = key
        self._hashes = (*former_keys,) if key is None else (key, *former_keys)
        self._make: Callable[[str], str] = storable_name if key is None else key
        self._cached = lru_cache(CACHED_NAMES)(self._make)

    def __call__(self, username: str | None) -> str | None:
        """Return the pseudonym of a user. None stays None."""
        if not isinstance(username, str):
            return username  # the limiter rejects what is neither text nor None
        return self._cached(username) if len(username) <= MAX_CACHED_LENGTH else self._make(username)

    def typed(self, user: str) -> str:
        """Return the pseudonym of a user whom an operator has named: plainly, or by its hash under the current key."""
        return user if self._key is not None and self._key.is_hash(user) else self._make(user)

    def all_of(self, user: str) -> tuple[str, ...]:
        """Return every pseudonym that records of a user, or of a hash, may carry: under each key, and plain."""
        return (*(key(user) for key in self._hashes), storable_name(user))
