"""Heartbeats in a real MongoDB."""

from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.heartbeats import FORGOTTEN_AFTER_S, Heartbeat, HeartbeatStore

NOW_S = 4_000_000_000.0
NOW = datetime.fromtimestamp(NOW_S, UTC)


@pytest.fixture
def store(connection: Connection) -> HeartbeatStore:
    """The store of that database."""
    return HeartbeatStore(connection)


def a_heartbeat(instance: str, beat_at_s: float = NOW_S) -> Heartbeat:
    """Return a heartbeat with a number of its own in every field."""
    return Heartbeat(instance, beat_at_s, NOW_S - 9, "1.2", "enforce", 1.5, 2.5, 3, 4, 5, 6, -7.5)


def test_heartbeats_are_read_by_instance_as_they_were_put(store: HeartbeatStore) -> None:
    """Each replaces the former one of its instance."""
    for heartbeat in (a_heartbeat("b"), a_heartbeat("a", NOW_S - 1), a_heartbeat("a")):
        store.put(heartbeat)

    assert [a_heartbeat("a"), a_heartbeat("b")] == store.read(NOW_S)


def test_instance_is_forgotten_when_it_is_removed_or_silent(store: HeartbeatStore) -> None:
    """One that died is seen for ten minutes."""
    for instance in ("ends", "dies"):
        store.put(a_heartbeat(instance))
    store.remove("ends")

    assert ["dies"] == [heartbeat.instance for heartbeat in store.read(NOW_S + FORGOTTEN_AFTER_S)]
    assert [] == store.read(NOW_S + FORGOTTEN_AFTER_S + 1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"started": NOW, "version": "1", "mode": "off", "interval": "soon"},
        {"started": NOW, "version": {"a": 1}, "mode": [], "interval": {"a": 1}},
    ],
    ids=["nothing else", "numbers in words", "mappings for numbers"],
)
def test_damaged_heartbeat_is_logged_and_ignored(
    store: HeartbeatStore, connection: Connection, fields: dict[str, Any]
) -> None:
    connection.collection(STATISTICS).insert_one({"_id": {"instance": "strange"}, "beat": NOW, **fields})
    store.put(a_heartbeat("valid"))
    with capture_logs() as logs:
        assert [a_heartbeat("valid")] == store.read(NOW_S)

    assert [("sign_of_life_ignored", "strange")] == [(entry["event"], entry["instance"]) for entry in logs]


def test_document_of_another_kind_among_the_heartbeats_is_logged_and_ignored(
    store: HeartbeatStore, connection: Connection
) -> None:
    """MongoDB compares mappings by their types first, so a query by the instance finds some without one."""
    connection.collection(STATISTICS).insert_one({"_id": {"kind": "mode"}, "beat": NOW})
    store.put(a_heartbeat("valid"))
    with capture_logs() as logs:
        assert [a_heartbeat("valid")] == store.read(NOW_S)

    assert ["sign_of_life_ignored"] == [entry["event"] for entry in logs]
