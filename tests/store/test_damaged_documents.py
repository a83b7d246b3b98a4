"""Counter documents that somebody else has written: each costs the accuracy of its own key at most."""

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from bson import BSON, DatetimeMS, Int64, encode
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo.document import document_id
from testbed.clock import Clock
from tests.store.test_document import a_document as any_document
from tests.support.bson_values import FRAME, bodies
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import in_flight_hits, limiter_of, used_hits
from tests.support.stores import mongo_store

Documents = Collection[dict[str, Any]]

LIMIT = 5
VICTIM = Key("app", "victim")


def a_document(**fields: Any) -> dict[str, Any]:
    """Return the victim's document, valid except for these fields."""
    return any_document(**{"_id": document_id(VICTIM), **fields})


@pytest.fixture
def limiter(mongo_uri: str, clock: Clock) -> Iterator[Limiter]:
    """A limiter of five requests a minute, its counters in MongoDB."""
    with capture_logs():
        made = sharing(mongo_uri, clock)
        yield made
        made.close()


def sharing(mongo_uri: str, clock: Clock, store: CounterStore | None = None) -> Limiter:
    rates = [{"limit": LIMIT, "window": 60}]
    config = {"store": {"uri": mongo_uri, "timeout": "5s"}, "limits": {"client": rates, "user": rates}}
    return limiter_of(config, store, clock=clock)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(bodies=st.lists(bodies, min_size=1, max_size=8))
def test_any_document_leaves_the_keys_beside_it_exact(
    mongo_uri: str, documents: Documents, bodies: list[dict[str, Any]]
) -> None:
    documents.delete_many({})
    clock = Clock()
    for index, body in enumerate(bodies):
        documents.insert_one({"_id": document_id(Key("app", f"victim-{index}")), **body})
    with capture_logs() as logs:
        limiter = sharing(mongo_uri, clock)
        for _ in range(3):
            for index in range(len(bodies)):
                limiter.check("app", f"victim-{index}")
            limiter.check("app", "neighbour")
            assert limiter.sync().error is None
            clock.advance(7)
        limiter.preload()
        limiter.close()

    assert [] == [entry for entry in logs if entry["event"] in ("cycle_failed", "flush_failed")]
    assert 3 == hits_of(documents, Key("app", "neighbour"))


HUGE = Int64(2**63 - 1)
KINDS: dict[str, dict[str, Any]] = {
    "version text": {"version": "5"},
    "version at the end": {"version": HUGE},
    "count negative": {"requestCounters.6": {FRAME: -5}},
    "count not a number": {"requestCounters.6": {FRAME: math.nan}},
    "count text": {"requestCounters.6": {FRAME: "5"}},
    "count null": {"requestCounters.6": {FRAME: None}},
    "count a list": {"requestCounters.6": {FRAME: [5]}},
    "counters text": {"requestCounters": "six"},
    "counters a list of mappings": {"requestCounters": [{FRAME: 1}] * 9},
    "series a list": {"requestCounters.6": []},
    "another series a list": {"requestCounters.12": []},
    "frame with a leading zero": {"requestCounters.6.06": 5},
    "writers a list": {"writers": []},
    "horizon text": {"horizons.6": "long"},
    "seen a number": {"seen.other": 5},
    "too large": {"requestCounters.1": {str(index): 1 for index in range(60_000)}},
}
VALID = {"6": {FRAME: 1}}


def damage_victim(documents: Documents, damage: dict[str, Any]) -> dict[str, Any]:
    """Damage the victim's document without another version, and return it as it was."""
    return documents.find_one_and_update({"_id": document_id(VICTIM)}, {"$set": damage})


def hits_of(documents: Documents, key: Key) -> int:
    found = documents.find_one({"_id": document_id(key)})
    assert found is not None
    return sum(found["requestCounters"]["6"].values())


@pytest.mark.parametrize("is_removed", [False, True], ids=["repaired", "removed"])
@pytest.mark.parametrize("damage", KINDS.values(), ids=KINDS)
def test_damaged_document_is_not_written_and_gets_its_hits_once_when_repaired_or_gone(
    documents: Documents, limiter: Limiter, damage: dict[str, Any], *, is_removed: bool
) -> None:
    """It is logged once, its neighbours are written, and its hits are decided on and kept in memory."""
    documents.insert_one(a_document(requestCounters=VALID))
    damage_victim(documents, damage)
    damaged = documents.find_one({"_id": document_id(VICTIM)}) or {}
    with capture_logs() as logs:
        for index in range(3):
            assert limiter.check(*VICTIM[:2]).allowed
            limiter.check("app", "neighbour")
            report = limiter.sync()
            assert (None, index + 1) == (report.error, hits_of(documents, Key("app", "neighbour")))
        assert (3, 1) == (report.in_flight_hits, report.quarantined_count)
        limiter.check(*VICTIM[:2])
        limiter.sync()
    assert BSON.encode(damaged) == BSON.encode(documents.find_one({"_id": document_id(VICTIM)}) or {})
    logged = [entry for entry in logs if entry["event"] == "document_malformed"]
    field = "size" if damage is KINDS["too large"] else next(iter(damage)).split(".")[0]
    assert [("app", "victim", field)] == [(each["client_id"], each["username"], each["field"]) for each in logged]

    if is_removed:
        documents.delete_one({"_id": document_id(VICTIM)})
    else:
        documents.replace_one({"_id": document_id(VICTIM)}, a_document(version=Int64(900), requestCounters=VALID))
    for _ in range(3):
        assert limiter.sync().error is None

    assert (4 if is_removed else 5) == hits_of(documents, VICTIM)
    assert 0 == in_flight_hits(limiter, VICTIM)


SWALLOWING = {"count negative", "count not a number"}  # the server adds to them


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SWALLOWING])
def test_damage_to_a_known_document_loses_no_hit(documents: Documents, limiter: Limiter, kind: str) -> None:
    """The instance has read it before, and learns of the damage from its next write or later."""
    limiter.check(*VICTIM[:2])
    limiter.sync()
    valid = damage_victim(documents, KINDS[kind])
    for _ in range(3):
        limiter.check(*VICTIM[:2])
        assert limiter.sync().error is None
    if in_flight_hits(limiter, VICTIM):  # else the damage is elsewhere, and not seen yet
        documents.replace_one({"_id": document_id(VICTIM)}, valid)
        for _ in range(3):
            assert limiter.sync().error is None

    found = documents.find_one({"_id": document_id(VICTIM)})
    assert found is not None
    assert 4 == found["requestCounters"]["6"][FRAME]


@pytest.mark.parametrize("damage", [{"writers": []}, {"version": "x"}], ids=["mark lost", "version lost"])
def test_outcome_of_a_write_stays_unknown_while_the_document_is_damaged(
    mongo_uri: str, documents: Documents, clock: Clock, damage: dict[str, Any]
) -> None:
    """The write was applied, and the repaired document shows it."""
    store = FaultyStore(mongo_store(mongo_uri))
    with closing(sharing(mongo_uri, clock, store)) as limiter, capture_logs():
        for fault in (None, Fault.LOST_REPLY):
            store.faults.append(fault)
            limiter.check(*VICTIM[:2])
            limiter.sync()
        valid = damage_victim(documents, {"writers": [], **damage})
        for _ in range(2):
            limiter.check(*VICTIM[:2])
            limiter.sync()
        documents.replace_one({"_id": document_id(VICTIM)}, valid)
        for _ in range(3):
            limiter.sync()

    assert 4 == hits_of(documents, VICTIM)


def test_damaged_document_is_read_once_in_a_cycle(mongo_uri: str, documents: Documents, clock: Clock) -> None:
    """However long its hits wait, with requests and without."""
    documents.insert_one(a_document(version="x"))
    store = FaultyStore(mongo_store(mongo_uri))
    with closing(sharing(mongo_uri, clock, store)) as limiter, capture_logs():
        limiter.check(*VICTIM[:2])
        limiter.sync()
        for is_asked in (True, False, False):
            if is_asked:
                limiter.check(*VICTIM[:2])
            store.calls.clear()
            clock.advance(1)
            limiter.sync()
            assert [("read", 1)] == store.calls


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
    documents.insert_one(
        a_document(_id=document_id(Key("app", "dated")), expire=DatetimeMS(2**60), writers=DatetimeMS(2**60))
    )
    text = encode(a_document(writers={"somebody": "XXXX"}))
    documents.insert_one(RawBSONDocument(text.replace(b"XXXX", b"\xff\xfeX\xc3")))
    for username in ("victim", "dated", "good"):
        limiter.check("app", username)

    assert limiter.sync().error is None
    assert 3 == limiter.preload()
    assert (1, 1) == (used_hits(limiter, "app", "victim"), in_flight_hits(limiter, VICTIM))


def test_hits_of_the_far_future_and_past_deny_nobody(documents: Documents, limiter: Limiter) -> None:
    documents.insert_one(a_document(requestCounters={"6": {"999999999999": 2**50, "0": 2**50}}))
    limiter.check(*VICTIM[:2])

    assert limiter.sync().error is None
    assert LIMIT - 1 == limiter.peek(*VICTIM[:2]).remaining


@pytest.mark.parametrize("count", [HUGE, Int64(2**62)], ids=["at the end", "huge"])
def test_huge_count_denies_its_own_key_until_its_frame_has_left(
    documents: Documents, limiter: Limiter, clock: Clock, count: Int64
) -> None:
    """For a window, as any count above the limit does. The server cannot add to the largest one."""
    documents.insert_one(a_document(requestCounters={"6": {FRAME: count}}))
    limiter.check(*VICTIM[:2])
    limiter.check("app", "neighbour")
    with capture_logs():
        assert limiter.sync().error is None
    denial = limiter.check(*VICTIM[:2])

    assert 1 == hits_of(documents, Key("app", "neighbour"))
    assert not denial.allowed
    assert 0 < denial.retry_after_s <= 66
    clock.advance(denial.retry_after_s)
    assert limiter.check(*VICTIM[:2]).allowed
