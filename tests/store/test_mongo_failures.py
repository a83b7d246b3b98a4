"""The store in MongoDB when the server is unreachable, hangs or refuses."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.collection import Collection
from structlog.testing import capture_logs

from oauth_ratelimit import StoreUnavailable
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.support.faults import FaultyProxy
from tests.support.helpers import wait_until, with_database
from tests.support.limiters import KEY
from tests.support.mongod import Mongod
from tests.support.stores import a_change, mongo_store

Documents = Collection[dict[str, Any]]


class Failures:
    """Makes the server fail."""

    def __init__(self, client: "MongoClient[dict[str, Any]]") -> None:
        self._client = client

    def fail_updates(self, *, times: int, **how: Any) -> None:
        """Have the next updates fail."""
        self._client.admin.command(
            {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": {"failCommands": ["update"], **how}}
        )


@pytest.fixture
def store(mongo_uri: str) -> Iterator[MongoStore]:
    """A store."""
    with closing(mongo_store(mongo_uri)) as opened:
        yield opened


@pytest.fixture
def failing(mongod: Mongod) -> Iterator[tuple[MongoStore, Failures]]:
    """A store, and a hand on the server's fail points."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with closing(mongo_store(with_database(mongod.uri, name))) as opened, mongod.client() as client:
        yield opened, Failures(client)
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        client.drop_database(name)


def test_hanging_connection_ends_a_call_in_time(mongod: Mongod) -> None:
    """The store works again when the connection does."""
    with FaultyProxy("127.0.0.1", mongod.port) as proxy, closing(mongo_store(proxy.uri, timeout_s=0.5)) as hanging:
        wait_until(lambda: is_answering(hanging), "the connection")
        proxy.swallow(True)
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            hanging.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        assert time.monotonic() - began_s < 10  # the driver would wait for ever
        proxy.swallow(False)
        wait_until(lambda: is_answering(hanging), "the connection's return")


def is_answering(store: MongoStore) -> bool:
    """Return whether a store can be read."""
    try:
        store.read([KEY])
    except StoreUnavailable:
        return False
    return True


def test_write_without_a_majority_has_an_unknown_outcome(failing: tuple[MongoStore, Failures]) -> None:
    """It may be lost again with the server that has it."""
    store, failures = failing
    failures.fail_updates(times=1, writeConcernError={"code": 64, "errmsg": "waiting for replication timed out"})
    with pytest.raises(StoreUnavailable, match="majority"):
        store.compare_and_set("here", [a_change(KEY, version=None, next_version=7)])
    assert 7 == store.read([KEY])[KEY].version


@pytest.mark.parametrize("code", (91, 189, 11602, 50, 8000), ids=str)
def test_error_of_the_server_is_an_unknown_outcome(failing: tuple[MongoStore, Failures], code: int) -> None:
    """No error of the driver gets out."""
    store, failures = failing
    failures.fail_updates(times=2, errorCode=code)  # the driver tries some again
    with pytest.raises(StoreUnavailable):
        store.compare_and_set("here", [a_change(KEY, version=None, next_version=7)])


def test_rejected_change_stops_no_other(store: MongoStore, documents: Documents) -> None:
    """It is told apart from a lost race."""
    documents.insert_one({"_id": {"clientId": "bad", "username": None}, "version": Int64(5), "requestCounters": "text"})
    changes = [
        a_change(Key("moved on", None), version=1, next_version=2),
        a_change(Key("bad", None), version=5, next_version=6),
        a_change(Key("good", None), version=None, next_version=1),
    ]
    result = store.compare_and_set("here", changes)
    assert ([0], [1]) == (list(result.lost), list(result.rejected))
    assert "requestCounters" in result.rejected[1]
    assert 1 == store.read([Key("good", None)])[Key("good", None)].version


def test_index_with_other_options_is_logged_once(mongo_uri: str, documents: Documents) -> None:
    documents.create_index("expire", name="expire")
    with capture_logs() as events, closing(mongo_store(mongo_uri)) as opened:
        opened.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        opened.read([KEY])
    assert ["expiry_index_missing"] == [event["event"] for event in events]
    assert 1 == documents.count_documents({})
