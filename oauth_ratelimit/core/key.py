"""Key of a counter, the forms that names take in it, and user pseudonyms: the username or its keyed hash."""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

MAX_NAME_LENGTH = 512  # characters; every flush sends the key, and Authlib accepts names of megabytes

_FIELD_SYNTAX = frozenset('"=\\')


class Key(NamedTuple):
    """Identity of one shared document.

    It is a tuple, so that ``("a:b", "c")`` and ``("a", "b:c")`` are two keys, and None is not "None".
    """

    client_id: str
    username: str | None  # pseudonym of the resource owner, None for grants without a user
    # Name of another counter, such as ``client_total`` or an endpoint. None for the plain token counter.
    scope: str | None = None


def storable_name(name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a client id or username in a form that can be stored. Short valid Unicode stays as it is.

    Any other name is cut, and a digest of the whole name is appended, so that two names stay different.
    """
    if len(name) <= max_length and (name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)):
        return name
    whole = name.encode("utf-8", "surrogatepass")
    head = name[:64].encode("utf-8", "replace").decode("utf-8")
    return f"{head}~{hashlib.sha256(whole).hexdigest()}"


CROSS_SITE = "\x1fcross-site"  # after a user's name; hardly any holds such a character


def cross_site_name(pseudonym: str) -> str:
    """Return the name under which those tokens of a user count that web pages of other sites have asked for."""
    return storable_name(f"{pseudonym}{CROSS_SITE}")


def visible_name(name: str) -> str:
    """Return a name as logs show it, with escapes for invisible characters such as controls and direction marks."""
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode("ascii")
        for letter in name
    )


def logged_name(name: str) -> str:
    """Return a name as log events hold it: no renderer can show a part of it as another field or line.

    Escapes what ``visible_name`` does, and ``"``, ``=`` and the backslash.
    """
    if name.isprintable() and _FIELD_SYNTAX.isdisjoint(name):
        return name
    return "".join(f"\\x{ord(letter):02x}" if letter in _FIELD_SYNTAX else visible_name(letter) for letter in name)


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Return True if a name equals one of the patterns or matches one in shell style, case-sensitive.

    Equality is tested first, because a name itself may contain ``[``, ``*`` or ``?``.
    """
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


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
    """Key for pseudonyms of usernames; without it they stay plain. Former keys are for ``all_of``. Thread-safe."""

    def __init__(self, key: PseudonymKey | None, former_keys: Sequence[PseudonymKey] = ()) -> None:
        self._key = key
        self._keys = (*former_keys,) if key is None else (key, *former_keys)
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
        return (*(key(user) for key in self._keys), storable_name(user))
