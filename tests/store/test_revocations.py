"""Notices of revocations between instances."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.store.mongo import heartbeats
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, Document, server_time
from oauth_ratelimit.store.mongo.heartbeats import RevocationNotices

HELD = [OTHER_CLIENTS, "a", "b"]


def announce(notices: RevocationNotices, *client_ids: str) -> dict[str, str]:
    return notices.announce(dict.fromkeys(client_ids, 0.0))


@pytest.fixture
def here(connection: Connection) -> RevocationNotices:
    return RevocationNotices(connection)


@pytest.fixture
def there(connection: Connection) -> RevocationNotices:
    return RevocationNotices(connection)


def test_each_instance_reads_a_notice_of_another_once(here: RevocationNotices, there: RevocationNotices) -> None:
    assert {} == announce(here, "a", "b")
    assert {} == here.read(HELD)
    assert {"a", "b"} == there.read(HELD).keys()
    assert {} == there.read(HELD)
    announce(here, "b")
    assert {"b"} == there.read(HELD).keys()
    assert {} == here.read(HELD)
    announce(here, OTHER_CLIENTS)
    assert {OTHER_CLIENTS} == there.read(HELD).keys()


def test_notices_of_any_number_of_others_concern_nobody(
    here: RevocationNotices, there: RevocationNotices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BATCH_SIZE", 7)
    names = [f"client-{number}" for number in range(20)]
    announce(here, *names, "a")
    assert {"a"} == there.read(HELD).keys()
    assert set(names) == there.read(names).keys()


def test_age_of_a_revocation_is_that_of_the_revocation(here: RevocationNotices, there: RevocationNotices) -> None:
    here.announce({"a": 70.0, "b": 0.0})
    ages_s = there.read(HELD)
    assert 70.0 == pytest.approx(ages_s["a"] - ages_s["b"], abs=1.0)


PLANTED: dict[str, Callable[[Any], Document]] = {
    "future": lambda now: {"stamp": ObjectId(), "at": now + timedelta(days=1)},
    "past": lambda now: {"stamp": ObjectId(), "at": now - timedelta(days=1)},
    "9 kB": lambda now: {"stamp": ObjectId(), "at": now, "more": "x" * 9000},
    "16 MB": lambda now: {"stamp": "x" * 16_000_000, "at": now},
    "text": lambda _: {"stamp": {"$gt": ""}, "at": "now", "expire": "never"},
    "lists": lambda now: {"stamp": [1], "at": [now - timedelta(days=1), now + timedelta(days=1)]},
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_planted_notice_hides_no_later_one(
    connection: Connection, here: RevocationNotices, there: RevocationNotices, planted: Callable[[Any], Document]
) -> None:
    """Nor do notices of others, which come before or after it in any order."""
    now = server_time(connection.database)
    documents = connection.collection(STATISTICS)
    documents.insert_one({"_id": {"revocation": "a"}, **planted(now)})
    documents.insert_many(
        {"_id": {"revocation": f"{prefix}{number}"}, "at": now + timedelta(seconds=59)}
        for number in range(1000)
        for prefix in ("A", "ffff")
    )
    assert there.read(HELD).keys() <= {"a"}
    assert {} == announce(here, "a", "b")
    assert {"a", "b"} == there.read(HELD).keys()
    found = documents.find_one({"_id": {"revocation": "a"}})
    assert found is not None
    assert {"_id", "stamp", "replaced", "at", "expire"} == found.keys()
    assert timedelta(hours=2) == found["expire"] - found["at"]


def test_notice_that_cannot_be_written_stops_no_other(
    connection: Connection, here: RevocationNotices, there: RevocationNotices
) -> None:
    """The writer is told which one it is."""
    name = connection.collection(STATISTICS).name
    refused = {"_id": {"$ne": {"revocation": "a"}}}
    connection.database.create_collection(name, validator=refused)
    assert {"a": "error (121)"} == announce(here, "a", "b")
    assert {"b"} == there.read(HELD).keys()
