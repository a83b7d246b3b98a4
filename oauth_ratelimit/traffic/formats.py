"""Files of recorded traffic: CSV, JSON lines and access logs, and their rows in the order of time."""

import csv
import enum
import gzip
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import heapify, heappop, heappushpop
from io import BufferedReader
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from oauth_ratelimit.core.key import matches_any, visible_name

SECOND_US = 1_000_000
MAX_TIME_S = 1e11  # in the year 5138; a larger number is in a smaller unit
MAX_NAME_LENGTH = 1024  # of a client or user, as in the configuration
MAX_COLUMNS_NAMED = 20
LOG_TIME = "%d/%b/%Y:%H:%M:%S %z"  # of an access log: 01/Aug/1995:00:00:07 -0400
TIMES = "seconds since the epoch, 2026-12-01T00:00:00Z or 01/Dec/2026:00:00:00 +0000"
CSV_COLUMNS = ("time", "client", "user")  # without a header
ACCESS_LOG = re.compile(
    r"(?P<remote_addr>\S+) \S+ (?P<remote_user>\S+(?: \S+)*?) "
    r'\[(?P<time_local>[^\]]{1,64})\] "(?P<request>(?:[^"\\]|\\.)*)"(?: (?P<status>[0-9]{3})(?= |$))?(?: |$)'
)
# The usual ones: /token, and behind any prefix /oauth/token, /oauth2/v2.0/token, /connect/token, /as/token.oauth2.
TOKEN_PATH = re.compile(
    r"(?:.*/(?:oauth2?|oidc|openid-connect|connect|auth|as|o)(?:/v[0-9.]+)?)?/(?:access_)?token(?:\.oauth2)?/?"
)
COUNTED_STATUSES = ("200", "429")  # requests with another answer failed before a limit was asked
OTHER_METHODS = ("OPTIONS", "HEAD")
MAX_PATHS = 100  # that are counted by name
STANDARD_INPUT = "-"
MAX_LINE_LENGTH = 65_536  # bytes; a longer line is malformed and is never held in memory as a whole
MAX_PROBLEMS = 5  # that are reported; others are only counted
GZIP_MAGIC = b"\x1f\x8b"
HELD_COUNT = 1000  # rows; one that is late by more is not sorted
MAX_SPREAD = 100_000  # rows of a second, about 20 MB

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Row(NamedTuple):
    """One recorded request."""

    at_us: int  # microseconds since the epoch
    client: str
    user: str | None = None
    grant: str | None = None


class Format(enum.StrEnum):
    CSV = "csv"  # ``time,client[,user]``, or a header with these names in any order
    JSON_LINES = "jsonl"  # one object per line, with the same names
    ACCESS_LOG = "access-log"  # the common or combined log format of Apache and nginx


class ColumnNames(NamedTuple):
    """Names of columns or members; the first one that is there is read."""

    time: tuple[str, ...] = ("time", "timestamp", "ts", "@timestamp", "time_local", "time_iso8601", "msec")
    client: tuple[str, ...] = ("client", "client_id", "remote_user", "ClientUsername")
    user: tuple[str, ...] = ("user", "username")
    grant: tuple[str, ...] = ("grant", "grant_type")
    path: tuple[str, ...] = ("uri", "request_uri", "path", "RequestPath")  # besides ``request``
    method: tuple[str, ...] = ("method", "request_method", "RequestMethod")
    status: tuple[str, ...] = ("status", "status_code", "DownstreamStatus")

    def missing(self, found: Sequence[str]) -> str | None:
        """Return a sentence about a required column that is not among those found, None if both are there."""
        for what, names in (("time", self.time), ("client", self.client)):
            if not any(name in found for name in names):
                listed = ", ".join(map(visible_name, found[:MAX_COLUMNS_NAMED]))
                return f"no column for the {what}; found: {listed or 'nothing'}. Name it: --column {what}=NAME"
        return None


class UnusableFile(Exception):
    """A file that is no text, or has no column for the time or the client. The text says what was found."""


class Recording(NamedTuple):
    """A file of recorded traffic, and what of it to read.

    ``client_pattern`` finds the client in a line, in its group ``client`` or its first group, and the user in its group
    ``user`` if it has one. Lines without a match are skipped.
    """

    path: str  # ``-`` is the standard input, which can be read only once
    form: Format | None = None  # None detects it
    names: ColumnNames = ColumnNames()
    request_path: str | None = None  # or a pattern, of the token endpoint, in files with paths; None for the usual ones
    client_pattern: re.Pattern[str] | None = None

    @property
    def byte_count(self) -> int | None:
        path = Path(self.path)
        return path.stat().st_size if self.path != STANDARD_INPUT and path.is_file() else None

    @contextmanager
    def opened(self) -> Iterator[tuple["RowReader", "OrderedRows"]]:
        """Yield the source and its sorted rows. Their attributes are filled while the rows are read."""
        with Path(self.path).open("rb") if self.path != STANDARD_INPUT else _standard_input() as stream:
            source = RowReader(stream, self)
            yield source, OrderedRows(source.rows())


@contextmanager
def _standard_input() -> Iterator[BufferedReader]:
    raw: Any = sys.stdin.buffer  # of any class that can be read
    stream = BufferedReader(raw)
    yield stream
    stream.detach()


class RowReader:
    """Rows of a file, gzipped or not, which is read once from its start."""

    def __init__(self, stream: BufferedReader, recording: Recording) -> None:
        self.stream = stream
        self.form = recording.form  # None until the first line is read, unless it was given
        self.row_count = self.user_count = 0
        self.address_count = 0  # rows without a client, whose address is taken for it
        self.unchecked_count = 0  # rows without a path and a status, in which there may be some by another name
        # Of rows, up to a number of paths; of requests that are left out until there is a row.
        self.paths: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()  # lines without a row, by the reason
        self.bad_count = 0  # malformed lines
        self.problems: list[tuple[int, str]] = []  # the first malformed lines, counted from 1, each with the reason
        self.is_cut_short = False  # True if the file could not be decompressed to its end
        self._recording = recording
        self._columns: list[str] = []  # of CSV, after its first line
        self._readers: dict[Format, Callable[[str], Mapping[str, object] | None]] = {
            Format.CSV: self._csv_values,
            Format.JSON_LINES: _json_values,
            Format.ACCESS_LOG: _log_values,
        }

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of the file.

        Raises ``UnusableFile`` if it is no text, or has no column for the time or the client.
        """
        for number, line in enumerate(self._lines(), start=1):
            if not line.strip():
                self.left_out["blank"] += 1
                continue
            try:
                if len(line) >= MAX_LINE_LENGTH:
                    raise ValueError(f"longer than {MAX_LINE_LENGTH} bytes")
                # A byte that is not UTF-8, as in Latin-1, is written as ``\\xe4``, so that names stay apart.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", "backslashreplace")
                if number == 1 and "\0" in text:
                    raise UnusableFile("no text; expected UTF-8, packed with gzip or not")
                row = self._parse(text)
            except ValueError as exc:
                self.bad_count += 1
                if len(self.problems) < MAX_PROBLEMS:
                    self.problems.append((number, str(exc)))
                continue
            if isinstance(row, str):
                self.left_out[row] += 1
            else:
                self.row_count += 1
                self.user_count += row.user is not None
                yield row

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines, of one that is too long its beginning."""
        is_packed = self.stream.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
        stream = gzip.GzipFile(fileobj=self.stream) if is_packed else self.stream
        try:
            while line := stream.readline(MAX_LINE_LENGTH):
                rest = line
                while len(rest) == MAX_LINE_LENGTH and not rest.endswith(b"\n"):
                    rest = stream.readline(MAX_LINE_LENGTH)
                yield line.rstrip(b"\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.is_cut_short = True

    def _parse(self, line: str) -> Row | str:
        """Return the row of a line, or the reason to leave the line out, such as that it is a header.

        Raises ``ValueError`` with the reason for a malformed line, ``UnusableFile`` for another file than expected.
        """
        if self.form is None:
            is_log = ACCESS_LOG.match(line) is not None
            self.form = Format.JSON_LINES if line.startswith("{") else Format.ACCESS_LOG if is_log else Format.CSV
        found, (*_, names, wanted, pattern) = self._readers[self.form](line), self._recording
        if found is None:
            return "header"
        method, path, status = _requested(found, names)
        if path is None and wanted is not None:
            raise ValueError(f"no member 'request' or {', '.join(map(repr, names.path))} to compare with the path")
        if path is not None and not (matches_any([wanted], path) if wanted else TOKEN_PATH.fullmatch(path)):
            if not self.row_count:
                self._count(path)
            return "at another path"
        if method in OTHER_METHODS:
            return f"of method {method}"
        if re.fullmatch("[1-9][0-9]{2}", status) and status not in COUNTED_STATUSES:
            return f"answered with {status}"
        time, client = _member(found, names.time), _member(found, names.client)
        user, grant = _optional_name(_member(found, names.user)), _optional_name(_member(found, names.grant))
        if pattern is not None:
            match = pattern.search(line)
            if match is None or (client := match[pattern.groupindex.get("client", 1)]) is None:
                return "without a client that --client-pattern finds"
            user = _optional_name(match.groupdict().get("user")) or user
        if client in (None, "", "-") and time is not None and "remote_addr" in found:
            client = found["remote_addr"]
            self.address_count += 1
        if time is None or client is None:
            raise ValueError(names.missing(list(found)) or "the time or the client is null")
        row = Row(parse_time_us(time), _name(client), user, grant)
        if path is not None:
            if not self.row_count:
                self.paths.clear()
            self._count(path)
        elif status == "None":
            self.unchecked_count += not {*chain.from_iterable(names)}.issuperset(found)
        return row

    def _count(self, path: str) -> None:
        if path in self.paths or len(self.paths) < MAX_PATHS:
            self.paths[path] += 1

    def _csv_values(self, line: str) -> dict[str, object] | None:
        try:
            fields = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
        except csv.Error as exc:
            raise ValueError(f"not CSV: {exc}") from None
        if self._columns:
            return dict(zip(self._columns, fields, strict=False))
        if len(fields) < 2:
            raise UnusableFile("not CSV: a single column; expected time,client with or without a header")
        if any(map(_is_time, fields)) or not all(map(str.strip, fields)):
            self._columns = list(CSV_COLUMNS)
            return self._csv_values(line)
        self._columns = [name.strip() for name in fields]
        if problem := self._recording.names.missing(self._columns):
            raise UnusableFile(problem)
        return None


def _is_time(value: str) -> bool:
    try:
        parse_time_us(value)
    except ValueError:
        return False
    return True


def _json_values(line: str) -> Mapping[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(found, Mapping):
        raise ValueError("not a JSON object")
    return found


def _log_values(line: str) -> Mapping[str, object]:
    match = ACCESS_LOG.match(line)
    if match is None:
        raise ValueError("not the common or combined log format")
    return match.groupdict()


def _member(found: Mapping[str, object], names: Iterable[str]) -> object:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _requested(found: Mapping[str, object], names: ColumnNames) -> tuple[object, str | None, str]:
    """Return the method and the path of a request, None for what is not recorded, and the status as text."""
    request, status = found.get("request"), str(_member(found, names.status))
    if isinstance(request, str):  # GET /token HTTP/1.1
        method, _, target = request.partition(" ")
        return method, target.partition(" ")[0].partition("?")[0], status
    members = request if isinstance(request, Mapping) else found  # one in the other, as of Caddy
    path = _member(members, names.path)
    return _member(members, names.method), path.partition("?")[0] if isinstance(path, str) else None, status


def _name(value: object) -> str:
    name = value.strip() if isinstance(value, str) else str(value) if type(value) is int else ""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"invalid name of a client or user: expected 1 to {MAX_NAME_LENGTH} characters")
    return name


def _optional_name(value: object) -> str | None:
    return None if value is None or value == "" else _name(value)


def parse_time_us(value: object) -> int:
    """Return a time in microseconds since the epoch; a ``ValueError`` if it is none, or before 1970.

    A number is in seconds since the epoch; one too large for that is in milli-, micro- or nanoseconds. A text may also
    be ISO 8601, in UTC if it names no zone, or the time of an access log.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"not a time: expected {TIMES}")
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return _moment_us(str(value))
    if not 0 <= seconds < 1e23:  # false for NaN, too
        raise ValueError("not a time: before 1970 or out of range")
    while seconds >= MAX_TIME_S:
        seconds /= 1000
    return round(seconds * SECOND_US)


@lru_cache(maxsize=1024)  # busy logs have many lines with the same second
def _moment_us(text: str) -> int:
    try:
        moment = datetime.strptime(text, LOG_TIME) if "/" in text else datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"not a time: {text[:40]!r}, expected {TIMES}") from None
    at_us = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if not 0 <= at_us < MAX_TIME_S * SECOND_US:
        raise ValueError("not a time: before 1970 or out of range")
    return at_us


Numbered = tuple[int, int, Row]
"""A row with its time and its place in the file, by which it is sorted."""


class OrderedRows:
    """Rows sorted by time; rows of the same time keep their order.

    Servers log a request when it ends, so logs are a little out of order. A row that comes after a thousand later ones
    gets the time of the last row before it. If the first times are all whole seconds, the rows of each second are
    spread evenly over it, so that they do not all come at its start.
    """

    def __init__(self, rows: Iterable[Row], *, held_count: int = HELD_COUNT) -> None:
        self._rows = iter(rows)
        self._held_count = held_count
        self.is_spread: bool | None = None  # None until the first rows are read
        self.late_count = 0  # rows that came too late to be sorted
        self.first_us: int | None = None  # None without rows
        self.last_us: int | None = None

    def __iter__(self) -> Iterator[Row]:
        numbered = ((row.at_us, number, row) for number, row in enumerate(self._rows))
        held = list(islice(numbered, self._held_count))
        heapify(held)
        self.is_spread = all(at_us % SECOND_US == 0 for at_us, _, _ in held)
        in_order = self._in_order(held, numbered)
        for row in _spread(in_order) if self.is_spread else in_order:
            if self.first_us is None:
                self.first_us = row.at_us
            self.last_us = row.at_us
            yield row

    def _in_order(self, held: list[Numbered], rows: Iterator[Numbered]) -> Iterator[Row]:
        """Yield each row when as many later ones are held. One of the far future stays until the end."""
        reached_us = 0
        rest = (heappop(held) for _ in range(len(held)))
        for at_us, _, row in chain((heappushpop(held, each) for each in rows), rest):
            if at_us < reached_us:
                self.late_count += 1
            reached_us = max(at_us, reached_us)
            yield row if at_us == reached_us else row._replace(at_us=reached_us)


def _spread(rows: Iterable[Row]) -> Iterator[Row]:
    for second, group in groupby(rows, key=lambda row: row.at_us // SECOND_US):
        together = list(islice(group, MAX_SPREAD))
        start_us, parts = second * SECOND_US, 2 * len(together)
        for rank, row in enumerate(together):
            yield row._replace(at_us=start_us + (2 * rank + 1) * SECOND_US // parts)
        for row in group:  # noqa: B031  # the rest of it
            yield row._replace(at_us=start_us + SECOND_US - 1)
