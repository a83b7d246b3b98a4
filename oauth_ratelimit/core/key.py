"""Key of a counter, and the forms that names take in it."""

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

MAX_NAME_LENGTH = 512  # characters; a key travels with every flush, and Authlib accepts names of megabytes


class Key(NamedTuple):
    """The identity of one shared document.

    A tuple rather than joined text: ``("a:b", "c")`` and ``("a", "b:c")`` stay two keys, and None is not "None".

    Attributes:
        client_id: The OAuth client.
        username: The resource owner, None for grants without a user.
        scope: None for the plain token counter; names what else is counted, such as ``client_total`` or an endpoint.
    """

    client_id: str
    username: str | None
    scope: str | None = None


def storable_name(name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a client id or user name in a form that can be kept and sent: as it is, if it is short valid Unicode.

    Any other name is cut and closed with a digest of the whole, so that two names stay two.
    """
    if len(name) <= max_length and (name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)):
        return name
    whole = name.encode("utf-8", "surrogatepass")
    head = name[:64].encode("utf-8", "replace").decode("utf-8")
    return f"{head}~{hashlib.sha256(whole).hexdigest()}"


def visible_name(name: str) -> str:
    """
    Return a name as logs show it: what would not simply be seen, such as controls and direction marks, as escapes.
    """
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode("ascii")
        for letter in name
    )


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Return whether a name equals one of the patterns or matches one in shell style, case-sensitive.

    Equality is tested first, because a name itself may contain ``[``, ``*`` or ``?``.
    """
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
