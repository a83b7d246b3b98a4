"""Notation of durations and limits: ``500ms``, ``1h``, ``100/minute``, ``40/5s``, ``5 per 10 second; 100/hour``.

The file, the command line and the admin page all read and write it here.
"""

import re
from decimal import Decimal

_UNITS_MS = {
    1: ("ms",),
    1000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hr", "hrs", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNIT_MS = {word: unit_ms for unit_ms, words in _UNITS_MS.items() for word in words}
_DURATION = rf"([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?) ?({'|'.join(sorted(_UNIT_MS, key=len, reverse=True))})"

DURATION_PATTERN = f"^{_DURATION}$"
DURATION_NOTATION = "seconds as a number, or text such as 500ms, 10s, 1m, 1h, 1d"

MAX_DURATION_S = 10**12  # still exact as a float
MAX_RATES_LENGTH = 500  # some 30 limits

_RATE = r"\s*([0-9]{1,20})\s*(?:/|[Pp][Ee][Rr])\s*(?:([0-9]{1,12})\s*)?([A-Za-z]+)\s*"
RATES_PATTERN = rf"^{_RATE}(?:[,;|]{_RATE})*$"
RATES_NOTATION = "text such as 100/minute, 40/5s, 5 per 10 second, 10/second; 100/hour"

_LONGEST_FIRST = ((86_400, "day", "d"), (3600, "hour", "h"), (60, "minute", "m"), (1, "second", "s"))

# A month is 30 days and a year twelve of them, as in the limits library.
_GRANULARITY_S = {word: unit_ms // 1000 for word, unit_ms in _UNIT_MS.items() if unit_ms >= 1000} | {
    "month": 30 * 86_400,
    "months": 30 * 86_400,
    "year": 360 * 86_400,
    "years": 360 * 86_400,
}


def parse_duration(value: object) -> float:
    """Return the seconds of a number or a text with a unit. Raises ``ValueError`` for all else, such as a bool."""
    if isinstance(value, str):
        match = re.fullmatch(_DURATION, value)
        if match is None:
            raise ValueError(DURATION_NOTATION)
        # Decimal, so that 1.1m is 66 s and not a little more.
        return float(Decimal(match[1]) * _UNIT_MS[match[2]] / 1000)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_DURATION_S:
        raise ValueError(DURATION_NOTATION)
    return float(value)


def parse_typed_duration(text: str) -> float:
    """Return the seconds of a duration from a terminal or a form, where a number is a text, too."""
    return parse_duration(float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else text)


def parse_rates(text: str) -> tuple[tuple[int, int], ...]:
    """Return each limit and its window in seconds from text in the notation of the ``limits`` library.

    Raises ``ValueError`` for other text.
    """
    if len(text) > MAX_RATES_LENGTH:
        raise ValueError(f"up to {MAX_RATES_LENGTH} characters of {RATES_NOTATION}")
    return tuple(_parse_rate(part) for part in re.split(r"[,;|]", text))


def _parse_rate(text: str) -> tuple[int, int]:
    match = re.fullmatch(_RATE, text)
    word = match[3] if match else ""
    granularity_s = _GRANULARITY_S.get(word.lower() if len(word) > 1 else word)  # M could be a month
    if match is None or granularity_s is None:
        raise ValueError(RATES_NOTATION)
    return int(match[1]), int(match[2] or 1) * granularity_s


def rate_text(limit: int, window_s: int) -> str:
    """Return a limit as ``parse_rates`` reads it: ``100/minute``, ``40/5s``, ``400/10m``."""
    unit_s, word, letter = next(unit for unit in _LONGEST_FIRST if window_s % unit[0] == 0)
    return f"{limit}/{word}" if window_s == unit_s else f"{limit}/{window_s // unit_s}{letter}"
