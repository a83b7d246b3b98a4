"""
How moments are written in files: numbers since the epoch, ISO 8601, and the form of access logs.

Moments are kept as whole microseconds, so that algorithms compare them exactly.
"""

from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

SECOND_US = 1_000_000
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
        ValueError: It is neither, or before 1970.
    """
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return _checked(_written_us(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        raise ValueError("no time")
    if 0 <= number < THOUSANDFOLD:
        return round(number * SECOND_US)
    return _checked(_scaled_us(number))


def _scaled_us(number: float) -> int:
    if not 0 <= number < 1e23:  # NaN, too
        return -1
    scaled = float(number)
    while scaled >= THOUSANDFOLD:
        scaled /= 1000
    return round(scaled * SECOND_US)


def _checked(at_us: int) -> int:
    if at_us < 0:
        raise ValueError("a time before 1970 or no number that could be one")
    return at_us


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
    return _checked(_since_epoch_us(moment))


def _since_epoch_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
