"""Key of a counter, and the forms that names take in it."""

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
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
