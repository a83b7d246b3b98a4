"""A file of recorded traffic, and its rows in the order of time."""

import codecs
import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from oauth_ratelimit.replay.formats import (
    SECOND_US,
    AccessLogParser,
    ColumnNames,
    CsvParser,
    Format,
    JsonParser,
    Parser,
    Row,
    UnusableFile,
    detect_format,
)

STANDARD_INPUT = "-"
BLOCK_SIZE = 1 << 20  # bytes read at a time
MAX_LINE_LENGTH = 65_536  # characters; a longer line is malformed and is never held in memory as a whole
MAX_PROBLEMS = 5  # that are reported; others are only counted
GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
NO_TEXT = "no text; expected UTF-8, or UTF-16 with a byte order mark, packed with gzip or not"
BATCH_SIZE = 100_000  # rows, about 20 MB; a row that is late by more than a batch is not sorted


@dataclass(frozen=True, slots=True)
class Recording:
    """A file of recorded traffic.

    Args:
        path: The file; ``-`` is the standard input, which can be read only once.
        form: Format of the file; None detects it.
        names: Names of the columns or members.
        request_path: Read only requests of this path from an access log, or from JSON lines that name a path.
        client_pattern: Finds the client in a line of an access log or of JSON.
        is_per_client: True to count all users of a client together.
        spread: See ``OrderedRows``.
    """

    path: str
    form: Format | None = None
    names: ColumnNames = field(default_factory=ColumnNames)
    request_path: str | None = None
    client_pattern: re.Pattern[str] | None = None
    is_per_client: bool = False
    spread: bool | None = None

    @property
    def byte_count(self) -> int | None:
        """Size of the file; None if it is not known before it is read."""
        path = Path(self.path)
        return path.stat().st_size if self.path != STANDARD_INPUT and path.is_file() else None

    @contextmanager
    def opened(
        self, *, on_read: Callable[[int], object] = lambda byte_count: None
    ) -> Iterator[tuple["Source", "OrderedRows"]]:
        """Yield the source and its sorted rows. Their attributes are filled while the rows are read.

        Args:
            on_read: Called with the number of bytes of each block that was read.

        Raises:
            OSError: The file cannot be read.
        """
        with Path(self.path).open("rb") if self.path != STANDARD_INPUT else _standard_input() as stream:
            source = Source(stream, self.parser, form=self.form, on_read=on_read)
            rows = source.rows()
            yield source, OrderedRows(_without_users(rows) if self.is_per_client else rows, spread=self.spread)

    def parser(self, form: Format) -> Parser:
        """Return the parser of a format."""
        match form:
            case Format.CSV:
                return CsvParser(self.names)
            case Format.JSON_LINES:
                return JsonParser(self.names, path=self.request_path, client_pattern=self.client_pattern)
        return AccessLogParser(path=self.request_path, client_pattern=self.client_pattern)


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    yield sys.stdin.buffer


def _without_users(rows: Iterable[Row]) -> Iterator[Row]:
    return (row._replace(user=None) for row in rows)


@dataclass(frozen=True, slots=True)
class Problem:
    """A malformed line.

    Args:
        line_number: Number of the line, from 1.
        reason: Reason for people.
    """

    line_number: int
    reason: str


class Source:
    """Rows of a file, which is read once from its start.

    Args:
        stream: The file in bytes, with or without gzip.
        choose_parser: Returns the parser of a format.
        form: The format; None detects it from the first line.
        on_read: Called with the number of bytes of each block that was read.

    Attributes:
        form: The format; None until the first line is read.
        row_count: Lines with a row.
        user_count: Rows with a user.
        left_out_count: Lines without a row: blank lines, headers, other paths of an access log.
        bad_count: Malformed lines.
        problems: The first malformed lines.
        is_cut_short: True if the file could not be decompressed to its end.
    """

    def __init__(
        self,
        stream: BinaryIO,
        choose_parser: Callable[[Format], Parser],
        *,
        form: Format | None = None,
        on_read: Callable[[int], object] = lambda byte_count: None,
    ) -> None:
        self._stream = stream
        self._on_read = on_read
        self._parser: Parser | None = None
        self._choose_parser = choose_parser
        self.form = form
        self.row_count = 0
        self.user_count = 0
        self.left_out_count = 0
        self.bad_count = 0
        self.problems: list[Problem] = []
        self.is_cut_short = False

    @property
    def address_count(self) -> int:
        """Number of rows without a client, whose address is taken for it."""
        return self._parser.address_count if self._parser else 0

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of the file.

        Raises:
            UnusableFile: It is no text, or there is no column for the time or the client.
        """
        parser: Parser | None = None
        for number, line in enumerate(self._lines(), start=1):
            if not line or line.isspace():
                self.left_out_count += 1
                continue
            if parser is None:
                if "\0" in line:
                    raise UnusableFile(NO_TEXT)
                self.form = self.form or detect_format(line)
                parser = self._parser = self._choose_parser(self.form)
            try:
                if len(line) > MAX_LINE_LENGTH:
                    raise ValueError(f"longer than {MAX_LINE_LENGTH} characters")
                row = parser.parse(line)
            except ValueError as exc:
                self.bad_count += 1
                if len(self.problems) < MAX_PROBLEMS:
                    self.problems.append(Problem(number, str(exc)))
                continue
            if row is None:
                self.left_out_count += 1
            else:
                self.row_count += 1
                self.user_count += row.user is not None
                yield row

    def _lines(self) -> Iterator[str]:
        rest = b""
        is_first = True
        for block in _in_utf8(self._blocks()):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                lines = _decoded(whole).split("\n")
                if is_first:
                    lines[0] = lines[0].removeprefix("\ufeff")
                    is_first = False
                yield from lines
            rest = rest[:BLOCK_SIZE]
        if rest:
            yield _decoded(rest).removeprefix("\ufeff" if is_first else "")

    def _blocks(self) -> Iterator[bytes]:
        head = self._stream.read(len(GZIP_MAGIC))
        self._on_read(len(head))
        stream = _PrependedStream(head, self._stream, self._on_read)
        # ``GzipFile.read`` would lose the decompressed data of a truncated file; ``read1`` returns it.
        read = gzip.GzipFile(fileobj=stream).read1 if head == GZIP_MAGIC else stream.read
        try:
            while block := read(BLOCK_SIZE):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.is_cut_short = True


def _decoded(text: bytes) -> str:
    """Return a text. A byte that is not UTF-8, as in Latin-1, is written as ``\\xe4``, so that names stay apart."""
    return text.decode("utf-8", "backslashreplace")


def _in_utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a text in UTF-8. One that begins as UTF-16 does, such as from PowerShell, is converted."""
    decoder = None
    for number, block in enumerate(blocks):
        if number == 0 and block.startswith(UTF16_MARKS):
            decoder = codecs.getincrementaldecoder("utf-16")("replace")
        yield decoder.decode(block).encode() if decoder else block


class _PrependedStream(io.RawIOBase):
    """A stream with its first bytes put back, because a pipe cannot seek. It reports the size of each block."""

    def __init__(self, head: bytes, rest: BinaryIO, on_read: Callable[[int], object]) -> None:
        self._head = head
        self._rest = rest
        self._on_read = on_read

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        block = self._rest.read(size)
        self._on_read(len(block))
        return block


class OrderedRows:
    """Rows sorted by time; rows of the same time keep their order.

    Servers log a request when it ends, so logs are a little out of order. A row that is late by more than a batch gets
    the time of the last row before it.

    Args:
        rows: The rows in the order of the file.
        spread: True to spread the rows of each second evenly over it, so that they do not all come at its start. None
            does so if all times in the first batch are whole seconds.
        batch_size: Rows that are sorted together.

    Attributes:
        is_spread: True if rows are spread; None until the first batch is read.
        late_count: Rows that came too late to be sorted.
        first_us, last_us: First and last time; None without rows.
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
        together = list(group)
        start_us, parts = second * SECOND_US, 2 * len(together)
        for rank, row in enumerate(together):
            yield row._replace(at_us=start_us + (2 * rank + 1) * SECOND_US // parts)
