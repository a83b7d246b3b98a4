"""Documents that somebody else has written: each costs the accuracy of its own key at most."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.document import UNUSABLE_VERSION, document_id, parse, parse_all
from tests.support.helpers import Clock
from tests.support.stores import a_change

Documents = Collection[dict[str, Any]]

SERIES = Series(6)
LIMIT = 5
VICTIM = Key("app", "victim")
NOW_S = 2_000_000_000
FRAME = str(NOW_S - NOW_S % 6)
FAR = datetime(2090, 1, 1, tzinfo=UTC)


def a_document(**fields: Any) -> dict[str, Any]:
    """Return a document as an instance would have written it, but for these fields."""
    return {
        "_id": document_id(VICTIM),
        "version": Int64(405),
        "expire": FAR,
        "requestCounters": {"6": {FRAME: 2}},
        "writers": {"somebody": Int64(7)},
        **fields,
    }


@pytest.fixture
def documents(mongo_uri: str) -> Iterator[Documents]:
    """The collection of counters, empty."""
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with client:
        yield client.get_default_database()["ratelimits"]


@pytest.fixture
def limiter(mongo_uri: str, clock: Clock) -> Iterator[Limiter]:
    """A limiter of five requests a minute, its counters in MongoDB."""
    with capture_logs():
        made = a_limiter(mongo_uri, clock)
        yield made
        made.close()


def a_limiter(mongo_uri: str, clock: Clock) -> Limiter:
    """Return a limiter of five requests a minute."""
    rates = [{"limit": LIMIT, "window": 60}]
    config = {
        "mode": "enforce",
        "store": {"uri": mongo_uri, "timeout": "5s"},
        "limits": {"client": rates, "user": rates},
    }
    return Limiter(load_config(config), clock=clock)


def test_form_that_is_ours() -> None:
    """What an instance writes is read without loss, and whole floating-point numbers, as old shells write them, too."""
    expected = Snapshot(405, {SERIES: {int(FRAME): 2}}, {"somebody": 7})

    assert expected == parse(a_document())
    assert expected == parse(
        a_document(version=405.0, requestCounters={"6": {FRAME: 2.0}}, writers={"somebody": 7.0}, extra=object())
    )


DAMAGED: dict[str, tuple[dict[str, Any], Snapshot]] = {
    "version of text": ({"version": "405"}, Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",))),
    "version true": ({"version": True}, Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",))),
    "version negative": ({"version": -7}, Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",))),
    "version broken": ({"version": 4.5}, Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",))),
    "version not a number": (
        {"version": math.nan},
        Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",)),
    ),
    "version infinite": (
        {"version": math.inf},
        Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",)),
    ),
    "version at the end": (
        {"version": Int64(2**63 - 1)},
        Snapshot(UNUSABLE_VERSION, {SERIES: {int(FRAME): 2}}, {}, ("version",)),
    ),
    "counters of text": ({"requestCounters": "six"}, Snapshot(405, {}, {}, ("requestCounters",))),
    "counters in a list": ({"requestCounters": [1, 2]}, Snapshot(405, {}, {}, ("requestCounters",))),
    "counters null": ({"requestCounters": None}, Snapshot(405, {}, {}, ("requestCounters",))),
    "series of a number": ({"requestCounters": {"6": 5}}, Snapshot(405, {}, {}, ("requestCounters",))),
    "series with a dollar": ({"requestCounters": {"$6": {FRAME: 1}}}, Snapshot(405, {}, {}, ("requestCounters",))),
    "series with a dot": ({"requestCounters": {"6.7": {FRAME: 1}}}, Snapshot(405, {}, {}, ("requestCounters",))),
    "series without a name": ({"requestCounters": {"": {FRAME: 1}}}, Snapshot(405, {}, {}, ("requestCounters",))),
    "frame of thousands of digits": (
        {"requestCounters": {"6": {"9" * 5000: 1, FRAME: 1}}},
        Snapshot(405, {SERIES: {int(FRAME): 1}}, {}, ("requestCounters",)),
    ),
    "frame in other digits": (
        {"requestCounters": {"6": {"\u0663": 1, FRAME: 1}}},
        Snapshot(405, {SERIES: {int(FRAME): 1}}, {}, ("requestCounters",)),
    ),
    "count negative": (
        {"requestCounters": {"6": {FRAME: -(2**40)}}},
        Snapshot(405, {SERIES: {}}, {}, ("requestCounters",)),
    ),
    "count of text": (
        {"requestCounters": {"6": {FRAME: "2"}}},
        Snapshot(405, {SERIES: {}}, {}, ("requestCounters",)),
    ),
    "count not a number": (
        {"requestCounters": {"6": {FRAME: math.nan}}},
        Snapshot(405, {SERIES: {}}, {}, ("requestCounters",)),
    ),
    "writers of text": ({"writers": "me"}, Snapshot(405, {SERIES: {int(FRAME): 2}}, {}, ("writers",))),
    "writer with a dot": ({"writers": {"a.b": 1}}, Snapshot(405, {SERIES: {int(FRAME): 2}}, {}, ("writers",))),
    "writer with a dollar": ({"writers": {"$a": 1}}, Snapshot(405, {SERIES: {int(FRAME): 2}}, {}, ("writers",))),
    "mark of text": ({"writers": {"a": "1"}}, Snapshot(405, {SERIES: {int(FRAME): 2}}, {}, ("writers",))),
}


@pytest.mark.parametrize(("fields", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_field(fields: dict[str, Any], expected: Snapshot) -> None:
    """What is not of our form counts as not there, and is named."""
    found = parse(a_document(writers={}) | fields)

    assert expected == found


def test_missing_fields() -> None:
    """A document without counters or marks holds none; without a version it cannot be changed."""
    assert Snapshot(UNUSABLE_VERSION, {}, {}, ("version",)) == parse({"_id": document_id(VICTIM)})
    assert Snapshot(7, {}, {}) == parse({"_id": document_id(VICTIM), "version": 7})


def test_frames_without_end() -> None:
    """Of a bloated document only the newest frames are looked at."""
    frames = {str(index): 1 for index in range(100_000)}
    snapshot = parse(a_document(requestCounters={"6": frames}))

    assert 20_000 == len(snapshot.hits[SERIES])
    assert 99_999 in snapshot.hits[SERIES]
    assert ("requestCounters",) == snapshot.damage


FOREIGN_IDS: list[Any] = [
    *(
        "text",
        7,
        None,
        True,
        1.5,
        b"bytes",
        [],
        {},
        ObjectId("0" * 24),
        math.nan,
        MinKey(),
        Decimal128("1"),
    ),
    *({"clientId": "app"}, {"username": "u"}, {"clientId": 7, "username": "u"}, {"clientId": None, "username": None}),
    *({"clientId": "app", "username": 7}, {"clientId": "app", "username": {}}, {"clientId": ["app"], "username": "u"}),
    {"clientId": "app", "username": "u", "scope": 7},
]


@pytest.mark.parametrize("identity", FOREIGN_IDS, ids=repr)
def test_foreign_identity(identity: Any) -> None:
    """Documents under another form of ``_id`` are not ours."""
    assert {} == dict(parse_all([a_document(_id=identity)]))


numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.sampled_from([2**63 - 1, 2**31, -1, 0, 405])
).map(lambda number: Int64(number) if type(number) is int else number)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=10)
names = st.sampled_from(["6", FRAME, "600", "", "$", "a.b", "$x.y", "-6", "6+denied", "somebody", "__proto__"]) | texts
scalars = st.one_of(
    numbers,
    texts,
    st.none(),
    st.binary(max_size=10),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.sampled_from(
        [
            *(
                ObjectId("0" * 24),
                MinKey(),
                MaxKey(),
                Decimal128("NaN"),
                Regex("(a+)+$"),
                Code("while(true);"),
                Timestamp(1, 1),
            ),
            *(Binary(b"x", 4), DatetimeMS(2**62), DatetimeMS(-(2**62))),
        ]
    ),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
frames = st.dictionaries(names, values, max_size=4)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "version": values,
        "expire": values,
        "requestCounters": values | st.dictionaries(names, frames | values, max_size=4),
        "writers": values | frames,
        "extra": values,
    },
)


@pytest.mark.no_cover
@settings(max_examples=200, deadline=None)
@given(body=bodies, identity=values)
def test_any_document_is_parsed(body: dict[str, Any], identity: Any) -> None:
    """Whatever a document holds, what is read of it is of our form."""
    for snapshot in (parse(body), *dict(parse_all([body, {"_id": identity, **body}])).values()):
        assert type(snapshot.version) is int
        assert all(count >= 0 for frames in snapshot.hits.values() for count in frames.values())
        assert all(flush_id >= 0 for flush_id in snapshot.writers.values())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies=st.lists(bodies, min_size=1, max_size=8))
def test_any_document_in_mongodb(mongo_uri: str, documents: Documents, bodies: list[dict[str, Any]]) -> None:
    """Whatever stands in the documents of some keys, the cycle goes on and the keys beside them are counted exactly."""
    documents.delete_many({})
    clock = Clock()
    for index, body in enumerate(bodies):
        documents.insert_one({"_id": document_id(Key("app", f"victim-{index}")), **body})
    with capture_logs() as logs:
        limiter = a_limiter(mongo_uri, clock)
        for _ in range(3):
            for index in range(len(bodies)):
                limiter.check("app", f"victim-{index}")
            limiter.check("app", "neighbour")
            assert limiter.sync().error is None
            clock.advance(7)
        limiter.preload()
        limiter.close()

    assert [] == [entry for entry in logs if entry["event"] in ("cycle_failed", "flush_failed")]
    neighbour = documents.find_one({"_id": document_id(Key("app", "neighbour"))})
    assert neighbour is not None
    assert 3 == sum(neighbour["requestCounters"]["6"].values())


BLOCKING: dict[str, dict[str, Any]] = {
    "version of text": {"version": "405"},
    "version true": {"version": True},
    "no version": {"version": None},
    "version at the end": {"version": Int64(2**63 - 1)},
    "counters of text": {"requestCounters": "six"},
    "series of a number": {"requestCounters": {"6": 5}},
    "count of text": {"requestCounters": {"6": {FRAME: "two"}}},
    "count at the end": {"requestCounters": {"6": {FRAME: Int64(2**63 - 1)}}},
    "writers of text": {"writers": "me"},
}


@pytest.mark.parametrize("fields", BLOCKING.values(), ids=BLOCKING)
def test_document_that_cannot_be_changed(
    documents: Documents, limiter: Limiter, clock: Clock, fields: dict[str, Any]
) -> None:
    """Hits stay in memory, so that the key is limited here; it is said once; a mended document is used again."""
    documents.insert_one(a_document() | fields)
    with capture_logs() as logs:
        for _ in range(10):
            limiter.check(*VICTIM[:2])
            assert limiter.check("app", f"neighbour-{clock()}").allowed
            report = limiter.sync()
            assert report.error is None
            assert report.conflict_count <= 1  # the first write of a new key
            clock.advance(0.5)

    complaints = [entry for entry in logs if entry["event"].startswith("document_")]
    assert {("app", "victim")} == {(entry["client_id"], entry["username"]) for entry in complaints}
    assert len(complaints) == len({entry["event"] for entry in complaints})
    assert not limiter.check(*VICTIM[:2]).allowed

    documents.replace_one({"_id": document_id(VICTIM)}, a_document(requestCounters={}))
    for _ in range(3):
        limiter.check(*VICTIM[:2])
        limiter.sync()

    mended = documents.find_one({"_id": document_id(VICTIM)})
    assert mended is not None
    assert limiter.counts(*VICTIM[:2]).in_flight_hits == 0
    assert 1 <= sum(mended["requestCounters"]["6"].values()) <= LIMIT


def test_damaged_documents_by_the_hundred(documents: Documents, limiter: Limiter) -> None:
    """A whole batch of damaged documents keeps none of the good ones from being written in the same cycle."""
    documents.insert_many(
        [a_document(_id=document_id(Key("app", f"bad-{index}")), version="x") for index in range(600)]
    )
    for index in range(600):
        limiter.check("app", f"bad-{index}")
        limiter.check("app", f"good-{index}")

    assert limiter.sync().error is None

    assert 600 == documents.count_documents({"version": {"$type": "long"}})


def test_text_that_is_not_unicode_and_dates_beyond_the_calendar(documents: Documents, limiter: Limiter) -> None:
    """Another driver's broken text and dates after the year 9999 make no batch unreadable."""
    documents.insert_one(
        a_document(_id=document_id(Key("app", "dated")), expire=DatetimeMS(2**60), writers=DatetimeMS(2**60))
    )
    documents.insert_one(RawBSONDocument(_with_broken_text(a_document(writers={"somebody": "XXXX"}))))
    for username in ("victim", "dated", "good"):
        limiter.check("app", username)

    assert limiter.sync().error is None
    assert 3 == limiter.preload()
    assert 3 == limiter.counts("app", "victim").shared_hits


def _with_broken_text(document: dict[str, Any]) -> bytes:
    from bson import encode

    return encode(document).replace(b"XXXX", b"\xff\xfeX\xc3")


@pytest.mark.no_cover
def test_bloated_document(documents: Documents, limiter: Limiter) -> None:
    """A document near MongoDB's limit of size is counted in and shrinks with each write."""
    marks = {f"writer-{index}": Int64(index) for index in range(9000)}
    old = {str(6 * index): 1 for index in range(150_000)}
    documents.insert_one(a_document(requestCounters={"6": {**old, FRAME: 2}}, writers=marks))
    for _ in range(3):
        limiter.check(*VICTIM[:2])
        assert limiter.sync().error is None

    found = documents.find_one({"_id": document_id(VICTIM)})
    assert found is not None
    assert 5 == found["requestCounters"]["6"][FRAME]
    assert len(found["requestCounters"]["6"]) < 150_000
    assert len(found["writers"]) < 9000


def test_hits_of_the_far_future_and_past(documents: Documents, limiter: Limiter) -> None:
    """Frames that no window can hold deny nobody."""
    documents.insert_one(a_document(requestCounters={"6": {"999999999999": 2**50, "0": 2**50}}))
    limiter.check(*VICTIM[:2])
    limiter.sync()

    assert LIMIT - 1 == limiter.peek(*VICTIM[:2]).remaining


def test_huge_count_denies_until_its_frame_has_left(documents: Documents, limiter: Limiter, clock: Clock) -> None:
    """A count beyond all reason denies its key as any count would, for a window."""
    documents.insert_one(a_document(requestCounters={"6": {FRAME: Int64(2**62)}}))
    limiter.check(*VICTIM[:2])
    limiter.sync()
    denial = limiter.check(*VICTIM[:2])

    assert not denial.allowed
    assert 0 < denial.retry_after_s <= 66
    clock.advance(denial.retry_after_s)
    assert limiter.check(*VICTIM[:2]).allowed


def test_mark_of_a_writer_that_comes_back(shared: Any) -> None:
    """A write that would remove its own old mark, or a frame that it adds to, keeps them."""
    store = shared.store
    store.compare_and_set("me", [a_change(VICTIM, version=None, next_version=10, flush_id=1)])
    stale: dict[str, Any] = {"expired_writers": ["me"], "expired_frames": [(SERIES, 600)]}
    result = store.compare_and_set("me", [a_change(VICTIM, version=10, next_version=11, flush_id=2, **stale)])

    assert ((), {}) == (tuple(result.lost), dict(result.rejected))
    assert {"me": 2} == store.read([VICTIM])[VICTIM].writers
