"""Formats of recorded traffic: CSV, JSON lines and access logs."""

import csv
import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple, Protocol

from oauth_ratelimit.core.key import visible_name

SECOND_US = 1_000_000
MAX_TIME_S = 1e11  # in the year 5138; a larger number is in a smaller unit
MAX_NAME_LENGTH = 1024  # of a client or user, as in the configuration
MISSING = 1 << 30  # position of a column that a header lacks
DELIMITERS = ("\t", ";", "|", ",")  # the first one wins a tie: a decimal comma is no delimiter
MAX_COLUMNS_NAMED = 20
TIMES = "seconds since the epoch, 2026-12-01T00:00:00Z or 01/Dec/2026:00:00:00 +0000"
REQUEST_MEMBERS = ("uri", "request_uri", "path")  # of a JSON object, besides ``request``
ADDRESS_MEMBER = "remote_addr"
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
        grant: Grant type, None if it is not recorded.
    """

    at_us: int
    client: str
    user: str | None = None
    grant: str | None = None


class Format(enum.StrEnum):
    """Format of a file."""

    CSV = "csv"
    """``time,client[,user]``, or a header with these names in any order; comma, semicolon, tab or pipe."""

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
    """Names of the columns of a CSV file, or of the members of a JSON object; the first one that is there is read.

    Args:
        time: Names of the column with the time.
        client: Names of the column with the client.
        user: Names of the column with the user; the column may be missing.
        grant: Names of the column with the grant type; the column may be missing.
    """

    time: tuple[str, ...] = ("time", "timestamp", "ts", "@timestamp", "time_local", "time_iso8601", "msec")
    client: tuple[str, ...] = ("client", "client_id", "remote_user")
    user: tuple[str, ...] = ("user", "username")
    grant: tuple[str, ...] = ("grant", "grant_type")

    def missing(self, found: Sequence[str]) -> str | None:
        """Return a sentence about a required column that is not among those found, None if both are there."""
        for what, names in (("time", self.time), ("client", self.client)):
            if not any(name in found for name in names):
                listed = ", ".join(map(visible_name, found[:MAX_COLUMNS_NAMED]))
                example = f"--column {what}={visible_name(found[0])}" if found else f"--column {what}=NAME"
                return f"no column for the {what}; found: {listed or 'nothing'}. Name it, as in {example}"
        return None


class UnusableFile(Exception):
    """A file that is no text, or has no column for the time or the client. The text says what was found."""


class Parser(Protocol):
    """Parser of one format.

    Attributes:
        address_count: Rows without a client, whose address is taken for it.
    """

    address_count: int

    def parse(self, line: str) -> Row | None:
        """Return the row of a line, None for a line without one, such as a header.

        Raises:
            ValueError: The line is malformed; the text gives the reason.
            UnusableFile: The file is not what was expected.
        """
        ...


class CsvParser:
    """Parser of CSV: columns ``time,client[,user]``, or any order after a header. The first line shows the delimiter.

    Args:
        names: Names in the header.
    """

    def __init__(self, names: ColumnNames) -> None:
        self.address_count = 0
        self._names = names
        self._delimiter = ","
        self._columns: tuple[int, ...] = ()

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        if not self._columns:
            self._delimiter = max(DELIMITERS, key=lambda delimiter: len(_fields(line, delimiter)))
            fields = _fields(line, self._delimiter)
            if _is_header(fields):
                self._columns = self._positions([field.strip() for field in fields])
                return None
            self._columns = (0, 1, 2, MISSING)
        else:
            fields = _fields(line, self._delimiter)
        time, client, user, grant = self._columns
        if max(time, client) >= len(fields):
            raise ValueError("the column with the time or the client is missing")
        return Row(
            parse_time_us(fields[time]),
            _name(fields[client]),
            _user(fields[user]) if user < len(fields) else None,
            _user(fields[grant]) if grant < len(fields) else None,
        )

    def _positions(self, header: list[str]) -> tuple[int, ...]:
        names = self._names
        problem = names.missing(header)
        if problem is not None:
            raise UnusableFile(problem)
        wanted = (names.time, names.client, names.user, names.grant)
        return tuple(next((header.index(name) for name in each if name in header), MISSING) for each in wanted)


def _fields(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as exc:
        raise ValueError(f"not CSV: {exc}") from None


def _is_header(fields: list[str]) -> bool:
    return len(fields) > 1 and not any(map(_is_time, fields)) and all(map(str.strip, fields))


def _is_time(value: str) -> bool:
    try:
        parse_time_us(value)
    except ValueError:
        return False
    return True


class JsonParser:
    """Parser of JSON lines.

    Args:
        names: Names of its members.
        path: See ``AccessLogParser``; it is compared with the member ``request``, ``uri``, ``request_uri`` or ``path``.
        client_pattern: See ``AccessLogParser``. None reads the member of the client; if that is empty, as
            ``remote_user`` of nginx may be, ``remote_addr`` is taken for the client.
    """

    def __init__(
        self, names: ColumnNames, *, path: str | None = None, client_pattern: re.Pattern[str] | None = None
    ) -> None:
        self.address_count = 0
        self._names = names
        self._path = path
        self._pattern = client_pattern and _ClientPattern(client_pattern)

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None
        if not isinstance(found, Mapping):
            raise ValueError("not a JSON object")
        if self._path is not None and _requested_path(found) != self._path:
            return None
        names = self._names
        time, client = _member(found, names.time), _member(found, names.client)
        user, grant = _user(_member(found, names.user)), _user(_member(found, names.grant))
        if self._pattern is not None:
            named = self._pattern.find(line)
            if named is None:
                return None
            client, user = named[0], named[1] or user
        if client in (None, "", "-") and time is not None and ADDRESS_MEMBER in found:
            client = found[ADDRESS_MEMBER]
            self.address_count += 1
        if time is None or client is None:
            raise ValueError(names.missing(list(found)) or "the time or the client is null")
        return Row(parse_time_us(time), _name(client), user, grant)


def _member(found: Mapping[str, object], names: Iterable[str]) -> object:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _requested_path(found: Mapping[str, object]) -> str:
    request = found.get("request")
    if isinstance(request, str):
        return _path(request)
    path = _member(found, REQUEST_MEMBERS)
    if not isinstance(path, str):
        raise ValueError(f"no member 'request' or {', '.join(map(repr, REQUEST_MEMBERS))} to compare with the path")
    return path.partition("?")[0]


class _ClientPattern:
    """Regular expression with a group for the client, and perhaps one for the user."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._client_group = pattern.groupindex.get("client", 1)
        self._user_group = pattern.groupindex.get("user")

    def find(self, line: str) -> tuple[str, str | None] | None:
        """Return client and user in a line, None without a match."""
        found = self._pattern.search(line)
        if found is None or found[self._client_group] is None:
            return None
        return found[self._client_group], _user(found[self._user_group]) if self._user_group else None


class AccessLogParser:
    """Parser of the common and the combined log format.

    Args:
        path: Read only requests of this path; None reads all.
        client_pattern: Pattern that finds the client in its group ``client`` or its first group, and the user in its
            group ``user`` if it has one. Lines without a match are skipped. None reads the authenticated user of the
            log, which is the client if clients authenticate by HTTP Basic, or the host if there is none.
    """

    def __init__(self, *, path: str | None = None, client_pattern: re.Pattern[str] | None = None) -> None:
        self.address_count = 0
        self._path = path
        self._pattern = client_pattern and _ClientPattern(client_pattern)

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        match = ACCESS_LOG.match(line)
        if match is None:
            raise ValueError("not the common or combined log format")
        host, remote_user, time, request = match.group("host", "user", "time", "request")
        if self._path is not None and _path(request) != self._path:
            return None
        if self._pattern is None:
            self.address_count += remote_user == "-"
            return Row(parse_log_time_us(time), _name(host if remote_user == "-" else remote_user))
        named = self._pattern.find(line)
        return named and Row(parse_log_time_us(time), _name(named[0]), named[1])


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
            UTC if it names no zone, or the time of an access log.

    Raises:
        ValueError: The value is neither, or before 1970.
    """
    if isinstance(value, str):
        try:
            number = float(value.replace(",", "."))
        except ValueError:
            return parse_log_time_us(value) if "/" in value else _checked(_iso_us(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        raise ValueError(f"not a time: expected {TIMES}")
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
        raise ValueError(f"not a time: {text[:40]!r}, expected {TIMES}") from None
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
        raise ValueError(f"not a time: {text[:40]!r}, expected {TIMES}") from None
    return _checked(_since_epoch_us(moment))


def _since_epoch_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
