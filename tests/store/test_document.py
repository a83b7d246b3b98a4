"""Form of counter documents: written as promised, read with distrust."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Code, DatetimeMS, Decimal128, Int64, MinKey, ObjectId, Timestamp, encode
from hypothesis import given

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.core.window import MAX_FRAMES
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.document import MAX_BYTES, UNUSABLE_VERSION, compose, document_id, parse, parse_all
from tests.support.bson_values import FRAME, bodies, values
from tests.support.stores import a_change

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERIES, START_S = Series(6), int(FRAME)
NAMES = {
    "6": Series(6),
    "6+denied": Series(6, count_denied=True),
    "6+dry-run": Series(6, on_trial=True),
    "31622400+denied+dry-run": Series(31_622_400, count_denied=True, on_trial=True),
}


def a_document(**fields: Any) -> dict[str, Any]:
    """Return a valid document, except for these fields."""
    return {
        "_id": document_id(Key("app", "kim")),
        "version": Int64(405),
        "expire": datetime(2090, 1, 1, tzinfo=UTC),
        "requestCounters": {"6": {FRAME: 2}},
        "writers": {"somebody": Int64(7)},
        **fields,
    }


@pytest.mark.parametrize(("name", "series"), NAMES.items())
def test_series_has_the_name_that_stored_documents_have(name: str, series: Series) -> None:
    assert {series: {600: 2}} == parse({"version": 5, "requestCounters": {name: {"600": 2}}}).hits
    [operation] = compose("here", [a_change(Key("app", None), version=5, next_version=6, hits={series: {600: 1}})])
    assert f"'requestCounters.{name}.600': 1" in repr(operation)


def test_valid_document_is_read_without_loss() -> None:
    """Old shells write every number as a float."""
    floats = a_document(version=405.0, requestCounters={"6": {FRAME: 2.0}}, writers={"somebody": 7.0}, extra=object())
    expected = Snapshot(405, {SERIES: {START_S: 2}}, {"somebody": 7})
    assert [expected] * 3 == [parse(a_document()), parse(floats), parse(a_document(size=MAX_BYTES))]
    assert Snapshot(7, {}, {}) == parse({"version": 7})


def test_mark_is_found_however_many_there_are() -> None:
    """An instance that does not find its own would send its hits again."""
    marks = {f"writer{number}": Int64(number) for number in range(10_001)}
    assert marks == parse(a_document(writers=marks)).writers


@pytest.mark.parametrize(
    "name", ["", "0", "06", "-6", "$6", "6.7", "6+", "6+else", "6+dry-run+denied", "6+by-grant", "6" * 5000]
)
def test_series_with_another_name_is_left_out(name: str) -> None:
    """A later version may have written it."""
    document = a_document(requestCounters={name: {FRAME: 1}, "6": {FRAME: 2}}, horizons={name: 6, "6": 66})
    expected = Snapshot(405, {SERIES: {START_S: 2}}, {"somebody": 7}, horizons={SERIES: 66})
    assert expected == parse(document)


NO_NUMBERS = ["405", True, -7, 4.5, math.nan, math.inf, 2.0**53, None, {}, [5], Decimal128("5"), NOW]
DAMAGED: list[tuple[str, Any]] = [
    *(("version", value) for value in (*NO_NUMBERS, Int64(2**63 - 1))),
    *(("requestCounters", {"6": {FRAME: value, "0": 1}}) for value in NO_NUMBERS),
    *(("requestCounters", {"6": {name: 1}}) for name in ("9" * 5000, "\u0663", "-1", "", "a", "06", "1e3")),
    *(("requestCounters", value) for value in ("six", 6, [1, 2], None, {"6": 5}, {"6": None}, {"6": [5]})),
    *(("writers", {"somebody": value}) for value in NO_NUMBERS),
    *(("writers", {name: 1}) for name in ("a.b", "$a", "", "w" * 65)),
    *(("writers", value) for value in ("me", [1], None)),
    *(("horizons", {"6": value}) for value in (*NO_NUMBERS, 2**40)),
    *(("horizons", value) for value in ("long", [1], None)),
    *(("seen", {"somebody": value}) for value in ("now", 5, None, DatetimeMS(2**60), Timestamp(1, 1))),
    *(("seen", {"a.b": NOW}), ("seen", [NOW]), ("seen", None)),
    ("size", MAX_BYTES + 1),
]


@pytest.mark.parametrize(("field", "value"), DAMAGED, ids=lambda value: ascii(value)[:40])
def test_document_with_a_value_of_another_form_is_in_quarantine(field: str, value: Any) -> None:
    assert Snapshot(UNUSABLE_VERSION, {}, {}, field) == parse(a_document(**{field: value}))


def test_document_without_a_version_is_in_quarantine() -> None:
    """It cannot be changed by compare-and-set."""
    assert Snapshot(UNUSABLE_VERSION, {}, {}, "version") == parse({"_id": document_id(Key("app", None))})


def test_largest_document_of_a_valid_configuration_is_sent() -> None:
    """A hundred limits with as many frames as possible, counted by two hundred instances, removed a minute late."""
    frames = {str(START_S + index): Int64(2**40) for index in range(MAX_FRAMES + 61)}
    marks = {f"{index:012x}": Int64(2**41) for index in range(200)}
    dates = dict.fromkeys(marks, datetime(2090, 1, 1, tzinfo=UTC))
    counters = {str(index): frames for index in range(1, 101)}

    assert len(encode(a_document(requestCounters=counters, writers=marks, seen=dates))) < MAX_BYTES


FOREIGN_IDS: list[Any] = [
    *("text", 7, None, True, 1.5, b"bytes", [], {}, ObjectId("0" * 24), math.nan, MinKey(), Decimal128("1")),
    *({"clientId": "app"}, {"username": "u"}, {"clientId": 7, "username": "u"}, {"clientId": None, "username": None}),
    *({"clientId": "app", "username": 7}, {"clientId": "app", "username": {}}, {"clientId": ["app"], "username": "u"}),
    {"clientId": "app", "username": "u", "scope": 7},
    *({"clientId": "app", "username": "u", name: Code("x")} for name in ("clientId", "username", "scope")),
]


@pytest.mark.parametrize("identity", FOREIGN_IDS, ids=repr)
def test_document_with_another_form_of_id_is_ignored(identity: Any) -> None:
    assert {} == dict(parse_all([a_document(_id=identity)]))


@pytest.mark.no_cover
@given(body=bodies, identity=values)
def test_any_document_gives_valid_numbers(body: dict[str, Any], identity: Any) -> None:
    for snapshot in (parse(body), *dict(parse_all([body, {"_id": identity, **body}])).values()):
        assert type(snapshot.version) is int
        assert all(count >= 0 for frames in snapshot.hits.values() for count in frames.values())
        assert all(write_number >= 0 for write_number in snapshot.writers.values())
