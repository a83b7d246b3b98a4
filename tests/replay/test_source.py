"""Files of recorded traffic, and their rows in the order of time."""

import gzip
import io
import re
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.replay.formats import Format, Row, UnusableFile
from oauth_ratelimit.replay.source import BLOCK_SIZE, MAX_LINE_LENGTH, MAX_PROBLEMS, OrderedRows, Recording, Source

SECOND = 1_000_000


def read(content: str | bytes, **options: object) -> tuple[Source, list[Row]]:
    """Return the facts of a file and its rows."""
    recording = Recording("unused", **options)  # type: ignore[arg-type]
    data = content.encode() if isinstance(content, str) else content
    source = Source(io.BytesIO(data), recording.parser, form=recording.form)
    return source, list(source.rows())


def test_csv_without_a_header() -> None:
    source, rows = read("5,a,u\n6.5,b\n7,c,\n")
    assert [Row(5 * SECOND, "a", "u"), Row(6_500_000, "b"), Row(7 * SECOND, "c")] == rows
    assert (Format.CSV, 3, 0) == (source.form, source.row_count, source.bad_count)


def test_csv_header_gives_the_order_of_columns() -> None:
    _, rows = read('\ufeffuser,extra,time,client\r\nu,"x, y",5,"a, ""b"""\r\n')
    assert [Row(5 * SECOND, 'a, "b"', "u")] == rows


@pytest.mark.parametrize("delimiter", (",", ";", "\t", "|"), ids=("comma", "semicolon", "tab", "pipe"))
def test_delimiter_is_found_in_the_first_line(delimiter: str) -> None:
    _, rows = read("time,client,user\n5,a,u\n".replace(",", delimiter))
    assert [Row(5 * SECOND, "a", "u")] == rows
    _, rows = read(f'5{delimiter}"a, b; c | d"{delimiter}u\n')
    assert [Row(5 * SECOND, "a, b; c | d", "u")] == rows


def test_decimal_comma_is_no_delimiter() -> None:
    _, rows = read("5,25;a;u\n")
    assert [Row(5_250_000, "a", "u")] == rows


def test_usual_names_of_columns_are_understood() -> None:
    _, rows = read("grant_type,username,client_id,timestamp\npassword,u,a,5\n")
    assert [Row(5 * SECOND, "a", "u", "password")] == rows


@pytest.mark.parametrize("header", ("when;app;who", "time;app;who", "when;client;who"))
def test_header_without_time_or_client_names_the_columns_found(header: str) -> None:
    with pytest.raises(UnusableFile, match=", ".join(header.split(";"))):
        read(f"{header}\n5;a;u\n")


def test_json_lines_are_read() -> None:
    source, rows = read(
        '{"time": 5, "client": "a", "user": null, "x": []}\n{"time": "1970-01-01T00:00:06Z", "client": 7}'
    )
    assert [Row(5 * SECOND, "a"), Row(6 * SECOND, "7")] == rows
    assert Format.JSON_LINES == source.form


def test_json_without_time_or_client_names_the_members_found() -> None:
    source, _ = read('{"at": 5, "app": "a"}\n{"time": 5, "app": "a"}\n{"time": null, "client": "a"}\n')
    reasons = [problem.reason for problem in source.problems]
    assert ["time; found: at, app.", "client; found: time, app.", "the time or the client is null"] == [
        reason.removeprefix("no column for the ").partition(" Name it")[0] for reason in reasons
    ]


NGINX = (
    '{"time_local": "01/Aug/1995:00:00:07 -0400", "remote_addr": "192.0.2.7", "remote_user": "my-app",'
    ' "request": "POST /oauth/token?client_id=x HTTP/1.1"}\n'
    '{"time_local": "01/Aug/1995:00:00:08 -0400", "remote_addr": "192.0.2.8", "remote_user": "",'
    ' "request": "POST /oauth/token?client_id=y HTTP/1.1"}\n'
    '{"time_local": "01/Aug/1995:00:00:09 -0400", "remote_addr": "192.0.2.9", "remote_user": "-",'
    ' "request": "GET /other HTTP/1.1"}\n'
)


def test_json_of_nginx_is_read_with_its_own_names() -> None:
    source, rows = read(NGINX, request_path="/oauth/token")
    assert [("my-app", 7), ("192.0.2.8", 8)] == [(row.client, row.at_us // SECOND - 807249600) for row in rows]
    assert (1, 1, 0) == (source.address_count, source.left_out_count, source.bad_count)
    source, rows = read(NGINX, client_pattern=re.compile(r"client_id=(\w+)"))
    assert (["x", "y"], 0) == ([row.client for row in rows], source.address_count)


def test_json_without_a_path_cannot_be_compared_with_one() -> None:
    source, rows = read('{"time": 5, "client": "a"}\n{"time": 5, "client": "a", "uri": "/t?x"}', request_path="/t")
    assert (1, 1) == (len(rows), source.bad_count)


LOG = (
    'host1 - my-app [01/Aug/1995:00:00:07 -0400] "POST /oauth/token?x=1 HTTP/1.1" 200 1839 "-" "lib/1.0"\n'
    'host2 - - [01/Aug/1995:00:00:08 -0400] "POST /oauth/token HTTP/1.1" 429 -\n'
    'host3 - two words [01/Aug/1995:00:00:09 -0400] "GET /say\\"hi\\" HTTP/1.0" 200 12\n'
)


def test_access_log_client_is_the_authenticated_user_or_the_host() -> None:
    source, rows = read(LOG)
    assert ["my-app", "host2", "two words"] == [row.client for row in rows]
    assert [7, 8, 9] == [row.at_us // SECOND - 807249600 for row in rows]
    assert (Format.ACCESS_LOG, 1) == (source.form, source.address_count)


def test_other_paths_are_left_out_and_counted() -> None:
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
def test_pattern_finds_client_and_user(pattern: str, expected: list[tuple[str, str | None]]) -> None:
    found = (
        re.compile(pattern) if "client" in pattern or "user" not in pattern else re.compile(pattern + "(?P<client>x)")
    )
    source, rows = read(LOG, client_pattern=found)
    assert expected == [(row.client, row.user) for row in rows]
    assert 3 == len(rows) + source.left_out_count


def test_malformed_lines_are_counted_and_the_first_reported() -> None:
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
def test_malformed_json_is_a_malformed_line(line: str) -> None:
    source, rows = read(f'{{"time": 1, "client": "a"}}\n{line}\n')
    assert (1, 1) == (len(rows), source.bad_count)


@pytest.mark.parametrize("packed", (False, True), ids=("plain", "packed"))
def test_line_that_is_too_long_is_malformed(packed: bool) -> None:
    data = b"5,a\n6," + b"x" * (2 * BLOCK_SIZE) + b"\n7," + b"y" * MAX_LINE_LENGTH + b"\n8,b\n"
    source, rows = read(gzip.compress(data) if packed else data)
    assert ["a", "b"] == [row.client for row in rows]
    assert 2 == source.bad_count


class Endless(io.BytesIO):
    """A stream of fifty blocks without a line feed."""

    def __init__(self) -> None:
        self.blocks_left = 50

    def read(self, size: int | None = -1, /) -> bytes:
        """Return a block."""
        self.blocks_left -= 1
        return b"x" * min(size or 0, BLOCK_SIZE) if self.blocks_left >= 0 else b""


def test_endless_line_takes_bounded_memory() -> None:
    source = Source(Endless(), Recording("unused").parser)
    tracemalloc.start()
    assert [] == list(source.rows())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1 == source.bad_count
    assert peak < 8 * BLOCK_SIZE


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_read_if_it_says_so(encoding: str, packed: bool) -> None:
    """A letter may lie across two blocks."""
    text = "\ufefftime,client\r\n" + "".join(f"{n},käse-\U0001f9c0-{'x' * (n % 7)}\r\n" for n in range(60_000))
    data = text.encode(encoding)
    source, rows = read(gzip.compress(data) if packed else data)

    assert (Format.CSV, 60_000, 0) == (source.form, source.row_count, source.bad_count)
    assert Row(59_999 * SECOND, "käse-\U0001f9c0-xx") == rows[-1]


def test_names_in_another_encoding_stay_apart() -> None:
    _, rows = read("5,käse\n6,köse\n".encode("latin-1"))

    assert [r"k\xe4se", r"k\xf6se"] == [row.client for row in rows]


@pytest.mark.parametrize("data", ["time,client\n5,a\n".encode("utf-16-le"), b"PK\x03\x04\x14\x00\x00"])
def test_file_that_is_no_text_is_refused_with_the_encodings(data: bytes) -> None:
    with pytest.raises(UnusableFile, match="no text; expected UTF-8, or UTF-16 with a byte order mark"):
        read(data)


def test_gzip_is_detected_by_content() -> None:
    _, rows = read(gzip.compress(b"5,a\n6,b"))
    assert ["a", "b"] == [row.client for row in rows]


@pytest.mark.parametrize("cut", (5, 200, -9, -3))
def test_truncated_gzip_is_read_as_far_as_it_goes(cut: int) -> None:
    whole = b"".join(b"%d,client-%d\n" % (n, n * 7919 % 1000) for n in range(10_000))
    source, rows = read(gzip.compress(whole)[:cut])
    assert source.is_cut_short
    assert len(rows) == source.row_count < 10_001
    assert cut < 0 or len(rows) < 200
    assert cut > 0 or len(rows) > 9_000


def test_damaged_gzip_is_read_as_far_as_it_goes() -> None:
    packed = bytearray(gzip.compress(b"5,a\n" * 1000))
    packed[len(packed) // 2 :] = b"\xff" * 50
    source, _ = read(bytes(packed))
    assert source.is_cut_short


@given(st.binary(max_size=300))
def test_any_file_is_read_or_lacks_a_column(data: bytes) -> None:
    with suppress(UnusableFile):
        source, rows = read(data)
        assert len(rows) == source.row_count


def test_empty_file_has_no_format() -> None:
    source, rows = read(b"")
    assert ([], None, 0) == (rows, source.form, source.bad_count)


def ordered(rows: Sequence[Row], *, spread: bool | None = False, batch_size: int = 4) -> tuple[OrderedRows, list[Row]]:
    """Return the ordered rows as an object and as a list."""
    order = OrderedRows(rows, spread=spread, batch_size=batch_size)
    return order, [row for batch in order.batches() for row in batch]


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 9))
def test_rows_come_in_order_and_none_is_lost(times: Sequence[int], batch_size: int) -> None:
    rows = [Row(at_us, str(number)) for number, at_us in enumerate(times)]
    order, found = ordered(rows, batch_size=batch_size)
    assert [row.at_us for row in found] == sorted(row.at_us for row in found)
    assert {row.client for row in rows} == {row.client for row in found}
    assert len(rows) == len(found)
    assert order.late_count == len(set(found) - set(rows))


def test_rows_within_a_batch_are_sorted_and_ties_keep_their_order() -> None:
    rows = [Row(at_us, name) for at_us, name in ((3, "a"), (1, "b"), (3, "c"), (2, "d"), (7, "e"), (5, "f"))]
    order, found = ordered(rows)
    assert "bdacfe" == "".join(row.client for row in found)
    assert (0, 1, 7) == (order.late_count, order.first_us, order.last_us)


def test_row_that_is_too_late_gets_the_time_that_was_reached() -> None:
    rows = [Row(at_us, "a") for at_us in (*range(10, 30), 1)]
    order, found = ordered(rows)
    assert 1 == order.late_count
    assert 21 == len(found)
    assert min(row.at_us for row in found) == 10


@pytest.mark.parametrize("batch_size", (1, 3, 100))
def test_rows_of_a_second_are_spread_over_it_wherever_a_batch_ends(batch_size: int) -> None:
    rows = [Row(second * SECOND, "a") for second in (5, 5, 6, 7, 7, 7, 7)]
    order, found = ordered(rows, spread=None, batch_size=batch_size)
    assert order.is_spread
    assert [5.25, 5.75, 6.5, 7.125, 7.375, 7.625, 7.875] == [row.at_us / SECOND for row in found]


def test_rows_with_fractions_of_seconds_are_not_spread() -> None:
    rows = [Row(5 * SECOND, "a"), Row(5 * SECOND + 1, "b")]
    order, found = ordered(rows, spread=None)
    assert not order.is_spread
    assert rows == found


def test_rows_of_one_second_hold_a_bounded_number_of_batches() -> None:
    order = OrderedRows((Row(SECOND, "a") for _ in range(100)), spread=True, batch_size=5)
    sizes = [len(batch) for batch in order.batches()]
    assert 100 == sum(sizes)
    assert max(sizes) <= 25


def test_no_rows_have_no_first_and_last_time() -> None:
    order, found = ordered([])
    assert [] == found
    assert order.first_us is order.last_us is None
