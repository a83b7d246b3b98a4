"""Counter documents that somebody else has written: each costs the accuracy of its own key at most."""

import math
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import BSON, Code, DatetimeMS, Decimal128, Int64, encode
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo.document import document_id
from tests.store.test_document import a_document as any_document
from tests.support.bson_values import FRAME, bodies
from tests.support.helpers import Clock
from tests.support.stores import mongo_store
from tests.sync.faulty_store import Fault, FaultyStore

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
        made = a_limiter(mongo_uri, clock)
        yield made
        made.close()


def a_limiter(mongo_uri: str, clock: Clock, store: CounterStore | None = None) -> Limiter:
    """Return a limiter of five requests a minute."""
    rates = [{"limit": LIMIT, "window": 60}]
    config = {
        "mode": "enforce",
        "store": {"uri": mongo_uri, "timeout": "5s"},
        "limits": {"client": rates, "user": rates},
    }
    return Limiter(load_config(config), store, clock=clock)


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


HUGE = Int64(2**63 - 1)
NUMBERS: dict[str, Any] = {
    "negative": -5,
    "fractional": 0.5,
    "infinite": math.inf,
    "not a number": math.nan,
    "decimal": Decimal128("5"),
    "too large for a float": 2.0**53,
    "text": "5",
    "true": True,
    "null": None,
    "date": datetime(2026, 1, 1, tzinfo=UTC),
    "mapping": {"5": 5},
    "list": [5],
}
KINDS: dict[str, dict[str, Any]] = {
    **{f"version {name}": {"version": NUMBERS[name]} for name in ("negative", "infinite", "decimal", "text")},
    "version at the end": {"version": HUGE},
    **{f"count {name}": {"requestCounters.6": {FRAME: value}} for name, value in NUMBERS.items()},
    **{f"count of an old frame {name}": {"requestCounters.6.0": NUMBERS[name]} for name in ("negative", "text")},
    "counters text": {"requestCounters": "six"},
    "counters null": {"requestCounters": None},
    "counters a list": {"requestCounters": []},
    "counters a list of mappings": {"requestCounters": [{FRAME: 1}] * 9},
    "series a number": {"requestCounters.6": 5},
    "series a list": {"requestCounters.6": []},
    "another series a list": {"requestCounters.12": []},
    "frame named by text": {"requestCounters.6.now": 5},
    "frame with a sign": {"requestCounters.6.-6": 5},
    "frame with a leading zero": {"requestCounters.6.06": 5},
    "writers text": {"writers": "me"},
    "writers a list": {"writers": []},
    "writer with a list": {"writers.other": []},
    "writer fractional": {"writers.other": 0.5},
    "horizons a list": {"horizons": []},
    "horizon text": {"horizons.6": "long"},
    "horizon infinite": {"horizons.6": math.inf},
    "seen a list": {"seen": []},
    "seen a number": {"seen.other": 5},
    "more frames than are read": {"requestCounters.1": {str(index): 1 for index in range(60_000)}},
    "more writers than are read": {"writers": {f"w{index}": 1 for index in range(50_000)}},
}
VALID = {"6": {FRAME: 1}}


def damage_victim(documents: Documents, damage: dict[str, Any]) -> dict[str, Any]:
    """Damage the victim's document without another version, and return it."""
    documents.update_one({"_id": document_id(VICTIM)}, {"$set": damage})
    found = documents.find_one({"_id": document_id(VICTIM)})
    assert found is not None
    return found


def hits_of(documents: Documents, key: Key) -> int:
    """Return the hits in a document."""
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
    damaged = damage_victim(documents, damage)
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
    assert [("app", "victim", False)] == [(each["client_id"], each["username"], each["is_usable"]) for each in logged]

    if is_removed:
        documents.delete_one({"_id": document_id(VICTIM)})
    else:
        documents.replace_one({"_id": document_id(VICTIM)}, a_document(version=Int64(900), requestCounters=VALID))
    for _ in range(3):
        assert limiter.sync().error is None

    assert (4 if is_removed else 5) == hits_of(documents, VICTIM)
    assert 0 == limiter.counts(*VICTIM[:2]).in_flight_hits


SWALLOWING = {f"count {name}" for name in ("negative", "fractional", "infinite", "not a number", "decimal")} | {
    "count too large for a float",
}
NOTICED = {name: damage for name, damage in KINDS.items() if name not in SWALLOWING}


@pytest.mark.parametrize("damage", NOTICED.values(), ids=NOTICED)
def test_damage_to_a_known_document_loses_no_hit(
    documents: Documents, limiter: Limiter, damage: dict[str, Any]
) -> None:
    """The instance has read it before, and learns of the damage from its next write or later."""
    limiter.check(*VICTIM[:2])
    limiter.sync()
    valid = documents.find_one({"_id": document_id(VICTIM)})
    assert valid is not None
    damage_victim(documents, damage)
    for _ in range(3):
        limiter.check(*VICTIM[:2])
        assert limiter.sync().error is None
    if not limiter.counts(*VICTIM[:2]).in_flight_hits:  # the damage is elsewhere, and not seen yet
        found = documents.find_one({"_id": document_id(VICTIM)})
        assert found is not None
        assert 4 == found["requestCounters"]["6"][FRAME]
        return

    documents.replace_one({"_id": document_id(VICTIM)}, valid)
    for _ in range(3):
        assert limiter.sync().error is None

    assert 4 == hits_of(documents, VICTIM)


@pytest.mark.parametrize("count", [HUGE, Int64(2**62)], ids=["at the end", "huge"])
def test_count_that_the_server_cannot_add_to_stops_its_own_key_alone(
    documents: Documents, limiter: Limiter, count: Int64
) -> None:
    """It denies, as any count above the limit does."""
    documents.insert_one(a_document(requestCounters={"6": {FRAME: count}}))
    limiter.check(*VICTIM[:2])
    limiter.check("app", "neighbour")
    with capture_logs():
        assert limiter.sync().error is None

    assert 1 == hits_of(documents, Key("app", "neighbour"))
    assert not limiter.check(*VICTIM[:2]).allowed


@pytest.mark.parametrize("damage", [{"writers": []}, {"version": "x"}], ids=["mark lost", "version lost"])
def test_outcome_of_a_write_stays_unknown_while_the_document_is_damaged(
    mongo_uri: str, documents: Documents, clock: Clock, damage: dict[str, Any]
) -> None:
    """The write was applied, and the repaired document shows it."""
    store = FaultyStore(mongo_store(mongo_uri))
    with closing(a_limiter(mongo_uri, clock, store)) as limiter, capture_logs():
        for fault in (None, Fault.LOST_REPLY):
            store.faults.append(fault)
            limiter.check(*VICTIM[:2])
            limiter.sync()
        valid = documents.find_one({"_id": document_id(VICTIM)})
        assert valid is not None
        damage_victim(documents, {"writers": [], **damage})
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
    with closing(a_limiter(mongo_uri, clock, store)) as limiter, capture_logs():
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
    documents.insert_one(RawBSONDocument(_with_broken_text(a_document(writers={"somebody": "XXXX"}))))
    for username in ("victim", "dated", "good"):
        limiter.check("app", username)

    assert limiter.sync().error is None
    assert 3 == limiter.preload()
    assert (2, 1) == (limiter.counts("app", "victim").shared_hits, limiter.counts("app", "victim").in_flight_hits)


def _with_broken_text(document: dict[str, Any]) -> bytes:
    return encode(document).replace(b"XXXX", b"\xff\xfeX\xc3")


@pytest.mark.parametrize("name", ["clientId", "username", "scope"])
def test_name_that_is_program_text_leaves_a_batch_readable(documents: Documents, limiter: Limiter, name: str) -> None:
    """The driver returns a kind of text that cannot be the key of a mapping."""
    documents.insert_one(a_document())
    documents.insert_one(a_document(_id={**document_id(VICTIM), name: Code("x")}))

    assert 1 == limiter.preload()


@pytest.mark.no_cover
def test_bloated_document_shrinks_with_each_write(documents: Documents, limiter: Limiter) -> None:
    """Until a size from which on it is in quarantine."""
    marks = {f"writer-{index}": Int64(index) for index in range(4000)}
    old = {str(6 * index): 1 for index in range(20_000)}
    documents.insert_one(a_document(requestCounters={"6": {**old, FRAME: 2}}, writers=marks))
    for _ in range(3):
        limiter.check(*VICTIM[:2])
        assert limiter.sync().error is None

    found = documents.find_one({"_id": document_id(VICTIM)})
    assert found is not None
    assert 5 == found["requestCounters"]["6"][FRAME]
    assert len(found["requestCounters"]["6"]) < 20_000
    assert len(found["writers"]) < 4000


def test_hits_of_the_far_future_and_past_deny_nobody(documents: Documents, limiter: Limiter) -> None:
    documents.insert_one(a_document(requestCounters={"6": {"999999999999": 2**50, "0": 2**50}}))
    limiter.check(*VICTIM[:2])

    assert limiter.sync().error is None
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
