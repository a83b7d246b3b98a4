"""
What stands for a user wherever something is kept, shown or told: the name itself, or a keyed hash of it.

``Names`` is the only place where one becomes the other. Everything behind it sees what it returns and nothing else.
"""

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from oauth_ratelimit.core.key import storable_name

MIN_SECRET_BYTES = 32  # as long as the hash that it keys
HASH_BYTES = 16
LABEL_LENGTH = 6  # 24 bits: enough to tell the few keys apart that are in use at one time
CACHED_NAMES = 50_000  # about 15 MB, at most 40
MAX_CACHED_LENGTH = 128

_HASHED = re.compile(rf"[0-9a-f]{{{LABEL_LENGTH}}}-[0-9a-f]{{{2 * HASH_BYTES}}}")


class StoredName(str):
    """
    What stands for a user. Text like any other to everything that is handed it.

    Attributes:
        others: What the same user goes by with instances that are configured otherwise, and may have counted them.
    """

    __slots__ = ("others",)

    others: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """
        All that the user goes by.
        """
        return (str(self), *self.others)


@dataclass(frozen=True, slots=True)
class PlainForm:
    """
    The name itself, cut if it is long.
    """

    label = "plain"

    def __str__(self) -> str:
        return self.label

    def __call__(self, name: str) -> str:
        """
        Return the name as it is kept.
        """
        return storable_name(name)


@dataclass(frozen=True, slots=True)
class NameKey:
    """
    A key that names are hashed under. Keeps no secret that could be printed: neither does its ``repr``.

    Attributes:
        label: Stands before every hash under this key. Made of the key, so that two keys never go by one label.
    """

    label: str
    _mac: hmac.HMAC = field(repr=False, compare=False)

    @classmethod
    def of(cls, secret: bytes) -> "NameKey":
        """
        Return the key of a secret.

        Raises:
            ValueError: The secret is shorter than 32 bytes.
        """
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a key needs {MIN_SECRET_BYTES} bytes, got {len(secret)}")
        mac = hmac.new(secret, digestmod="sha256")
        return cls(_hash(mac, b"oauth_ratelimit: label of this key")[:LABEL_LENGTH], mac)

    def __str__(self) -> str:
        return self.label

    def __call__(self, name: str) -> str:
        """
        Return the hash of a name, of the whole of it however long it is.
        """
        return f"{self.label}-{_hash(self._mac, name.encode('utf-8', 'surrogatepass'))}"


Form = PlainForm | NameKey
"""
Turns a name into what stands for it.
"""

PLAIN = PlainForm()


def _hash(mac: hmac.HMAC, content: bytes) -> str:
    mac = mac.copy()
    mac.update(content)
    return mac.digest()[:HASH_BYTES].hex()


def _stored(first: str, *others: str) -> StoredName:
    name = StoredName(first)
    name.others = others
    return name


class Names:
    """
    Turns the name of a user into what stands for it. Thread-safe.

    Args:
        forms: The first is what is kept and shown. The others are read as well, so that nothing that is counted under
            them is lost while the instances change from one to the other.
    """

    def __init__(self, forms: Sequence[Form]) -> None:
        self._forms = tuple(forms)
        self._labels = {form.label for form in forms if isinstance(form, NameKey)}
        self._cached = lru_cache(CACHED_NAMES)(self._make)

    @property
    def is_in_transition(self) -> bool:
        """
        Whether a user goes by more than one name.
        """
        return len(self._forms) > 1

    def __call__(self, name: str | None) -> str | None:
        """
        Return what stands for a user: a ``StoredName``. None stays None.
        """
        if not isinstance(name, str):
            return name  # what is no text at all is refused where names are looked up
        return self._cached(name) if len(name) <= MAX_CACHED_LENGTH else self._make(name)

    def _make(self, name: str) -> StoredName:
        # Nobody may be called like another's hash, where plain names and hashes are read together.
        plain = f"{name}~" if self._is_hash(name) else name
        return _stored(*(form(plain if form == PLAIN else name) for form in self._forms))

    def typed(self, name: str) -> StoredName:
        """
        Return what stands for a user whom an operator has named.

        Args:
            name: The name, or a hash of it under a key that is listed, as it is read in a log.
        """
        return _stored(name) if self._is_hash(name) else self._make(name)

    def _is_hash(self, name: str) -> bool:
        return _HASHED.fullmatch(name) is not None and name[:LABEL_LENGTH] in self._labels
