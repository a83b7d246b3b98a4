"""Readers and writers of single fields, shared by the documents of all collections."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)  # raised by a document of another form
MAX_EXACT = 2**53  # below, one can be added to a floating-point number


def date_of(at_s: float) -> datetime:
    """Return a time in seconds since the epoch as MongoDB stores it."""
    return datetime.fromtimestamp(at_s, UTC)


def whole_number(value: object, *, at_most: int) -> int | None:
    """Return a whole number from 0 to a maximum, None for anything else. Old shells write every number as a float."""
    if type(value) is int:  # nearly every number of a document
        return value if 0 <= value <= at_most else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= at_most:
        return None
    if isinstance(value, float) and (value >= MAX_EXACT or not value.is_integer()):
        return None
    return int(value)


def is_text(value: object) -> TypeGuard[str]:
    """Return True for text. The driver's ``Code`` is a kind of text that cannot be the key of a mapping."""
    return type(value) is str


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}
