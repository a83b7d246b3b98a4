"""Reader of recorded traffic: lines of a plain or gzipped file of any size."""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from oauth_ratelimit.replay.formats import (
    AccessLogParser,
    ColumnNames,
    CsvParser,
    Format,
    JsonParser,
    Ordered,
    Parser,
    Row,
    guess,
)

BLOCK_SIZE = 1 << 20  # bytes read at a time
MAX_LINE_LENGTH = 65_536  # characters; a longer line is bad and is never held in memory as a whole
MAX_PROBLEMS = 5  # that are reported; others are only counted
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Problem:
    """Line that could not be parsed.

    Args:
        line_number: Number of the line, from 1.
        reason: Reason for people.
    """

    line_number: int
    reason: str


class Source:
    """Rows of a file, which is read once from its start.

    Args:
        stream: The file in bytes, plain or gzipped.
        choose: Returns the parser of a format.
        form: The format; None detects it from the first line.

    Attributes:
        form: The format; None until the first line is read.
        row_count: Lines with a row.
        left_out_count: Lines without a row: blank lines, headers, other paths of an access log.
        bad_count: Lines that could not be parsed.
        problems: The first bad lines.
        is_cut_short: True if the file could not be decompressed to its end, so that only its first part counts.
    """

    def __init__(self, stream: BinaryIO, choose: Callable[[Format], Parser], *, form: Format | None = None) -> None:
        self._stream = stream
        self._choose = choose
        self.form = form
        self.row_count = 0
        self.left_out_count = 0
        self.bad_count = 0
        self.problems: list[Problem] = []
        self.is_cut_short = False

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of the file."""
        parser: Parser | None = None
        for number, line in enumerate(self._lines(), start=1):
            if not line or line.isspace():
                self.left_out_count += 1
                continue
            if parser is None:
                self.form = self.form or guess(line)
                parser = self._choose(self.form)
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
                yield row

    def _lines(self) -> Iterator[str]:
        rest = b""
        is_first = True
        for block in self._blocks():
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                lines = whole.decode("utf-8", "replace").split("\n")
                if is_first:
                    lines[0] = lines[0].removeprefix("\ufeff")
                    is_first = False
                yield from lines
            rest = rest[:BLOCK_SIZE]
        if rest:
            yield rest.decode("utf-8", "replace").removeprefix("\ufeff" if is_first else "")

    def _blocks(self) -> Iterator[bytes]:
        head = self._stream.read(len(GZIP_MAGIC))
        stream = _PrependedStream(head, self._stream)
        # ``GzipFile.read`` would lose the decompressed data of a truncated file; ``read1`` returns it.
        read = gzip.GzipFile(fileobj=stream).read1 if head == GZIP_MAGIC else stream.read
        try:
            while block := read(BLOCK_SIZE):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.is_cut_short = True


class _PrependedStream(io.RawIOBase):
    """Stream with its first bytes put back after they were read, because a pipe cannot seek."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        return self._rest.read(size)


STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Recording:
    """File of recorded traffic.

    Args:
        path: Path of the file; ``-`` for the standard input, which can be read only once.
        form: Format of the file; None detects it.
        names: Names of the columns or members.
        request_path: Path of the requests to count in an access log; None counts all.
        client_pattern: Pattern that finds the client in a line of an access log.
        is_per_client: True to count all users of a client together.
        spread: See ``Ordered``.
    """

    path: str
    form: Format | None = None
    names: ColumnNames = field(default_factory=ColumnNames)
    request_path: str | None = None
    client_pattern: re.Pattern[str] | None = None
    is_per_client: bool = False
    spread: bool | None = None

    @contextmanager
    def opened(self) -> Iterator[tuple[Source, Ordered]]:
        """Yield the source and its sorted rows. Their attributes are filled while the rows are read.

        Raises:
            OSError: The file cannot be read.
        """
        with Path(self.path).open("rb") if self.path != STANDARD_INPUT else _standard_input() as stream:
            source = Source(stream, self.parser, form=self.form)
            rows = source.rows()
            yield source, Ordered(_without_users(rows) if self.is_per_client else rows, spread=self.spread)

    def parser(self, form: Format) -> Parser:
        """Return the parser of a format."""
        match form:
            case Format.CSV:
                return CsvParser(self.names)
            case Format.JSON_LINES:
                return JsonParser(self.names)
        return AccessLogParser(path=self.request_path, client_pattern=self.client_pattern)


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    yield sys.stdin.buffer


def _without_users(rows: Iterable[Row]) -> Iterator[Row]:
    return (Row(at_us, client) for at_us, client, _ in rows)
