"""Counter documents that somebody else has written: each costs the accuracy of its own key at most."""

from collections.abc import Iterator
from typing import Any

import pytest
from bson import DatetimeMS, Int64, encode
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo.document import document_id
from tests.store.test_document import a_document as any_document
from tests.support.bson_values import FRAME, bodies
from tests.support.helpers import Clock

Documents = Collection[dict[str, Any]]

LIMIT = 5
VICTIM = Key("app", "victim")


def a_document(**fields: Any) -> dict[str, Any]:
    """Return the victim's document, valid except for these fields."""
    return any_document(**{"_id": document_id(VICTIM), **fields})


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


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies=st.lists(bodies, min_size=1, max_size=8))
def test_any_document_leaves_the_keys_beside_it_exact(
    mongo_uri: str, documents: Documents, bodies: list[dict[str, Any]]
) -> None:
    """The cycle goes on."""
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
def test_document_that_cannot_be_written_limits_by_the_hits_in_memory(
    documents: Documents, limiter: Limiter, clock: Clock, fields: dict[str, Any]
) -> None:
    """It is logged once, and used again when it is repaired."""
    documents.insert_one(a_document() | fields)
    with capture_logs() as logs:
        for _ in range(10):
            limiter.check(*VICTIM[:2])
            assert limiter.check("app", f"neighbour-{clock()}").allowed
            report = limiter.sync()
            assert report.error is None
            assert report.conflict_count <= 1  # the first write of a new key
            clock.advance(0.5)

    logged = [entry for entry in logs if entry["event"].startswith("document_")]
    assert {("app", "victim")} == {(entry["client_id"], entry["username"]) for entry in logged}
    assert len(logged) == len({entry["event"] for entry in logged})
    assert not limiter.check(*VICTIM[:2]).allowed

    documents.replace_one({"_id": document_id(VICTIM)}, a_document(requestCounters={}))
    for _ in range(3):
        limiter.check(*VICTIM[:2])
        limiter.sync()

    repaired = documents.find_one({"_id": document_id(VICTIM)})
    assert repaired is not None
    assert limiter.counts(*VICTIM[:2]).in_flight_hits == 0
    assert 1 <= sum(repaired["requestCounters"]["6"].values()) <= LIMIT


def test_batch_of_damaged_documents_does_not_delay_valid_ones(documents: Documents, limiter: Limiter) -> None:
    """They are written in the same cycle."""
    documents.insert_many(
        [a_document(_id=document_id(Key("app", f"bad-{index}")), version="x") for index in range(600)]
    )
    for index in range(600):
        limiter.check("app", f"bad-{index}")
        limiter.check("app", f"good-{index}")

    assert limiter.sync().error is None

    assert 600 == documents.count_documents({"version": {"$type": "long"}})


def test_text_that_is_not_utf8_and_dates_after_9999_leave_a_batch_readable(
    documents: Documents, limiter: Limiter
) -> None:
    """Another driver may have written them."""
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
    return encode(document).replace(b"XXXX", b"\xff\xfeX\xc3")


@pytest.mark.no_cover
def test_bloated_document_shrinks_with_each_write(documents: Documents, limiter: Limiter) -> None:
    """Even near the size limit of MongoDB."""
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


def test_hits_of_the_far_future_and_past_deny_nobody(documents: Documents, limiter: Limiter) -> None:
    """No window holds their frames."""
    documents.insert_one(a_document(requestCounters={"6": {"999999999999": 2**50, "0": 2**50}}))
    limiter.check(*VICTIM[:2])
    limiter.sync()

    assert LIMIT - 1 == limiter.peek(*VICTIM[:2]).remaining


def test_huge_count_denies_until_its_frame_has_left(documents: Documents, limiter: Limiter, clock: Clock) -> None:
    """For a window, as any count would."""
    documents.insert_one(a_document(requestCounters={"6": {FRAME: Int64(2**62)}}))
    limiter.check(*VICTIM[:2])
    limiter.sync()
    denial = limiter.check(*VICTIM[:2])

    assert not denial.allowed
    assert 0 < denial.retry_after_s <= 66
    clock.advance(denial.retry_after_s)
    assert limiter.check(*VICTIM[:2]).allowed
