"""Files of recorded traffic: times, formats, and their rows in the order of time."""

import gzip
import io
import re
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.traffic.formats import (
    MAX_LINE_LENGTH,
    MAX_PROBLEMS,
    ColumnNames,
    Format,
    OrderedRows,
    Recording,
    Row,
    RowReader,
    UnusableFile,
    parse_time_us,
)

SECOND = 1_000_000
LOG_US = 807249607 * SECOND  # 01/Aug/1995:00:00:07 -0400


def read(content: str | bytes, **options: Any) -> tuple[RowReader, list[Row]]:
    data = content.encode() if isinstance(content, str) else content
    source = RowReader(io.BufferedReader(io.BytesIO(data)), Recording("-", **options))
    return source, list(source.rows())


LOG = (
    'host1 - my-app [01/Aug/1995:00:00:07 -0400] "POST /oauth/token?x=1 HTTP/1.1" 200 1839 "-" "lib/1.0"\n'
    'host2 - - [01/Aug/1995:00:00:08 -0400] "POST /oauth/token HTTP/1.1" 429 -\n'
    'host3 - two words [01/Aug/1995:00:00:09 -0400] "GET /token?say=\\"hi\\" HTTP/1.0" 200 12\n'
)
NGINX = (
    '{"time_local": "01/Aug/1995:00:00:07 -0400", "remote_addr": "192.0.2.7", "remote_user": "my-app",'
    ' "request": "POST /oauth/token?client_id=x HTTP/1.1"}\n'
    '{"time_local": "01/Aug/1995:00:00:08 -0400", "remote_addr": "192.0.2.8", "remote_user": "",'
    ' "request": "POST /oauth/token?client_id=y HTTP/1.1"}\n'
    '{"time_local": "01/Aug/1995:00:00:09 -0400", "remote_addr": "192.0.2.9", "remote_user": "-",'
    ' "request": "GET /other HTTP/1.1"}\n'
)
FROM_LOG = [Row(LOG_US, "my-app"), Row(LOG_US + SECOND, "host2"), Row(LOG_US + 2 * SECOND, "two words")]
FROM_NGINX = [Row(LOG_US, "my-app"), Row(LOG_US + SECOND, "192.0.2.8")]
FILES: dict[str, tuple[Format, str | bytes, dict[str, Any], list[Row]]] = {
    "CSV": (
        Format.CSV, "5,a,u\n6.5,b\n7,c,\n", {}, [Row(5 * SECOND, "a", "u"), Row(6_500_000, "b"), Row(7 * SECOND, "c")],
    ),
    "CSV with a header, byte order mark and quotes": (
        Format.CSV, '\ufeffuser,extra,time,client\r\nu,"x, y",5,"a, ""b"""\r\n', {}, [Row(5 * SECOND, 'a, "b"', "u")],
    ),
    "CSV with other usual names": (
        Format.CSV, "grant_type,username,client_id,timestamp\npassword,u,a,5\n", {},
        [Row(5 * SECOND, "a", "u", "password")],
    ),
    "CSV with paths and statuses": (
        Format.CSV, "time,client,path,status\n5,a,/oauth/token?x=1,200\n6,a,/oauth/token,401\n7,a,/logo.png,200\n", {},
        [Row(5 * SECOND, "a")],
    ),
    "CSV in Latin-1": (
        Format.CSV, b"5,k\xe4se\n6,k\xf6se\n", {}, [Row(5 * SECOND, r"k\xe4se"), Row(6 * SECOND, r"k\xf6se")],
    ),
    "packed": (Format.CSV, gzip.compress(b"5,a\n6,b"), {}, [Row(5 * SECOND, "a"), Row(6 * SECOND, "b")]),
    "JSON": (
        Format.JSON_LINES,
        '{"time": 5, "client": "a", "user": null, "x": []}\n{"time": "1970-01-01T00:00:06Z", "client": 7}', {},
        [Row(5 * SECOND, "a"), Row(6 * SECOND, "7")],
    ),
    "JSON of nginx": (Format.JSON_LINES, NGINX, {}, FROM_NGINX),
    "access log": (Format.ACCESS_LOG, LOG, {}, FROM_LOG),
    "access log, first group": (
        Format.ACCESS_LOG, LOG, {"client_pattern": re.compile(r"x=(\d)")}, [Row(LOG_US, "1")],
    ),
    "access log, other column": (
        Format.ACCESS_LOG, LOG.splitlines()[0], {"names": ColumnNames(client=("remote_addr",))}, [Row(LOG_US, "host1")],
    ),
    "access log, client and user": (
        Format.ACCESS_LOG, LOG, {"client_pattern": re.compile(r'"(?P<user>\w+)/(?P<client>[^"]+)"$')},
        [Row(LOG_US, "1.0", "lib")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("form", "content", "options", "expected"), FILES.values(), ids=FILES)
def test_file_of_each_form_is_detected_and_read(
    form: Format, content: str | bytes, options: dict[str, Any], expected: list[Row]
) -> None:
    source, rows = read(content, **options)
    assert (form, expected) == (source.form, rows)
    assert (len(rows), 0, False) == (source.row_count, source.bad_count, source.is_cut_short)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("time,app,who\n5,a,u\n", "client; found: time, app, who"),
        ("when,client,who\n5,a,u\n", "time; found: when, client, who"),
        ("time;client\n5;a\n", "expected time,client with or without a header"),
        ("time,client\n5,a\n".encode("utf-16"), "no text; expected UTF-8"),
        (b"PK\x03\x04\x14\x00\x00", "no text; expected UTF-8"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_what_was_found(content: str | bytes, message: str) -> None:
    with pytest.raises(UnusableFile, match=message):
        read(content)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"at": 5, "app": "a"}', "no column for the time; found: at, app. Name it: --column time=NAME"),
        ('{"time": 5}', "no column for the client; found: time. Name it: --column client=NAME"),
        ('{"time": null, "client": "a"}', "the time or the client is null"),
        ('{"time": 5, "client": []}', "invalid name"),
        ('"x"', "not a JSON object"),
        ("[" * 50_000, "not JSON"),
        (f'{{"time": {10**400}, "client": "a"}}', "not a time: '1000000000"),
    ],
    ids=lambda text: text[:30],
)
def test_malformed_json_is_a_malformed_line(line: str, reason: str) -> None:
    source, rows = read(f'{{"time": 1, "client": "a"}}\n{line}\n')
    assert (1, 1) == (len(rows), source.bad_count)
    assert source.problems[0][1].startswith(reason)


def test_json_without_a_path_cannot_be_compared_with_one() -> None:
    source, rows = read('{"time": 5, "client": "a"}\n{"time": 5, "client": "a", "uri": "/t?x"}', request_path="/t")
    assert (1, 1) == (len(rows), source.bad_count)


LOG_LINE = 'h - app [01/Aug/1995:00:00:07 -0400] "{} HTTP/1.1" {} 5 "-" "x"'
JSON_LINE = '{{"time": 5, "client": "app", "request": "{} HTTP/1.1", "status": "{}"}}'
TOKEN = "POST /oauth/token"


@pytest.mark.parametrize(
    ("request_line", "status", "path", "reason"),
    [
        (TOKEN, 200, None, None),
        (TOKEN, 429, None, None),
        (TOKEN, 401, None, "answered with 401"),
        (TOKEN, 503, None, "answered with 503"),
        ("GET /logo.png", 200, None, "at another path"),
        ("GET /logo.png", 404, None, "at another path"),
        ("OPTIONS /oauth/token", 200, None, "of method OPTIONS"),
        (TOKEN, 200, "/token", "at another path"),
        ("POST /own/tokens?x=1", 200, "/own/tokens", None),
        ("POST /own/tokens", 200, "/own/*", None),
        ("POST /own/tokens", 400, "*", "answered with 400"),
        ("POST /token", 200, None, None),
        ("POST /oauth2/v2.0/token", 200, None, None),
        ("POST /connect/token", 200, None, None),
        ("POST /realms/a/protocol/openid-connect/token", 200, None, None),
        ("POST /login/oauth/access_token", 200, None, None),
        ("POST /as/token.oauth2", 200, None, None),
        ("POST /o/token/", 200, None, None),
        ("POST /push/token", 200, None, "at another path"),
        ("POST /oauth/tokens", 200, None, "at another path"),
        ("POST /oauth/token/introspect", 200, None, "at another path"),
        ("-", 400, None, "at another path"),
    ],
)
@pytest.mark.parametrize("line", [LOG_LINE, JSON_LINE], ids=["access log", "JSON"])
def test_only_tokens_and_denials_of_the_token_endpoint_count(
    line: str, request_line: str, status: int, path: str | None, reason: str | None
) -> None:
    source, rows = read(line.format(request_line, status), request_path=path)

    assert ([] if reason else ["app"]) == [row.client for row in rows]
    assert ({reason: 1} if reason else {}) == source.left_out


TRAEFIK = '{{"time": 5, "ClientUsername": "app", "RequestMethod": "{}", "RequestPath": "{}", "DownstreamStatus": {}}}'
CADDY = '{{"ts": 5, "client": "app", "request": {{"method": "{}", "uri": "{}"}}, "status": {}}}'
OWN = '{{"time": 5, "client": "app", "verb": "{}", "where": "{}", "code": {}}}'


@pytest.mark.parametrize(
    ("line", "names"),
    [(TRAEFIK, {}), (CADDY, {}), (OWN, {"method": ("verb",), "path": ("where",), "status": ("code",)})],
)
def test_other_paths_methods_and_answers_are_left_out_whatever_their_names(
    line: str, names: dict[str, tuple[str, ...]]
) -> None:
    asked = [("POST", "/token?x=1", 200), ("GET", "/logo.png", 200), ("HEAD", "/token", 200), ("POST", "/token", 401)]
    content = "\n".join(line.format(*each) for each in asked)
    source, rows = read(content, names=ColumnNames(**names))
    assert [Row(5 * SECOND, "app")] == rows
    assert {"at another path": 1, "of method HEAD": 1, "answered with 401": 1} == source.left_out
    assert 0 == source.unchecked_count


def test_rows_are_told_in_which_a_path_or_a_status_may_have_another_name() -> None:
    assert 1 == read(OWN.format("POST", "/logo.png", 404))[0].unchecked_count
    assert 0 == read('{"time": 5, "client": "app"}')[0].unchecked_count


def test_number_of_paths_that_are_named_is_bounded() -> None:
    source, _ = read("\n".join(LOG_LINE.format(f"POST /{number}", 200) for number in range(1000)))

    assert (1000, 100) == (source.left_out.total(), len(source.paths))


def test_malformed_lines_are_counted_and_the_first_reported() -> None:
    source, rows = read("5,a\nrubbish\n\n6,\n7,b\n" + "nope,x\n" * 10)
    assert ["a", "b"] == [row.client for row in rows]
    assert (12, 1, MAX_PROBLEMS) == (source.bad_count, source.left_out.total(), len(source.problems))
    assert [2, 4, 6] == [number for number, _ in source.problems][:3]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_line_that_is_too_long_is_malformed_and_takes_bounded_memory(pack: Any) -> None:
    data = pack(b"5,a\n6," + b"x" * (20 << 20) + b"\n7," + b"y" * MAX_LINE_LENGTH + b"\n8,b\n")
    stream = io.BufferedReader(io.BytesIO(data))
    source = RowReader(stream, Recording("-"))
    tracemalloc.start()
    assert ["a", "b"] == [row.client for row in source.rows()]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 2 == source.bad_count
    assert peak < 20 * MAX_LINE_LENGTH


@pytest.mark.parametrize(("cut", "rest"), [(5, b""), (200, b""), (200, b"\xff" * 50), (-9, b""), (-3, b"")])
def test_truncated_or_damaged_gzip_is_read_as_far_as_it_goes(cut: int, rest: bytes) -> None:
    whole = b"".join(b"%d,client-%d\n" % (n, n * 7919 % 1000) for n in range(10_000))
    source, rows = read(gzip.compress(whole)[:cut] + rest)
    assert source.is_cut_short
    assert len(rows) == source.row_count < 10_001
    assert len(rows) < 200 if cut > 0 else len(rows) > 9_000


@given(st.binary(max_size=300))
def test_any_file_is_read_or_refused(data: bytes) -> None:
    with suppress(UnusableFile):
        source, rows = read(data)
        assert len(rows) == source.row_count
        assert data.strip() or source.form is None


def ordered(rows: Sequence[Row], *, held_count: int = 4) -> tuple[OrderedRows, list[Row]]:
    order = OrderedRows(rows, held_count=held_count)
    return order, list(order)


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 9))
def test_rows_come_in_order_and_none_is_lost(times: Sequence[int], held_count: int) -> None:
    rows = [Row(at_us, str(number)) for number, at_us in enumerate(times)]
    order, found = ordered(rows, held_count=held_count)
    assert [row.at_us for row in found] == sorted(row.at_us for row in found)
    assert sorted(row.client for row in rows) == sorted(row.client for row in found)
    assert order.late_count == len(set(found) - set(rows))
    for at_us in set(times) if not order.late_count else ():
        assert [row for row in rows if row.at_us == at_us] == [row for row in found if row.at_us == at_us], "ties"
    assert (order.first_us, order.last_us) == ((found[0].at_us, found[-1].at_us) if found else (None, None))


def test_only_the_row_that_is_too_late_or_of_the_future_is_moved() -> None:
    """A row of the year 2099 in a log must not make all others late."""
    rows = [Row(at_us, "a") for at_us in (1, 2, 4_070_000_000 * SECOND, 6, 5, 7, 8, 9, 3, 10)]
    order, found = ordered(rows, held_count=3)
    assert [1, 2, 5, 6, 7, 7, 8, 9, 10, 4_070_000_000 * SECOND] == [row.at_us for row in found]
    assert 1 == order.late_count


@pytest.mark.parametrize("held_count", [1, 3, 100])
def test_rows_of_a_second_are_spread_over_it_however_many_are_held(held_count: int) -> None:
    rows = [Row(second * SECOND, "a") for second in (5, 5, 6, 7, 7, 7, 7)]
    order, found = ordered(rows, held_count=held_count)
    assert order.is_spread
    assert [5.25, 5.75, 6.5, 7.125, 7.375, 7.625, 7.875] == [row.at_us / SECOND for row in found]


def test_rows_of_one_second_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.traffic.formats.MAX_SPREAD", 5)
    _, found = ordered([Row(SECOND, "a") for _ in range(100)])
    assert (100, [1.1, 1.3, 1.5, 1.7, 1.9]) == (len(found), [row.at_us / SECOND for row in found[:5]])
    assert {2 * SECOND - 1} == {row.at_us for row in found[5:]}


@pytest.mark.parametrize(
    ("written", "expected"),
    (
        (807249600, 807249600_000000),
        ("807249600.25", 807249600_250000),
        (" 807249600 ", 807249600_000000),
        ("807249600250", 807249600_250000),
        (807249600250001, 807249600_250001),
        ("807249600250001000", 807249600_250001),
        ("1995-08-01T04:00:00Z", 807249600_000000),
        ("1995-08-01T00:00:00.5-04:00", 807249600_500000),
        ("1995-08-01 04:00:00", 807249600_000000),
    ),
    ids=str,
)
def test_numbers_and_iso_8601_are_times(written: object, expected: int) -> None:
    assert expected == parse_time_us(written)


@pytest.mark.parametrize(
    "written",
    (
        *("", "-1", "nan", "inf", "1e30", -0.1, 10**400, True, None, []),
        *("1960-01-01", "9999-12-31T23:59:59-23:59", "32/Aug/1995:00:00:00 +0000"),
    ),
    ids=lambda written: repr(written)[:30],
)
def test_other_values_are_refused_with_a_reason(written: object) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_time_us(written)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(lambda moment: moment.replace(microsecond=0)),
    st.integers(-14 * 60, 14 * 60),
)
def test_access_log_times_in_any_zone(moment: datetime, offset_min: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    if local.timestamp() >= 0:
        assert round(local.timestamp() * 10**6) == parse_time_us(local.strftime("%d/%b/%Y:%H:%M:%S %z"))


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
def test_iso_8601_is_exact_to_the_microsecond(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    seconds, micros = divmod(parse_time_us(moment.isoformat()), 10**6)
    assert (int(moment.replace(microsecond=0).timestamp()), moment.microsecond) == (seconds, micros)
