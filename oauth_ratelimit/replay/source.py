"""A file of recorded traffic: its lines, whatever the file is like."""

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
    CsvParser,
    Format,
    JsonParser,
    Ordered,
    Parser,
    Pseudonyms,
    Row,
    guess,
)

BLOCK_SIZE = 1 << 20  # bytes read at a time
MAX_LINE_LENGTH = 65_536  # characters; a longer line is bad, and never held as a whole
MAX_PROBLEMS = 5  # are told, the others counted
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that was not understood.

    Args:
        line_number: Which, from 1.
        reason: Why not.
    """

    line_number: int
    reason: str


class Source:
    """Reads a file once, from its beginning.

    Args:
        stream: The file in bytes, packed by gzip or not.
        choose: Returns the parser of a format.
        form: The format; None guesses it from the first line.

    Attributes:
        form: The format; None before the first line was read.
        row_count: Lines that were rows.
        left_out_count: Lines that need not be rows: blank ones, headers, other paths of an access log.
        bad_count: Lines that were not understood.
        problems: The first of those.
        is_cut_short: Whether the file could not be unpacked to its end, so that only its beginning counts.
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
        stream = _Rejoined(head, self._stream)
        # Not GzipFile.read: where the file breaks off it would lose what it has unpacked already.
        read = gzip.GzipFile(fileobj=stream).read1 if head == GZIP_MAGIC else stream.read
        try:
            while block := read(BLOCK_SIZE):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.is_cut_short = True


class _Rejoined(io.RawIOBase):
    """A stream with what was read from its head put back: a pipe cannot go back itself."""

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
    """A file of recorded traffic.

    Args:
        path: Where it is; ``-`` is the standard input, which can be read only once.
        form: How it is written; None guesses.
        names: What its columns or members are called.
        request_path: Of an access log, only requests of this path count.
        client_pattern: Where an access log says who the client is.
        is_per_client: Whether users of one client are counted together.
        spread: See ``Ordered``.
    """

    path: str
    form: Format | None = None
    names: Pseudonyms = field(default_factory=Pseudonyms)
    request_path: str | None = None
    client_pattern: re.Pattern[str] | None = None
    is_per_client: bool = False
    spread: bool | None = None

    @contextmanager
    def opened(self) -> Iterator[tuple[Source, Ordered]]:
        """Yield what the file turns out to be and its rows, both filled while the rows are taken.

        Raises:
            OSError: The file cannot be read.
        """
        with Path(self.path).open("rb") if self.path != STANDARD_INPUT else _standard_input() as stream:
            source = Source(stream, self.parser, form=self.form)
            rows = source.rows()
            yield source, Ordered(_without_users(rows) if self.is_per_client else rows, spread=self.spread)

    def parser(self, form: Format) -> Parser:
        """Return what understands a format."""
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
