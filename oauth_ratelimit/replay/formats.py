"""From a line of a file to a row: CSV, JSON lines, access logs."""

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
THOUSANDFOLD = 1e11  # seconds since the epoch in the year 5138: a larger number counts a smaller unit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


def moment_us(value: object) -> int:
    """Return the moment that a number or a text names, in microseconds since the epoch.

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
    """Return the moment that an access log writes as ``01/Aug/1995:00:00:07 -0400``.

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


BATCH_SIZE = 100_000  # rows: about 20 MB; two requests further apart than that are not put in order any more


class Row(NamedTuple):
    """One recorded request.

    Attributes:
        at_us: Microseconds since the epoch.
        client: Who asked.
        user: On whose behalf, None if on nobody's.
    """

    at_us: int
    client: str
    user: str | None = None


class Ordered:
    """Rows sorted by time, those of one moment as they came.

    Servers write a request when it ends, so logs are a little out of order. A row that comes later than a whole batch
    is taken for one of the moment that has been reached.

    Args:
        rows: As they were read.
        spread: Whether rows of one second are spread evenly over it; None does so if the first batch knows only whole
            seconds. Otherwise a second's requests would all come at its first instant.

    Attributes:
        is_spread: Whether they are; known once the first batch was read.
        late_count: Rows that came too late to be put in order.
        first_us, last_us: When the recording began and ended; None without rows.
    """

    def __init__(self, rows: Iterable[Row], *, spread: bool | None = None, batch_size: int = BATCH_SIZE) -> None:
        self._rows = iter(rows)
        self._batch_size = batch_size
        self.is_spread = spread
        self.late_count = 0
        self.first_us: int | None = None
        self.last_us: int | None = None

    def batches(self) -> Iterator[list[Row]]:
        """Yield the rows, in order within a batch and from one to the next."""
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
        """Return how many rows can go, not to cut a second that is to be spread."""
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
    """Yield rows with those of each second at the middles of as many equal parts of it."""
    for second, group in groupby(rows, key=lambda row: row.at_us // SECOND_US):
        together = list(group)
        start_us, parts = second * SECOND_US, 2 * len(together)
        for rank, (_, client, user) in enumerate(together):
            yield Row(start_us + (2 * rank + 1) * SECOND_US // parts, client, user)


MAX_NAME_LENGTH = 1024  # of a client or user, as in the configuration
NOWHERE = 1 << 30  # the position of a column that a header does not have
ACCESS_LOG = re.compile(
    r'(?P<host>\S+) \S+ (?P<user>\S+(?: \S+)*?) \[(?P<time>[^\]]{1,64})\] "(?P<request>(?:[^"\\]|\\.)*)"(?: |$)'
)


class Format(enum.StrEnum):
    """How a file is written."""

    CSV = "csv"
    """``time,client[,user]``, or a header with these names in any order."""

    JSON_LINES = "jsonl"
    """One object a line, with the same names."""

    ACCESS_LOG = "access-log"
    """The common or combined log format of Apache and nginx."""


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    """Under which names a line of CSV or JSON holds what matters.

    Args:
        time: When the request came.
        client: Who asked.
        user: On whose behalf; it may be missing.
    """

    time: str = "time"
    client: str = "client"
    user: str = "user"


class Parser(Protocol):
    """Understands one format."""

    def parse(self, line: str) -> Row | None:
        """Return a line's row, None if it has none and need not: a header, say.

        Raises:
            ValueError: The line is not in this format; the text says why.
        """
        ...


class CsvParser:
    """Understands ``time,client[,user]``, and other orders after a header.

    Args:
        names: What the header calls the columns.
    """

    def __init__(self, names: Pseudonyms) -> None:
        self._names = names
        self._columns: tuple[int, ...] | None = None

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        fields = line.split(",") if '"' not in line else _quoted(line)
        if self._columns is None:
            header = [field.strip() for field in fields]
            names = (self._names.time, self._names.client, self._names.user)
            if names[0] in header:
                self._columns = tuple(header.index(name) if name in header else NOWHERE for name in names)
                return None
            self._columns = (0, 1, 2)
        time, client, user = self._columns
        if max(time, client) >= len(fields):
            raise ValueError("the column of the time or of the client is missing")
        return Row(moment_us(fields[time]), _name(fields[client]), _user(fields[user]) if user < len(fields) else None)


def _quoted(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as exc:
        raise ValueError(f"no CSV: {exc}") from None


class JsonParser:
    """Understands one object a line.

    Args:
        names: Its names.
    """

    def __init__(self, names: Pseudonyms) -> None:
        self._names = names

    def parse(self, line: str) -> Row | None:
        """See ``Parser.parse``."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("no JSON") from None
        if not isinstance(found, Mapping):
            raise ValueError("no JSON object")
        names = self._names
        if names.time not in found or names.client not in found:
            raise ValueError(f"{names.time!r} or {names.client!r} is missing")
        return Row(moment_us(found[names.time]), _name(found[names.client]), _user(found.get(names.user)))


class AccessLogParser:
    """Understands the common and the combined log format.

    Args:
        path: Only requests of this path count; None counts all.
        client_pattern: Finds the client in a line, in its group ``client`` or its first one, and the user in its group
            ``user`` if it has one; lines without a match do not count. None takes the authenticated user of the log,
            which is the client where clients authenticate by HTTP Basic, or the host where there is none.
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
        raise ValueError(f"no name of a client or user: 1 to {MAX_NAME_LENGTH} characters")
    return name


def _user(value: object) -> str | None:
    return None if value is None or value == "" else _name(value)


def guess(line: str) -> Format:
    """Return the format that a file's first line looks like."""
    if line.startswith("{"):
        return Format.JSON_LINES
    return Format.ACCESS_LOG if ACCESS_LOG.match(line) else Format.CSV
