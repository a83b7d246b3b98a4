"""Readers and writers of single fields, shared by the documents of all collections."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeGuard, TypeVar, get_type_hints

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)  # raised by a document of another form
MAX_LOGGED = 300  # characters of what is wrong with a document
MAX_NAMED = 20  # documents with something wrong
EARLIEST_S = 10**10  # before 1970, in the year 1653
LATEST_S = 253_402_300_799  # the last date; a frame may have a later name
MAX_EXACT = 2**53  # below, one can be added to a floating-point number
NO_LIST = {"$not": {"$type": "array"}}  # a condition is met by a list if one of its values, or its position, meets it


def fits(max_bytes: int, path: str = "$$ROOT") -> dict[str, Any]:
    """Return the filter by which the server leaves out documents above a size, so that it does not send them."""
    return {"$expr": {"$lte": [{"$bsonSize": path}, max_bytes]}}


def well_formed(
    parse: Callable[[dict[str, Any]], T], documents: Iterable[dict[str, Any]], *, event: str | None = None
) -> Iterator[T]:
    """Yield what can be parsed of documents. Those of another form are logged as ``event``, of many their number."""
    malformed_count = 0
    for document in documents:
        try:
            yield parse(document)
        except MALFORMED as exc:
            malformed_count += 1
            if event and malformed_count <= MAX_NAMED:
                reason = visible_name(f"{type(exc).__name__}: {exc}"[:MAX_LOGGED])
                log.error(event, id=visible_name(repr(document["_id"])[:MAX_LOGGED]), reason=reason)
    if event and malformed_count > MAX_NAMED:
        log.error(event, count=malformed_count - MAX_NAMED)


def date_of(at_s: float) -> datetime:
    """Return a time in seconds since the epoch as MongoDB stores it."""
    return datetime.fromtimestamp(at_s, UTC)


def whole_number(value: object, *, at_most: int = MAX_EXACT) -> int | None:
    """Return a whole number from 0 to a maximum, None for anything else. Old shells write every number as a float."""
    if type(value) is int:  # nearly every number of a document
        return value if 0 <= value <= at_most else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= at_most:
        return None
    if isinstance(value, float) and (value >= MAX_EXACT or not value.is_integer()):
        return None
    return int(value)


def checked_number(value: object, *, at_most: int = MAX_EXACT) -> int:
    """Return a whole number from 0 to a maximum. Raises ``ValueError`` for anything else."""
    number = whole_number(value, at_most=at_most)
    if number is None:
        raise ValueError(f"expected a whole number from 0 to {at_most}, got {value!r}")
    return number


def count(value: object) -> int:
    """Return a count, 0 in place of anything else."""
    return whole_number(value) or 0


def is_text(value: object) -> TypeGuard[str]:
    """Return True for text. The driver's ``Code`` is a kind of text that cannot be the key of a mapping."""
    return type(value) is str


def checked_text(value: object) -> str:
    """Return text. Raises ``TypeError`` for anything else."""
    if not is_text(value):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def _finite_number(value: Any) -> float:
    number = float(value)
    if not -EARLIEST_S <= number <= LATEST_S:  # false for NaN, too
        raise ValueError("out of range")
    return number


_READERS: dict[Any, Callable[[Any], Any]] = {str: checked_text, int: checked_number, float: _finite_number, bool: bool}
_READERS |= {kind | None: read for kind, read in _READERS.items()}


@lru_cache
def _readers_of(kind: type) -> list[tuple[str, Callable[[Any], Any], bool]]:
    """Return name, reader and whether it may be None of each field of a named tuple. Other types are left out."""
    hints = get_type_hints(kind).items()
    return [(name, _READERS[hint], not isinstance(hint, type)) for name, hint in hints if hint in _READERS]


def fields_of(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a named tuple that a document has under their names, or raise one of ``MALFORMED``."""
    return {
        name: None if document.get(name) is None else read(document[name])
        for name, read, is_optional in _readers_of(kind)
        if is_optional or document.get(name) is not None
    }
