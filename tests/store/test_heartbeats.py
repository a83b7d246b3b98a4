"""Heartbeats in a real MongoDB."""

from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.heartbeats import (
    CONFIGURATIONS_ID,
    EVENTS_ID,
    FORGOTTEN_AFTER_S,
    MAX_CONFIGURATIONS,
    MAX_EVENTS,
    MAX_HISTORY_BYTES,
    REVOCATION,
    Heartbeat,
    HeartbeatStore,
    InstanceEvent,
)

NOW_S = 4_000_000_000.0
NOW = datetime.fromtimestamp(NOW_S, UTC)
STRANGE: dict[str, Any] = {"_id": {"instance": "strange"}}


@pytest.fixture
def store(connection: Connection) -> HeartbeatStore:
    return HeartbeatStore(connection)


def a_heartbeat(instance: str, beat_at_s: float = NOW_S) -> Heartbeat:
    """Return a heartbeat with a number of its own in every field."""
    return Heartbeat(instance, beat_at_s, NOW_S - 9, "1.2", "enforce", 1.5, 2.5, 3, 4, 5, 6, -7.5, 8, "f00d", NOW_S - 3)


def test_heartbeats_are_read_by_instance_as_they_were_put(store: HeartbeatStore, connection: Connection) -> None:
    """Each replaces the former one of its instance. Other documents of the collection are none."""
    connection.collection(STATISTICS).insert_one({"_id": {REVOCATION: "app"}, "expire": NOW})
    for heartbeat in (a_heartbeat("b"), a_heartbeat("a", NOW_S - 1), a_heartbeat("a")):
        store.put(heartbeat)

    with capture_logs() as logs:
        assert [a_heartbeat("a"), a_heartbeat("b")] == store.read(NOW_S)
    assert [] == logs


def test_instance_is_forgotten_when_it_is_removed_or_silent(store: HeartbeatStore) -> None:
    """One that died is seen for ten minutes."""
    for instance in ("ends", "dies"):
        store.put(a_heartbeat(instance))
    store.remove("ends")

    assert ["dies"] == [heartbeat.instance for heartbeat in store.read(NOW_S + FORGOTTEN_AFTER_S)]
    assert [] == store.read(NOW_S + FORGOTTEN_AFTER_S + 1)


@pytest.mark.parametrize(
    "document",
    [
        STRANGE,
        {**STRANGE, "started_at_s": 1, "beat_at_s": 1, "version": "1", "mode": "off", "interval_s": "soon"},
        {**STRANGE, "started_at_s": 1, "beat_at_s": 1, "version": {"a": 1}, "mode": [], "interval_s": {"a": 1}},
    ],
    ids=["nothing else", "numbers in words", "mappings for numbers"],
)
def test_damaged_heartbeat_is_logged_and_ignored(
    store: HeartbeatStore, connection: Connection, document: dict[str, Any]
) -> None:
    connection.collection(STATISTICS).insert_one({**document, "expire": NOW})
    store.put(a_heartbeat("valid"))
    with capture_logs() as logs:
        assert [a_heartbeat("valid")] == store.read(NOW_S)

    assert [("heartbeat_ignored", repr(document["_id"]))] == [(entry["event"], entry["id"]) for entry in logs]


@pytest.mark.parametrize("identity", [EVENTS_ID, CONFIGURATIONS_ID, {"instance": "strange"}], ids=repr)
def test_huge_document_is_not_read(store: HeartbeatStore, connection: Connection, identity: dict[str, Any]) -> None:
    """Nobody waits for megabytes, and the other records are there."""
    connection.collection(STATISTICS).insert_one({"_id": identity, "expire": NOW, "entries": ["x" * MAX_HISTORY_BYTES]})
    store.put(a_heartbeat("valid"))
    with capture_logs() as logs:
        assert [a_heartbeat("valid")] == store.read(NOW_S)
        assert ([], []) == (store.events(), store.configurations())
        assert store.note_configuration("a", {"mode": "off"}, at_s=NOW_S)
    assert [] == logs


def test_configuration_is_noted_once_with_what_changed(store: HeartbeatStore) -> None:
    """Many instances report it, and each again when it starts."""
    old = {"mode": "dry-run", "limits.user[user]": "5/minute"}
    new = {"mode": "enforce", "limits.user[user]": "5/minute"}
    for at_s, (instance, values) in enumerate([("a", old), ("b", old), ("a", new), ("b", new), ("a", new)]):
        assert store.note_configuration(instance, values, at_s=NOW_S + at_s)

    first, second = store.configurations()
    assert ("a", NOW_S, ()) == (first.instance, first.at_s, first.changes)
    assert ("a", NOW_S + 2, ("mode: dry-run -> enforce",)) == (second.instance, second.at_s, second.changes)
    assert first.fingerprint != second.fingerprint


def test_history_is_bounded_and_expires(store: HeartbeatStore, connection: Connection) -> None:
    large = {f"clients.{number}": "x" * 300 for number in range(400)}
    for number in range(MAX_CONFIGURATIONS + 2):
        store.note_configuration("a", large if number % 2 else {"mode": str(number)}, at_s=NOW_S + number)
    for number in range(MAX_EVENTS + 2):
        store.note_event(InstanceEvent(f"node-{number}", NOW_S, "started", "1.0"))

    assert MAX_CONFIGURATIONS == len(store.configurations())
    assert (20, 200) == (len(store.configurations()[-1].changes), max(map(len, store.configurations()[-1].changes)))
    assert InstanceEvent("node-2", NOW_S, "started", "1.0") == store.events()[0]
    assert {True} == {"expire" in found for found in connection.collection(STATISTICS).find()}


def test_damaged_history_is_read_as_far_as_it_is_valid(store: HeartbeatStore, connection: Connection) -> None:
    event = {"instance": "a", "at_s": NOW_S, "kind": "ended", "version": "1"}
    connection.collection(STATISTICS).insert_many(
        [
            {
                "_id": {"history": "instances"},
                "entries": [5, {"at_s": NOW_S}, {**event, "at_s": "x"}, {**event, "kind": {}}, event],
            },
            {"_id": {"history": "configurations"}, "values": [3, ["a"], [1, 2]], "entries": [None], "fingerprint": 4},
        ]
    )
    store.note_configuration("a", {"mode": "off"}, at_s=NOW_S)

    assert [InstanceEvent("a", NOW_S, "ended", "1")] == store.events()
    assert [("a", ())] == [(change.instance, change.changes) for change in store.configurations()]


def test_more_heartbeats_than_are_read_are_logged(store: HeartbeatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.store.mongo.heartbeats.MAX_INSTANCES", 2)
    with capture_logs() as logs:
        for number in range(3):
            store.put(a_heartbeat(f"node-{number}"))
            assert min(number + 1, 2) == len(store.read(NOW_S))
    assert ["there are more than 2"] == [entry["reason"] for entry in logs]
