"""
How moments are written in files: numbers since the epoch, ISO 8601, and the form of access logs.

Moments are kept as whole microseconds, so that algorithms compare them exactly.
"""

from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

SECOND_US = 1_000_000
LATEST_US = 253_402_300_800 * SECOND_US  # the end of the year 9999
THOUSANDFOLD = 1e11  # seconds since the epoch in the year 5138: a larger number counts a smaller unit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


def moment_us(value: object) -> int:
    """
    Return the moment that a number or a text names, in microseconds since the epoch.

    Args:
        value: Seconds since the epoch; a number too large for that counts milli-, micro- or nanoseconds. Or ISO 8601,
            in UTC if it names no zone.

    Raises:
        ValueError: It is neither, or not from 1970 to 9999.
    """
    if isinstance(value, str):
        try:
            at_us = int(value) * SECOND_US if value.isdecimal() and len(value) < 12 else _counted_us(float(value))
        except ValueError:
            at_us = _written_us(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        at_us = _counted_us(value)
    else:
        raise ValueError("no time")
    if not 0 <= at_us < LATEST_US:
        raise ValueError("a time before 1970 or after 9999")
    return at_us


def _counted_us(number: float) -> int:
    if not 0 <= number < 1e23:  # NaN, too
        raise ValueError("a time before 1970 or after 9999")
    scaled = number
    while scaled >= THOUSANDFOLD:
        scaled /= 1000
    return round(scaled * SECOND_US)


def _written_us(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"no time: {text[:40]!r}") from None
    return _since_epoch_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


@lru_cache(maxsize=1024)  # a busy log has many lines of one second
def access_log_us(text: str) -> int:
    """
    Return the moment that an access log writes as ``01/Aug/1995:00:00:07 -0400``.

    Raises:
        ValueError: It does not look like that.
    """
    try:
        day, month, rest = text.split("/")
        year, hour, minute, second_and_zone = rest.split(":")
        second, zone = second_and_zone.split()
        offset = timedelta(hours=int(zone[:3]), minutes=int(zone[0] + zone[3:5]))
        moment = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=timezone(offset)
        )
    except (ValueError, LookupError):
        raise ValueError(f"no time: {text[:40]!r}") from None
    at_us = _since_epoch_us(moment)
    if at_us < 0:
        raise ValueError("a time before 1970 or after 9999")
    return at_us


def _since_epoch_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
