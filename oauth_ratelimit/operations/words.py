"""
Times and numbers as people and programs read them.
"""

import math
from datetime import UTC, datetime


def duration(seconds: float) -> str:
    """
    Return a duration for people, rounded up to whole seconds: somebody who comes early comes in vain.
    """
    if math.isinf(seconds):
        return "never"
    whole = math.ceil(seconds)
    for unit_s, unit, rest_s, rest in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            more = whole % unit_s // rest_s
            return f"{whole // unit_s} {unit}" + (f" {more} {rest}" if more else "")
    return f"{whole} s"


def counted(count: int, word: str) -> str:
    """
    Return a number of things: ``1 instance``, ``2 instances``.
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def moment(at_s: float) -> str:
    """
    Return a time for people and programs.
    """
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
