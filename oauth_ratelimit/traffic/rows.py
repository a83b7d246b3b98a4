"""A file of recorded traffic, and its rows in the order of time."""

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappushpop
from io import BufferedReader
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from oauth_ratelimit.traffic.formats import SECOND_US, Format, Parser, Row, Selection, UnusableFile

STANDARD_INPUT = "-"
MAX_LINE_LENGTH = 65_536  # bytes; a longer line is malformed and is never held in memory as a whole
MAX_PROBLEMS = 5  # that are reported; others are only counted
GZIP_MAGIC = b"\x1f\x8b"
HELD_COUNT = 1000  # rows; one that is late by more is not sorted
MAX_SPREAD = 100_000  # rows of a second, about 20 MB

Numbered = tuple[int, int, Row]
"""A row with its time and its place in the file, by which it is sorted."""


class Recording(NamedTuple):
    """A file of recorded traffic."""

    path: str  # ``-`` is the standard input, which can be read only once
    form: Format | None = None  # None detects it
    selection: Selection = Selection()

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


class Problem(NamedTuple):
    """A malformed line, counted from 1, and the reason for people."""

    line_number: int
    reason: str


class RowReader:
    """Rows of a file, gzipped or not, which is read once from its start."""

    def __init__(self, stream: BufferedReader, recording: Recording) -> None:
        self.stream = stream
        self.parser = Parser(recording.form, recording.selection)
        self.row_count = self.user_count = 0
        self.left_out: Counter[str] = Counter()  # lines without a row, by the reason
        self.bad_count = 0  # malformed lines
        self.problems: list[Problem] = []  # the first malformed lines
        self.is_cut_short = False  # True if the file could not be decompressed to its end

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
                row = self.parser.parse(text)
            except ValueError as exc:
                self.bad_count += 1
                if len(self.problems) < MAX_PROBLEMS:
                    self.problems.append(Problem(number, str(exc)))
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
