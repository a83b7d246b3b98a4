"""Files of recorded traffic, good and bad."""

import gzip
import io
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.replay.formats import Format, Row
from oauth_ratelimit.replay.source import BLOCK_SIZE, MAX_LINE_LENGTH, MAX_PROBLEMS, Recording, Source

SECOND = 1_000_000


def read(content: str | bytes, **options: object) -> tuple[Source, list[Row]]:
    """Return a file as it was understood, and its rows."""
    recording = Recording("unused", **options)  # type: ignore[arg-type]
    data = content.encode() if isinstance(content, str) else content
    source = Source(io.BytesIO(data), recording.parser, form=recording.form)
    return source, list(source.rows())


def test_csv() -> None:
    """Without a header the columns are time, client and user, of which the user may be missing or empty."""
    source, rows = read("5,a,u\n6.5,b\n7,c,\n")
    assert [Row(5 * SECOND, "a", "u"), Row(6_500_000, "b"), Row(7 * SECOND, "c")] == rows
    assert (Format.CSV, 3, 0) == (source.form, source.row_count, source.bad_count)


def test_csv_with_a_header() -> None:
    """A header says where the columns are; quoted fields, a byte order mark and Windows' line ends do no harm."""
    _, rows = read('\ufeffuser,extra,time,client\r\nu,"x, y",5,"a, ""b"""\r\n')
    assert [Row(5 * SECOND, 'a, "b"', "u")] == rows


def test_header_without_a_client() -> None:
    """If a header lacks a column, no other is taken for it."""
    source, rows = read("time,customer\n5,a\n6,b\n")
    assert ([], 2) == (rows, source.bad_count)
    assert "column" in source.problems[0].reason


def test_json_lines() -> None:
    """Objects with other members, too; ids that are numbers are names."""
    source, rows = read(
        '{"time": 5, "client": "a", "user": null, "x": []}\n{"time": "1970-01-01T00:00:06Z", "client": 7}'
    )
    assert [Row(5 * SECOND, "a"), Row(6 * SECOND, "7")] == rows
    assert Format.JSON_LINES == source.form


LOG = (
    'host1 - my-app [01/Aug/1995:00:00:07 -0400] "POST /oauth/token?x=1 HTTP/1.1" 200 1839 "-" "lib/1.0"\n'
    'host2 - - [01/Aug/1995:00:00:08 -0400] "POST /oauth/token HTTP/1.1" 429 -\n'
    'host3 - two words [01/Aug/1995:00:00:09 -0400] "GET /say\\"hi\\" HTTP/1.0" 200 12\n'
)


def test_access_log() -> None:
    """The client is whom the server authenticated, or the host."""
    source, rows = read(LOG)
    assert ["my-app", "host2", "two words"] == [row.client for row in rows]
    assert [7, 8, 9] == [row.at_us // SECOND - 807249600 for row in rows]
    assert Format.ACCESS_LOG == source.form


def test_access_log_of_one_path() -> None:
    """Other requests are left out, and their number told."""
    source, rows = read(LOG, request_path="/oauth/token")
    assert ["my-app", "host2"] == [row.client for row in rows]
    assert 1 == source.left_out_count


@pytest.mark.parametrize(
    ("pattern", "expected"),
    (
        (r"x=(\d)", [("1", None)]),
        (r"(?P<user>\w+)/1\.0\"$", []),
        (r'"(?P<user>\w+)/(?P<client>[^"]+)"$', [("1.0", "lib")]),
    ),
    ids=("first group", "no client", "both"),
)
def test_access_log_with_a_pattern(pattern: str, expected: list[tuple[str, str | None]]) -> None:
    """A regular expression finds the client, and the user; lines without a match are left out."""
    found = (
        re.compile(pattern) if "client" in pattern or "user" not in pattern else re.compile(pattern + "(?P<client>x)")
    )
    source, rows = read(LOG, client_pattern=found)
    assert expected == [(row.client, row.user) for row in rows]
    assert 3 == len(rows) + source.left_out_count


def test_bad_lines() -> None:
    """
    What is not understood is counted, the first with their line numbers, and the rest of the file counts all the same.
    """
    source, rows = read("5,a\nrubbish\n\n6,\n7,b\n" + "nope,x\n" * 10)
    assert ["a", "b"] == [row.client for row in rows]
    assert (12, 1, MAX_PROBLEMS) == (source.bad_count, source.left_out_count, len(source.problems))
    assert [2, 4, 6] == [problem.line_number for problem in source.problems][:3]


@pytest.mark.parametrize(
    "line",
    (
        '{"time": 5}',
        '{"time": {}, "client": "a"}',
        '{"time": 5, "client": []}',
        "[" * 50_000,
        "{",
        '"x"',
        '{"time": 5, "client": ""}',
    ),
    ids=("no client", "no time", "no name", "deep", "torn", "text", "empty name"),
)
def test_bad_json(line: str) -> None:
    """No JSON is so bad that it is more than a bad line."""
    source, rows = read(f'{{"time": 1, "client": "a"}}\n{line}\n')
    assert (1, 1) == (len(rows), source.bad_count)


@pytest.mark.parametrize("packed", (False, True), ids=("plain", "packed"))
def test_endless_line(packed: bool) -> None:
    """A line longer than any sensible one is bad, whatever its length, and the next one counts."""
    data = b"5,a\n6," + b"x" * (2 * BLOCK_SIZE) + b"\n7," + b"y" * MAX_LINE_LENGTH + b"\n8,b\n"
    source, rows = read(gzip.compress(data) if packed else data)
    assert ["a", "b"] == [row.client for row in rows]
    assert 2 == source.bad_count


class Endless(io.BytesIO):
    """A stream of fifty blocks without a line's end."""

    def __init__(self) -> None:
        self.blocks_left = 50

    def read(self, size: int | None = -1, /) -> bytes:
        """Return a block."""
        self.blocks_left -= 1
        return b"x" * min(size or 0, BLOCK_SIZE) if self.blocks_left >= 0 else b""


def test_endless_line_takes_no_memory() -> None:
    """However long a line is, a few blocks of it are held at a time."""
    source = Source(Endless(), Recording("unused").parser)
    tracemalloc.start()
    assert [] == list(source.rows())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1 == source.bad_count
    assert peak < 8 * BLOCK_SIZE


def test_packed() -> None:
    """A packed file is known by its beginning, not by its name."""
    _, rows = read(gzip.compress(b"5,a\n6,b"))
    assert ["a", "b"] == [row.client for row in rows]


@pytest.mark.parametrize("cut", (5, 200, -9, -3))
def test_packed_file_that_breaks_off(cut: int) -> None:
    """A packed file that is still being written counts as far as it goes, and that is told."""
    whole = b"".join(b"%d,client-%d\n" % (n, n * 7919 % 1000) for n in range(10_000))
    source, rows = read(gzip.compress(whole)[:cut])
    assert source.is_cut_short
    assert len(rows) == source.row_count < 10_001
    assert cut < 0 or len(rows) < 200
    assert cut > 0 or len(rows) > 9_000


def test_damaged_file() -> None:
    """So does one that is damaged in the middle."""
    packed = bytearray(gzip.compress(b"5,a\n" * 1000))
    packed[len(packed) // 2 :] = b"\xff" * 50
    source, _ = read(bytes(packed))
    assert source.is_cut_short


@given(st.binary(max_size=300))
def test_anything(data: bytes) -> None:
    """Whatever a file holds, it is read to its end without an exception."""
    source, rows = read(data)
    assert len(rows) == source.row_count


def test_nothing() -> None:
    """An empty file has no format."""
    source, rows = read(b"")
    assert ([], None, 0) == (rows, source.form, source.bad_count)
