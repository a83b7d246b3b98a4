"""Statistics in a real MongoDB: written by many, exactly once, and read again with distrust."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Code
from bson.int64 import Int64

from oauth_ratelimit.core.statistics import OTHER_CLIENTS, OVER, ClientMinute, Denials, Peak, Source, Tally, UserLoad
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.store.test_mongo_counters import Commands, commands

__all__ = ["commands"]

MINUTE_S = 2_000_000_040
BATCH, PASSWORD = Source("client", "client_credentials"), Source("user", "password")
KEEP_S = 30 * 86_400.0


@pytest.fixture
def statistics(connection: Connection) -> StatisticsStore:
    return StatisticsStore(connection)


def a_minute(client_id: str = "shop", minute_s: int = MINUTE_S, **more: Any) -> ClientMinute:
    """Return a minute with three requests, if nothing else is said."""
    return ClientMinute(client_id, minute_s, **{"tallies": {BATCH: Tally(allowed=2, denied=1)}, **more})


def everything(statistics: StatisticsStore) -> list[ClientMinute]:
    return list(statistics.minutes(0, 4e9))


def put(statistics: StatisticsStore, *minutes: ClientMinute, writer: str = "one-0") -> None:
    assert [] == statistics.put(writer, minutes, keep_s=KEEP_S)


def test_minute_is_read_as_it_was_written(statistics: StatisticsStore) -> None:
    names = ["a.b", "$set", "a$b", " ", "100%", "%2E", "nul\0nul", "é\U0001f511", "x" * 200]
    for name in names:
        minute = a_minute(
            name.replace("\0", ""),
            tallies={Source("client", name): Tally(1, 2, 3, 4, 2), Source("user", name): Tally(5)},
            peaks={name: Peak(0.5, 5.0, 10, 60)},
            users=(UserLoad(name, 3, 1, 1), UserLoad("", 1)),
            registers={0: 1, 17: 5, 255: 57},
            seconds=(7, *[0] * 58, 9),
            denials={(name, name, over): Denials(3, MINUTE_S + 2, MINUTE_S + 9, 10, 60) for over in OVER},
        )
        put(statistics, minute)

        assert [minute] == list(statistics.minutes(0, 4e9, minute.client_id))
    assert len(names) == len(everything(statistics))


def a_share(tallies: Any, used: float, user: Any, registers: Any, seconds: Any, denials: Any) -> ClientMinute:
    """Return the numbers of one instance, with the highest use of a limit of ten."""
    return a_minute(
        tallies=tallies,
        peaks={"client": Peak(used / 10, used, 10, 60)},
        users=(UserLoad("alice", *user),),
        registers=registers,
        seconds=seconds,
        denials={("client", "client_credentials", "denied"): Denials(*denials, 10, 60)},
    )


def test_repeated_and_late_writes_give_the_sum_of_the_last_numbers(statistics: StatisticsStore) -> None:
    early = a_minute(tallies={BATCH: Tally(1)}, peaks={"client": Peak(0.2, 2.0, 10, 60)}, seconds=(255, *[0] * 59))
    late = a_share(
        {BATCH: Tally(4, 3), PASSWORD: Tally(2)},
        7.0,
        (2, 0, 1),
        {3: 4, 5: 1},
        (256, *[2] * 59),
        (3, MINUTE_S + 20, MINUTE_S + 30),
    )
    other = a_share({BATCH: Tally(10)}, 4.0, (5, 1, 0), {3: 2, 9: 1}, (1, *[2] * 59), (2, MINUTE_S + 10, MINUTE_S + 25))
    writes = [("one-0", early), ("one-0", late), ("two-0", other), ("one-0", late)]
    for number, order in enumerate(itertools.permutations(writes)):
        for writer, minute in order:
            put(statistics, replace(minute, client_id=f"client-{number}"), writer=writer)

    summed = (5, MINUTE_S + 10, MINUTE_S + 30)
    expected = a_share(
        {BATCH: Tally(14, 3), PASSWORD: Tally(2)}, 7.0, (7, 1, 1), {3: 4, 5: 1, 9: 1}, (257, *[4] * 59), summed
    )
    for minute in everything(statistics):
        assert expected == replace(minute, client_id="shop")


def test_period_has_the_minutes_that_begin_in_it(statistics: StatisticsStore) -> None:
    for offset in (2, 0, 1, 3):
        put(statistics, a_minute("a", MINUTE_S + 60 * offset), a_minute("ab", MINUTE_S + 60 * offset))

    found = statistics.minutes(MINUTE_S + 1, MINUTE_S + 180)
    assert [("a", 60), ("ab", 60), ("a", 120), ("ab", 120)] == sorted(
        ((minute.client_id, minute.minute_s - MINUTE_S) for minute in found), key=lambda pair: (pair[1], pair[0])
    )
    found = statistics.minutes(MINUTE_S + 60, MINUTE_S + 180.5, "a")
    assert [("a", 60), ("a", 120), ("a", 180)] == [(minute.client_id, minute.minute_s - MINUTE_S) for minute in found]
    assert [] == list(statistics.minutes(MINUTE_S + 1, MINUTE_S + 59))
    assert {0} == {minute.tally().offered for minute in statistics.minutes(0, 4e9, parts=("seconds",))}


def test_other_documents_in_the_collection_are_no_minutes(connection: Connection, statistics: StatisticsStore) -> None:
    HeartbeatStore(connection).put(Heartbeat("one", 1.0, 1.0, "1", "enforce", 1.0))
    collection = connection.collection(STATISTICS)
    collection.insert_many([{"_id": "text"}, {"_id": {"minute": MINUTE_S}}])
    for number, client_id in enumerate((5, Code("x"), {"a": 1}, None)):
        collection.insert_one({"_id": {"minute": MINUTE_S + number, "clientId": client_id}})
    put(statistics, a_minute(OTHER_CLIENTS))

    assert [a_minute(OTHER_CLIENTS)] == everything(statistics)


def test_minute_expires(connection: Connection, statistics: StatisticsStore) -> None:
    put(statistics, a_minute())

    document = connection.collection(STATISTICS).find_one() or {}
    assert datetime.fromtimestamp(MINUTE_S + KEEP_S, UTC) == document["expire"]


DAMAGED: list[dict[str, Any]] = [
    {"by": "text"},
    {
        "by": {
            "one-0": 5,
            "two-0": {"client": []},
            "three-0": {"client": {"password": 7, "implicit": [0] * 9}, "strangers": {}},
        }
    },
    {"by": {"one-0": {"client": {"client_credentials": [-5, "many", True]}}}},
    {"by": {"one-0": {"client": {"client_credentials": [float("nan"), 1e300]}}}},
    {
        "peaks": {"client": [1, 2], "user": ["a", 1, 1, 1], "x": None},
        "seconds": {"one-0": "much", "two-0": b"\x3c", "three-0": b"\x01" * 121},
    },
    {"peaks": {"client": [float("inf"), 1, float("nan"), 1]}},
    {"users": {"one-0": {"aa": ["alice"], "bb": [1, 2, 3, 4], "cc": None, "dd": [1, 2, 3, Code("x")]}}},
    {
        "denials": {
            "client": {"password": {"denied": {"by": {"a": "x"}, "first": 1}, "would_deny": 3}, "x": 3},
            "user": [],
        }
    },
    {"lifetimes": {"one-0": {"0": 5, "60": 0}}},
    {"registers": {"256": 1, "-1": 1, "a": 1, "7": 58, "8": 0, "9": "x", "²": 1}},
]


@pytest.mark.parametrize("damage", DAMAGED, ids=[str(number) for number in range(len(DAMAGED))])
def test_damage_counts_as_nothing(connection: Connection, statistics: StatisticsStore, damage: dict[str, Any]) -> None:
    """A document of another form is left out."""
    identity = {"clientId": "shop", "minute": Int64(MINUTE_S)}
    connection.collection(STATISTICS).insert_one({"_id": identity, **damage})
    put(statistics, a_minute("other"))

    *damaged, whole = sorted(everything(statistics), key=lambda minute: minute.client_id != "shop")
    assert a_minute("other") == whole
    for minute in damaged:
        assert (0, {}) == (minute.tally().offered, minute.lifetimes)
        assert ({}, (), {}, (), {}) == (minute.peaks, minute.users, minute.registers, minute.seconds, minute.denials)


def test_positions_of_rejected_minutes_are_returned(connection: Connection, statistics: StatisticsStore) -> None:
    connection.collection(STATISTICS).insert_one({"_id": {"clientId": "shop", "minute": MINUTE_S}, "by": "text"})
    minutes = list(map(a_minute, ("a", "shop", "b")))

    assert [1] == statistics.put("one-0", minutes, keep_s=KEEP_S)
    assert {"a": 3, "b": 3} == {minute.client_id: minute.tally().offered for minute in everything(statistics)}


def test_write_of_500_clients_is_one_command(statistics: StatisticsStore, commands: Commands) -> None:
    for _ in range(2):
        put(statistics, *(a_minute(f"client-{number}") for number in range(500)))

    assert ["update", "update"] == [name for name in commands.names() if name != "createIndexes"]
