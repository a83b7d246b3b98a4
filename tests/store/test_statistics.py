"""Statistics in a real MongoDB: written by many, exactly once, and read again with distrust."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Code
from bson.int64 import Int64

from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Peak, Share, Source, Tally, UserLoad
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.erasure import Erasure, Person
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.store.mongo.migrations import Migrations
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.store.test_mongo_counters import Commands, commands

__all__ = ["commands"]

MINUTE_S = 2_000_000_040
BATCH, PASSWORD = Source("client", "client_credentials"), Source("user", "password")
KEEP_S = 30 * 86_400.0


@pytest.fixture
def statistics(connection: Connection) -> StatisticsStore:
    """No statistics yet."""
    return StatisticsStore(connection)


def a_minute(client_id: str = "shop", minute_s: int = MINUTE_S, **more: Any) -> ClientMinute:
    """Return a minute with three requests, if nothing else is said."""
    return ClientMinute(client_id, minute_s, **{"tallies": {BATCH: Tally(allowed=2, denied=1)}, **more})


def everything(statistics: StatisticsStore) -> list[ClientMinute]:
    """Return all minutes."""
    return list(statistics.minutes(0, 4e9))


def put(statistics: StatisticsStore, *minutes: ClientMinute, writer: str = "one-0", is_complete: bool = True) -> None:
    """Write minutes."""
    assert [] == statistics.put(writer, [Share(minute, is_complete) for minute in minutes], keep_s=KEEP_S)


def test_minute_is_read_as_it_was_written(statistics: StatisticsStore) -> None:
    names = ["a.b", "$set", "a$b", " ", "100%", "%2E", "nul\0nul", "é\U0001f511", "x" * 200]
    for name in names:
        minute = a_minute(
            name.replace("\0", ""),
            tallies={Source("client", name): Tally(1, 2, 3, 4, 2), Source("user", name): Tally(5)},
            peaks={name: Peak(0.5, 5.0, 10, 60)},
            users=(UserLoad(name, 3, 1, 1), UserLoad("", 1)),
            registers={0: 1, 17: 5, 255: 57},
            burst=7,
        )
        put(statistics, minute)

        assert [minute] == list(statistics.minutes(0, 4e9, minute.client_id))
    assert len(names) == len(everything(statistics))


def test_repeated_and_late_writes_give_the_sum_of_the_last_numbers(statistics: StatisticsStore) -> None:
    early = a_minute(tallies={BATCH: Tally(1)}, peaks={"client": Peak(0.2, 2.0, 10, 60)}, burst=1)
    late = a_minute(
        tallies={BATCH: Tally(4, 3), PASSWORD: Tally(2)},
        peaks={"client": Peak(0.7, 7.0, 10, 60)},
        users=(UserLoad("alice", 2, 0, 1),),
        registers={3: 4, 5: 1},
        burst=3,
    )
    other = a_minute(
        tallies={BATCH: Tally(10)},
        peaks={"client": Peak(0.4, 4.0, 10, 60)},
        users=(UserLoad("alice", 5, 1, 0),),
        registers={3: 2, 9: 1},
        burst=5,
    )
    writes = [("one-0", early), ("one-0", late), ("two-0", other), ("one-0", late)]
    for number, order in enumerate(itertools.permutations(writes)):
        for writer, minute in order:
            put(statistics, replace(minute, client_id=f"client-{number}"), writer=writer)

    (expected,) = {
        repr((minute.tallies, minute.peaks, minute.users, sorted(minute.registers.items()), minute.burst))
        for minute in map(with_sorted_tallies, everything(statistics))
    }
    assert expected == repr(
        (
            {BATCH: Tally(14, 3), PASSWORD: Tally(2)},
            {"client": Peak(0.7, 7.0, 10, 60)},
            (UserLoad("alice", 7, 1, 1),),
            [(3, 4), (5, 1), (9, 1)],
            5,
        )
    )


def with_sorted_tallies(minute: ClientMinute) -> ClientMinute:
    return replace(minute, tallies=dict(sorted(minute.tallies.items())))


def test_users_are_written_when_the_minute_is_over(statistics: StatisticsStore) -> None:
    """Those that led for a moment leave nothing behind."""
    minute = a_minute(users=(UserLoad("alice", 3),), registers={1: 1})
    put(statistics, minute, is_complete=False)

    assert [replace(minute, users=(), registers={})] == everything(statistics)


def test_minute_is_the_sum_over_all_processes(statistics: StatisticsStore) -> None:
    for number in range(30):
        put(statistics, a_minute(), writer=f"writer_{number}-0")

    assert [Tally(allowed=60, denied=30)] == [minute.tally() for minute in everything(statistics)]


def test_period_has_the_minutes_that_begin_in_it(statistics: StatisticsStore) -> None:
    """In order, of all clients or of one."""
    for offset in (2, 0, 1, 3):
        put(statistics, a_minute("a", MINUTE_S + 60 * offset), a_minute("ab", MINUTE_S + 60 * offset))

    found = statistics.minutes(MINUTE_S + 1, MINUTE_S + 180)
    assert [("a", 60), ("ab", 60), ("a", 120), ("ab", 120)] == sorted(
        ((minute.client_id, minute.minute_s - MINUTE_S) for minute in found), key=lambda pair: (pair[1], pair[0])
    )
    found = statistics.minutes(MINUTE_S + 60, MINUTE_S + 180.5, "a")
    assert [("a", 60), ("a", 120), ("a", 180)] == [(minute.client_id, minute.minute_s - MINUTE_S) for minute in found]
    assert [] == list(statistics.minutes(MINUTE_S + 1, MINUTE_S + 59))


def test_only_the_requested_fields_are_read(statistics: StatisticsStore) -> None:
    put(statistics, a_minute(users=(UserLoad("alice", 3),), registers={1: 1}, peaks={"client": Peak(1.0, 1.0, 1, 1)}))

    assert [a_minute()] == list(statistics.minutes(0, 4e9, parts=("by",)))


def test_other_documents_in_the_collection_are_no_minutes(connection: Connection, statistics: StatisticsStore) -> None:
    HeartbeatStore(connection).put(Heartbeat("one", 1.0, 1.0, "1", "enforce", 1.0))
    collection = connection.collection(STATISTICS)
    collection.insert_many(
        [{"_id": "text"}, {"_id": {"minute": MINUTE_S}}, {"_id": {"minute": MINUTE_S, "clientId": 5}}]
    )
    put(statistics, a_minute(OTHER_CLIENTS))

    assert [a_minute(OTHER_CLIENTS)] == everything(statistics)


def test_documents_of_the_former_digest_are_ignored(connection: Connection, statistics: StatisticsStore) -> None:
    """A document that an earlier version kept about a sent digest is read by nobody until it expires."""
    put(statistics, a_minute())
    blank = {"holder": None, "until": datetime.now(UTC), "isDone": True, "after": "", "sent": 1, "refused": 0}
    connection.collection(STATISTICS).insert_one({"_id": {"digest": "2026-11-20"}, **blank, "failures": 0})

    assert [a_minute()] == everything(statistics)
    assert {"shop"} == statistics.clients(0.0, at_most=10)
    assert [] == HeartbeatStore(connection).read(0.0)
    assert None is DenialStore(connection).find(0xFFFF)
    person = Person(names=("alice", "2026-11-20"), failed_auth_names=("alice",), mentions=("alice",))
    erasure = Erasure(connection, collection="ratelimits", person=person)
    assert {0} == {remove(True) for remove in erasure.parts.values()}
    assert 2 == connection.collection(STATISTICS).count_documents({})


def test_minute_expires(connection: Connection, statistics: StatisticsStore) -> None:
    """The indexes are created with the first write."""
    put(statistics, a_minute())

    collection = connection.collection(STATISTICS)
    document = collection.find_one() or {}
    assert datetime.fromtimestamp(MINUTE_S + KEEP_S, UTC) == document["expire"]
    assert {"_id_", "expire", "minute"} == set(collection.index_information())


def test_migrations_create_the_same_indexes_as_an_instance(connection: Connection, statistics: StatisticsStore) -> None:
    put(statistics, a_minute())
    indexes = connection.collection(STATISTICS).index_information()
    migrations = Migrations(connection, collection="ratelimits")
    assert "0002_minutes" in migrations.upgrade()
    assert indexes == connection.collection(STATISTICS).index_information()


def test_reading_a_period_uses_an_index(connection: Connection, statistics: StatisticsStore) -> None:
    put(statistics, *(a_minute(f"client-{number}", MINUTE_S + 60 * number) for number in range(200)))
    collection = connection.collection(STATISTICS)
    selected = {"_id.minute": {"$gte": MINUTE_S, "$lt": MINUTE_S + 600}}

    stats = collection.find(selected).sort("_id.minute").explain()["executionStats"]
    assert (10, 10) == (stats["nReturned"], stats["totalDocsExamined"])


DAMAGED: list[dict[str, Any]] = [
    {"by": "text"},
    {"by": {"one-0": 5, "two-0": {"client": []}, "three-0": {"client": {"password": 7}, "strangers": {}}}},
    {"by": {"one-0": {"client": {"client_credentials": {"allowed": -5, "denied": "many", "trusted": True}}}}},
    {"by": {"one-0": {"client": {"client_credentials": {"allowed": float("nan"), "denied": 1e300}}}}},
    {"peaks": {"client": [1, 2], "user": ["a", 1, 1, 1], "x": None}, "burst": "much"},
    {"peaks": {"client": [float("inf"), 1, float("nan"), 1]}},
    {"users": {"one-0": {"aa": ["alice"], "bb": [1, 2, 3, 4], "cc": None, "dd": [1, 2, 3, Code("x")]}}},
    {"registers": {"256": 1, "-1": 1, "a": 1, "7": 58, "8": 0, "9": "x", "²": 1}},
]


@pytest.mark.parametrize("damage", DAMAGED, ids=[str(number) for number in range(len(DAMAGED))])
def test_damaged_field_counts_as_missing(
    connection: Connection, statistics: StatisticsStore, damage: dict[str, Any]
) -> None:
    identity = {"clientId": "shop", "minute": Int64(MINUTE_S)}
    connection.collection(STATISTICS).insert_one({"_id": identity, **damage})
    put(statistics, a_minute("other"))

    damaged, whole = sorted(everything(statistics), key=lambda minute: minute.client_id != "shop")
    assert 0 == damaged.tally().offered
    assert ({}, (), {}, 0) == (damaged.peaks, damaged.users, damaged.registers, damaged.burst)
    assert a_minute("other") == whole


@pytest.mark.parametrize("client_id", [Code("x"), {"a": 1}, None], ids=repr)
def test_minute_of_a_client_without_a_name_is_left_out(
    connection: Connection, statistics: StatisticsStore, client_id: object
) -> None:
    connection.collection(STATISTICS).insert_one({"_id": {"clientId": client_id, "minute": Int64(MINUTE_S)}})
    put(statistics, a_minute("other"))

    assert [a_minute("other")] == everything(statistics)
    assert {"other"} == statistics.clients(0, at_most=10)


def test_positions_of_rejected_shares_are_returned(connection: Connection, statistics: StatisticsStore) -> None:
    """The others of the bulk are written."""
    connection.collection(STATISTICS).insert_one({"_id": {"clientId": "shop", "minute": MINUTE_S}, "by": "text"})
    shares = [Share(a_minute(client_id), is_complete=True) for client_id in ("a", "shop", "b")]

    assert [1] == statistics.put("one-0", shares, keep_s=KEEP_S)
    assert {"a": 3, "b": 3, "shop": 0} == {
        minute.client_id: minute.tally().offered for minute in everything(statistics)
    }


def test_write_of_500_clients_is_one_command(statistics: StatisticsStore, commands: Commands) -> None:
    for _ in range(2):
        put(statistics, *(a_minute(f"client-{number}") for number in range(500)))

    assert ["createIndexes", "createIndexes", "update", "update"] == commands.names()
