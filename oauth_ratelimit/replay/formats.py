"""Formats of recorded traffic: CSV, JSON lines and access logs."""

import csv
import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple, Protocol

SECOND_US = 1_000_000
MAX_TIME_S = 1e11  # in the year 5138; a larger number is in a smaller unit
MAX_NAME_LENGTH = 1024  # of a client or user, as in the configuration
MISSING = 1 << 30  # position of a column that a header lacks
ACCESS_LOG = re.compile(
    r'(?P<host>\S+) \S+ (?P<user>\S+(?: \S+)*?) \[(?P<time>[^\]]{1,64})\] "(?P<request>(?:[^"\\]|\\.)*)"(?: |$)'
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


class Row(NamedTuple):
    """One recorded request.

    Attributes:
        at_us: Microseconds since the epoch.
        client: Name of the client.
        user: Name of the user, None for a grant without a user.
    """

    at_us: int
    client: str
    user: str | None = None


class Format(enum.StrEnum):
    """Format of a file."""

    CSV = "csv"
    """``time,client[,user]``, or a header with these names in any order."""

    JSON_LINES = "jsonl"
    """One object per line, with the same names."""

    ACCESS_LOG = "access-log"
    """The common or combined log format of Apache and nginx."""


def detect_format(line: str) -> Format:
    """Return the probable format of a file by its first line."""
    if line.startswith("{"):
        return Format.JSON_LINES
    return Format.ACCESS_LOG if ACCESS_LOG.match(line) else Format.CSV


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Names of the columns of a CSV file, or of the members of a JSON object.

    Args:
        time: Name of the column with the time.
        client: Name of the column with the client.
        user: Name of the column with the user; the column may be missing.
    """

    time: str = "time"
    client: str = "client"
    user: str = "user"


class Parser(Protocol):
    """Parser of one format."""

    def parse(self, line: str) -> Row | None:
        """Return the row of a line, None for a line without one, such as a header.

        Raises:
            ValueError: The line is malformed; the text gives the reason.
        """
        ...


class CsvParser:
    """Parser of CSV: columns ``time,client[,user]``, or any order after a header.

    Args:
        names: Names in the header.
    """

    def __init__(self, names: ColumnNames) -> None:
        self._names = names
        self._columns: tuple[int, ...] | None = None

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        fields = line.split(",") if '"' not in line else _quoted(line)
        if self._columns is None:
            header = [field.strip() for field in fields]
            names = (self._names.time, self._names.client, self._names.user)
            if names[0] in header:
                self._columns = tuple(header.index(name) if name in header else MISSING for name in names)
                return None
            self._columns = (0, 1, 2)
        time, client, user = self._columns
        if max(time, client) >= len(fields):
            raise ValueError("the column with the time or the client is missing")
        return Row(
            parse_time_us(fields[time]), _name(fields[client]), _user(fields[user]) if user < len(fields) else None
        )


def _quoted(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as exc:
        raise ValueError(f"not CSV: {exc}") from None


class JsonParser:
    """Parser of JSON lines.

    Args:
        names: Names of its members.
    """

    def __init__(self, names: ColumnNames) -> None:
        self._names = names

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None
        if not isinstance(found, Mapping):
            raise ValueError("not a JSON object")
        names = self._names
        if names.time not in found or names.client not in found:
            raise ValueError(f"{names.time!r} or {names.client!r} is missing")
        return Row(parse_time_us(found[names.time]), _name(found[names.client]), _user(found.get(names.user)))


class AccessLogParser:
    """Parser of the common and the combined log format.

    Args:
        path: Read only requests of this path; None reads all.
        client_pattern: Pattern that finds the client in its group ``client`` or its first group, and the user in its
            group ``user`` if it has one. Lines without a match are skipped. None reads the authenticated user of the
            log, which is the client if clients authenticate by HTTP Basic, or the host if there is none.
    """

    def __init__(self, *, path: str | None = None, client_pattern: re.Pattern[str] | None = None) -> None:
        self._path = path
        self._pattern = client_pattern
        groups = client_pattern.groupindex if client_pattern else {}
        self._client_group = groups.get("client", 1)
        self._user_group = groups.get("user")

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        match = ACCESS_LOG.match(line)
        if match is None:
            raise ValueError("not the common or combined log format")
        host, remote_user, time, request = match.group("host", "user", "time", "request")
        if self._path is not None and _path(request) != self._path:
            return None
        if self._pattern is None:
            return Row(parse_log_time_us(time), _name(host if remote_user == "-" else remote_user))
        found = self._pattern.search(line)
        if found is None or found[self._client_group] is None:
            return None
        user = found[self._user_group] if self._user_group else None
        return Row(parse_log_time_us(time), _name(found[self._client_group]), _user(user))


def _path(request: str) -> str:
    words = request.split(" ")
    return words[1].partition("?")[0] if len(words) > 1 else ""


def _name(value: object) -> str:
    name = value.strip() if isinstance(value, str) else str(value) if type(value) is int else ""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"invalid name of a client or user: expected 1 to {MAX_NAME_LENGTH} characters")
    return name


def _user(value: object) -> str | None:
    return None if value is None or value == "" else _name(value)


def parse_time_us(value: object) -> int:
    """Return a time in microseconds since the epoch.

    Args:
        value: Seconds since the epoch; a number too large for that is in milli-, micro- or nanoseconds. Or ISO 8601, in
            UTC if it names no zone.

    Raises:
        ValueError: The value is neither, or before 1970.
    """
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return _checked(_iso_us(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        raise ValueError("not a time: expected a number or a text")
    if 0 <= number < MAX_TIME_S:
        return round(number * SECOND_US)
    return _checked(_scaled_us(number))


def _scaled_us(number: float) -> int:
    if not 0 <= number < 1e23:  # false for NaN, too
        return -1
    scaled = float(number)
    while scaled >= MAX_TIME_S:
        scaled /= 1000
    return round(scaled * SECOND_US)


def _checked(at_us: int) -> int:
    if at_us < 0:
        raise ValueError("not a time: before 1970 or out of range")
    return at_us


def _iso_us(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"not a time: {text[:40]!r}") from None
    return _since_epoch_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


@lru_cache(maxsize=1024)  # busy logs have many lines with the same second
def parse_log_time_us(text: str) -> int:
    """Return a time of an access log, such as ``01/Aug/1995:00:00:07 -0400``, in microseconds since the epoch.

    Raises:
        ValueError: The text has another form.
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
        raise ValueError(f"not a time: {text[:40]!r}") from None
    return _checked(_since_epoch_us(moment))


def _since_epoch_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
