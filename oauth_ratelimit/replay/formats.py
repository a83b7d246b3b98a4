"""Rows of recorded requests, from lines of CSV, JSON or access logs."""

import csv
import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple, Protocol

SECOND_US = 1_000_000
MAX_UNIX_S = 1e11  # in the year 5138; a larger number is in a smaller unit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


def moment_us(value: object) -> int:
    """Return a time from a number or a text, in microseconds since the epoch.

    Args:
        value: Seconds since the epoch, or an ISO 8601 text. A number too large for seconds is in milliseconds,
            microseconds or nanoseconds. A text without a zone is in UTC.

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
    if 0 <= number < MAX_UNIX_S:
        return round(number * SECOND_US)
    return _checked(_scaled_us(number))


def _scaled_us(number: float) -> int:
    if not 0 <= number < 1e23:  # NaN, too
        return -1
    scaled = float(number)
    while scaled >= MAX_UNIX_S:
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
def access_log_us(text: str) -> int:
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


BATCH_SIZE = 100_000  # rows, about 20 MB; a row that is late by more than a batch is not sorted


class Row(NamedTuple):
    """One recorded request.

    Attributes:
        at_us: Microseconds since the epoch.
        client: Client of the request.
        user: User of the request, None for grants without a user.
    """

    at_us: int
    client: str
    user: str | None = None


class Ordered:
    """Rows sorted by time. Rows of the same time keep their order.

    Servers log a request when it ends, so logs are slightly out of order. A row that is late by more than a batch gets
    the time of the last row before it.

    Args:
        rows: Rows in the order of the file.
        spread: True to spread the rows of each second evenly over it, so that they do not all come at its start. None
            does so if all times in the first batch are whole seconds.
        batch_size: Number of rows that are sorted together.

    Attributes:
        is_spread: True if rows are spread; None until the first batch is read.
        late_count: Rows that came too late to be sorted.
        first_us: Time of the first row, None without rows.
        last_us: Time of the last row so far, None without rows.
    """

    def __init__(self, rows: Iterable[Row], *, spread: bool | None = None, batch_size: int = BATCH_SIZE) -> None:
        self._rows = iter(rows)
        self._batch_size = batch_size
        self.is_spread = spread
        self.late_count = 0
        self.first_us: int | None = None
        self.last_us: int | None = None

    def batches(self) -> Iterator[list[Row]]:
        """Yield the rows in batches, sorted within and across batches."""
        held: list[Row] = []
        while more := list(islice(self._rows, self._batch_size)):
            if self.is_spread is None:
                self.is_spread = all(row.at_us % SECOND_US == 0 for row in more)
            held += more
            held.sort(key=itemgetter(0))
            count = self._complete_count(held)
            if count:
                yield self._released(held[:count])
                del held[:count]
        if held:
            yield self._released(held)

    def _complete_count(self, held: list[Row]) -> int:
        """Return the number of rows to release. A second that will be spread is not split."""
        count = len(held) - self._batch_size
        if count <= 0 or not self.is_spread:
            return max(0, count)
        second = held[count].at_us // SECOND_US
        while count and held[count - 1].at_us // SECOND_US == second:
            count -= 1
        return count or (len(held) - self._batch_size if len(held) > 4 * self._batch_size else 0)

    def _released(self, rows: list[Row]) -> list[Row]:
        if self.is_spread:
            rows = list(_spread(rows))
        reached_us = self.last_us
        if self.first_us is None or reached_us is None:
            self.first_us = rows[0].at_us
        else:
            for index, row in enumerate(rows):
                if row.at_us >= reached_us:
                    break
                rows[index] = row._replace(at_us=reached_us)
                self.late_count += 1
        self.last_us = rows[-1].at_us
        return rows


def _spread(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of each second at even distances within it."""
    for second, group in groupby(rows, key=lambda row: row.at_us // SECOND_US):
        rows_of_second = list(group)
        start_us, parts = second * SECOND_US, 2 * len(rows_of_second)
        for rank, (_, client, user) in enumerate(rows_of_second):
            yield Row(start_us + (2 * rank + 1) * SECOND_US // parts, client, user)


MAX_NAME_LENGTH = 1024  # of a client or user, as in the configuration
NO_COLUMN = 1 << 30  # index of a column that is not in the header
ACCESS_LOG = re.compile(
    r'(?P<host>\S+) \S+ (?P<user>\S+(?: \S+)*?) \[(?P<time>[^\]]{1,64})\] "(?P<request>(?:[^"\\]|\\.)*)"(?: |$)'
)


class Format(enum.StrEnum):
    """Format of a recording."""

    CSV = "csv"
    """Columns ``time,client[,user]``, or a header with these names in any order."""

    JSON_LINES = "jsonl"
    """One object per line, with the same names."""

    ACCESS_LOG = "access-log"
    """Common or combined log format of Apache and nginx."""


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Column names: time, client, user. In JSON lines the names of the members.

    Args:
        time: Name of the column with the time of the request.
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
            ValueError: The line is not in this format. The message gives the reason.
        """
        ...


class CsvParser:
    """Parser of CSV: columns ``time,client[,user]``, or any order after a header.

    Args:
        names: Names of the columns in the header.
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
                self._columns = tuple(header.index(name) if name in header else NO_COLUMN for name in names)
                return None
            self._columns = (0, 1, 2)
        time, client, user = self._columns
        if max(time, client) >= len(fields):
            raise ValueError("the column with the time or the client is missing")
        return Row(moment_us(fields[time]), _name(fields[client]), _user(fields[user]) if user < len(fields) else None)


def _quoted(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as exc:
        raise ValueError(f"not CSV: {exc}") from None


class JsonParser:
    """Parser of JSON lines.

    Args:
        names: Names of the members.
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
        return Row(moment_us(found[names.time]), _name(found[names.client]), _user(found.get(names.user)))


class AccessLogParser:
    """Parser of the common and the combined log format.

    Args:
        path: Path of the requests to count; None counts all.
        client_pattern: Pattern that finds the client in its group ``client`` or its first group, and the user in its
            group ``user`` if it has one. Lines without a match are skipped. None takes the authenticated user of the
            log, which is the client if clients authenticate by HTTP Basic, or else the host.
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
            return Row(access_log_us(time), _name(host if remote_user == "-" else remote_user))
        found = self._pattern.search(line)
        if found is None or found[self._client_group] is None:
            return None
        user = found[self._user_group] if self._user_group else None
        return Row(access_log_us(time), _name(found[self._client_group]), _user(user))


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


def guess(line: str) -> Format:
    """Return the format that fits the first line of a file."""
    if line.startswith("{"):
        return Format.JSON_LINES
    return Format.ACCESS_LOG if ACCESS_LOG.match(line) else Format.CSV
