"""Arguments of queries, checked."""

import re
from collections.abc import Sequence
from datetime import timedelta, timezone

from oauth_ratelimit.admin.cache import Params

MAX_OFFSET_MIN = 14 * 60  # of any zone
MAX_SHOWN = 40  # characters of a bad value


def choice(params: Params, name: str, allowed: Sequence[str], default: str) -> str:
    """Return an argument that is one of some words.

    Raises:
        ValueError: It is not; the message names them.
    """
    value = params.get(name, default)
    if value not in allowed:
        raise ValueError(f"{name}: got {value[:MAX_SHOWN]!r}, expected one of {', '.join(allowed)}")
    return value


def whole(params: Params, name: str, *, default: int, highest: int) -> int:
    """Return an argument that is a whole number from 1 to ``highest``.

    Raises:
        ValueError: It is not; the message says what is allowed.
    """
    text = params.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(highest)) and 1 <= int(text) <= highest):
        raise ValueError(f"{name}: got {text[:MAX_SHOWN]!r}, expected a whole number from 1 to {highest}")
    return int(text)


def flag(params: Params, name: str, *, default: bool) -> bool:
    """Return an argument that is ``1`` or ``0``.

    Raises:
        ValueError: It is neither.
    """
    return choice(params, name, ("1", "0"), "1" if default else "0") == "1"


def zone(params: Params, name: str) -> timezone:
    """Return the time zone of an argument, its minutes ahead of UTC.

    Raises:
        ValueError: It is no such number.
    """
    text = params.get(name, "0")
    if not re.fullmatch("-?[0-9]{1,3}", text) or abs(int(text)) > MAX_OFFSET_MIN:
        allowed = f"minutes ahead of UTC from -{MAX_OFFSET_MIN} to {MAX_OFFSET_MIN}"
        raise ValueError(f"{name}: got {text[:MAX_SHOWN]!r}, expected {allowed}")
    return timezone(timedelta(minutes=int(text)))
