"""Form of counter documents: written as promised, read with distrust."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Decimal128, Int64, MinKey, ObjectId, encode
from hypothesis import given

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.core.window import MAX_FRAMES
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.document import MAX_BYTES, UNUSABLE_VERSION, compose, document_id, parse, parse_all
from tests.support.bson_values import FRAME, bodies, values
from tests.support.stores import a_change

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
    """It is read and written under that name."""
    snapshot = parse({"version": 5, "requestCounters": {name: {"600": 2}}})
    assert ({series: {600: 2}}, ()) == (snapshot.hits, snapshot.damage)
    [operation] = compose("here", [a_change(Key("app", None), version=5, next_version=6, hits={series: {600: 1}})])
    assert f"'requestCounters.{name}.600': 1" in repr(operation)


def test_valid_document_is_read_without_loss() -> None:
    """Old shells write every number as a float."""
    floats = a_document(version=405.0, requestCounters={"6": {FRAME: 2.0}}, writers={"somebody": 7.0}, extra=object())
    expected = Snapshot(405, {SERIES: {START_S: 2}}, {"somebody": 7})
    assert [expected, expected] == [parse(a_document()), parse(floats)]


def test_mark_is_found_however_many_there_are() -> None:
    """An instance that does not find its own would send its hits again."""
    marks = {f"writer{number}": Int64(number) for number in range(10_001)}
    assert marks == parse(a_document(writers=marks)).writers


def test_missing_fields_are_empty_but_a_document_needs_a_version() -> None:
    """Without one it cannot be changed by compare-and-set."""
    assert Snapshot(UNUSABLE_VERSION, {}, {}, ("version",)) == parse({"_id": document_id(Key("app", None))})
    assert Snapshot(7, {}, {}) == parse({"version": 7})


@pytest.mark.parametrize("version", ["405", True, -7, 4.5, math.nan, math.inf, Int64(2**63 - 1), None], ids=repr)
def test_damaged_version_is_unusable(version: Any) -> None:
    expected = Snapshot(UNUSABLE_VERSION, {SERIES: {START_S: 2}}, {"somebody": 7}, ("version",))
    assert expected == parse(a_document(version=version))


@pytest.mark.parametrize("name", ["", "0", "06", "-6", "$6", "6.7", "6+", "6+else", "6+dry-run+denied", "6" * 5000])
def test_series_of_another_form_is_left_out_and_hinders_nothing(name: str) -> None:
    """A later version may have written it."""
    snapshot = parse(a_document(requestCounters={name: {FRAME: 1}, "6": {FRAME: 2}}))
    assert Snapshot(405, {SERIES: {START_S: 2}}, {"somebody": 7}, ("requestCounters",)) == snapshot


@pytest.mark.parametrize("frame", ["9" * 5000, "\u0663", "-1", "", "a", "06"], ids=ascii)
def test_frame_of_another_form_is_damage(frame: str) -> None:
    snapshot = parse(a_document(requestCounters={"6": {frame: 1, FRAME: 2}}))
    assert Snapshot(UNUSABLE_VERSION, {SERIES: {START_S: 2}}, {"somebody": 7}, ("requestCounters",)) == snapshot


@pytest.mark.parametrize("count", [-(2**40), "2", math.nan, True, None, {}], ids=repr)
def test_count_of_another_form_is_damage(count: Any) -> None:
    snapshot = parse(a_document(requestCounters={"6": {FRAME: count}}))
    assert Snapshot(UNUSABLE_VERSION, {SERIES: {}}, {"somebody": 7}, ("requestCounters",)) == snapshot


@pytest.mark.parametrize("counters", ["six", [1, 2], None, {"6": 5}], ids=repr)
def test_counters_of_another_form_are_damage(counters: Any) -> None:
    expected = Snapshot(UNUSABLE_VERSION, {}, {"somebody": 7}, ("requestCounters",))
    assert expected == parse(a_document(requestCounters=counters))


@pytest.mark.parametrize("writers", ["me", {"a.b": 1}, {"$a": 1}, {"a": "1"}], ids=repr)
def test_writers_of_another_form_are_damage(writers: Any) -> None:
    assert Snapshot(UNUSABLE_VERSION, {SERIES: {START_S: 2}}, {}, ("writers",)) == parse(a_document(writers=writers))


def test_document_that_was_too_large_to_be_sent_is_unusable() -> None:
    """Its size is all that is known of it."""
    assert Snapshot(UNUSABLE_VERSION, {}, {}, ("size",)) == parse({"_id": {}, "size": MAX_BYTES + 1})
    assert Snapshot(405, {SERIES: {START_S: 2}}, {"somebody": 7}) == parse(a_document(size=MAX_BYTES))


def test_largest_document_of_a_valid_configuration_is_sent() -> None:
    """Five limits with as many frames as possible, counted by two hundred instances, a minute late with removing."""
    frames = {str(START_S + index): Int64(2**40) for index in range(MAX_FRAMES + 61)}
    marks = {f"{index:012x}": Int64(2**41) for index in range(200)}
    dates = dict.fromkeys(marks, datetime(2090, 1, 1, tzinfo=UTC))
    counters = {str(index): frames for index in range(1, 6)}

    assert len(encode(a_document(requestCounters=counters, writers=marks, seen=dates))) < MAX_BYTES


FOREIGN_IDS: list[Any] = [
    *("text", 7, None, True, 1.5, b"bytes", [], {}, ObjectId("0" * 24), math.nan, MinKey(), Decimal128("1")),
    *({"clientId": "app"}, {"username": "u"}, {"clientId": 7, "username": "u"}, {"clientId": None, "username": None}),
    *({"clientId": "app", "username": 7}, {"clientId": "app", "username": {}}, {"clientId": ["app"], "username": "u"}),
    {"clientId": "app", "username": "u", "scope": 7},
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
        assert all(flush_id >= 0 for flush_id in snapshot.writers.values())
