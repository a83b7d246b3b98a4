"""Logged denials in MongoDB."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import MAX_UNREPORTED, DenialStore
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore

NOW_S = 2_000_000_000.0
NOW = datetime.fromtimestamp(NOW_S, UTC)
KEEP_S = 3600.0

DENIAL = Denial(
    first_id=0x0123456789ABCDEF,
    at_s=NOW_S,
    client_id="app",
    username="alice",
    scope="grant:refresh_token",
    grant_type="refresh_token",
    policy="user",
    limit=5,
    window_s=60,
    mode="enforce",
    is_canary=True,
    retry_after_s=3.5,
    trace=Trace("4bf92f", "r-1"),
)
RECORD = DenialRecord(DENIAL, instance="node-1:7", last_at_s=NOW_S + 20.0, suppressed_count=40)


@pytest.fixture
def store(connection: Connection) -> DenialStore:
    """The store of that database."""
    return DenialStore(connection)


def bare(first_id: int) -> DenialRecord:
    """Return a record with all that may be missing left out."""
    denial = Denial(first_id, NOW_S, "app", None, None, None, None, None, None, "enforce", False, math.inf, Trace())
    return DenialRecord(denial, instance="node-1", last_at_s=NOW_S, suppressed_count=0)


@pytest.mark.parametrize("record", [RECORD, bare(7)], ids=["all", "least"])
def test_record_is_found_as_it_was_put(store: DenialStore, record: DenialRecord) -> None:
    """With all fields and with the fewest."""
    store.put([record], keep_s=KEEP_S)

    assert record == store.find(record.denial.first_id)


@pytest.mark.parametrize(
    ("offset", "is_found"),
    [
        (-1, False),
        (0, True),
        (1, True),
        (40, True),
        (41, True),
        (40 + MAX_UNREPORTED, True),
        (41 + MAX_UNREPORTED, False),
    ],
)
def test_id_of_a_suppressed_denial_finds_the_record_before_it(store: DenialStore, offset: int, is_found: bool) -> None:
    """Also if its process has not reported it yet."""
    store.put([RECORD, bare(1), bare(2**63 - 1)], keep_s=KEEP_S)

    assert (RECORD if is_found else None) == store.find(DENIAL.first_id + offset)


@pytest.mark.parametrize("number", [0, 2**64 - 1], ids=["lowest", "highest"])
def test_id_beyond_all_records_finds_nothing(store: DenialStore, connection: Connection, number: int) -> None:
    store.put([RECORD], keep_s=KEEP_S)
    HeartbeatStore(connection).put(Heartbeat("node-1", NOW_S, NOW_S, "1", "enforce", 1.0))
    connection.collection("ratelimit_stats").insert_one({"_id": {"clientId": "app", "minute": 0}})

    assert store.find(number) is None


def test_repeated_or_late_write_changes_nothing(store: DenialStore) -> None:
    later = replace(RECORD, last_at_s=NOW_S + 30.0, suppressed_count=50)
    for records in ([RECORD], [later], [later], [RECORD]):
        store.put(records, keep_s=KEEP_S)

    assert later == store.find(DENIAL.first_id)


def test_record_expires(store: DenialStore, mongo_database: Any) -> None:
    """The index is created with the first write."""
    store.put([RECORD], keep_s=KEEP_S)
    collection = mongo_database["ratelimit_stats"]
    [document] = collection.find()
    assert NOW_S + KEEP_S == document["expire"].timestamp()
    assert 0 == collection.index_information()["expire"]["expireAfterSeconds"]


def test_records_are_not_read_as_heartbeats(store: DenialStore, connection: Connection) -> None:
    store.put([RECORD], keep_s=KEEP_S)
    beats = HeartbeatStore(connection)
    beats.put(Heartbeat("node-1", NOW_S, NOW_S, "1", "enforce", 1.0))

    assert ["node-1"] == [beat.instance for beat in beats.read(NOW_S)]


@pytest.mark.parametrize(
    "content", [{}, {"first": NOW, "last": 5, "clientId": {}}, {"first": "x", "suppressed": "many"}], ids=repr
)
def test_damaged_record_is_not_found(store: DenialStore, connection: Connection, content: dict[str, Any]) -> None:
    connection.collection("ratelimit_stats").insert_one({"_id": {"denial": "0" * 16}, **content})

    assert store.find(1) is None
