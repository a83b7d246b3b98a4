"""The store in MongoDB when the server is unreachable, hangs or refuses."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.collection import Collection
from structlog.testing import capture_logs

from oauth_ratelimit import StoreUnavailable
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo import indexes
from oauth_ratelimit.store.mongo.counters import MongoStore
from testbed.clock import Clock, wait_until
from testbed.mongod import Mongod
from testbed.replica_set import ReplicaSet
from tests.support.faults import FaultyProxy
from tests.support.helpers import with_database
from tests.support.limiters import CLIENT, KEY, a_limiter
from tests.support.stores import a_change, mongo_store


@pytest.fixture
def store(mongo_uri: str) -> Iterator[MongoStore]:
    with closing(mongo_store(mongo_uri)) as opened:
        yield opened


@pytest.fixture
def failing(mongod: Mongod) -> Iterator[tuple[MongoStore, Callable[..., None]]]:
    """A store, and a function that has the server fail its next updates."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with closing(mongo_store(with_database(mongod.uri, name))) as opened, mongod.client() as client:

        def fail(times: int, **how: Any) -> None:
            data = {"failCommands": ["update"], **how}
            client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data})

        yield opened, fail
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        client.drop_database(name)


def test_hanging_connection_ends_a_call_in_time(mongod: Mongod) -> None:
    with FaultyProxy(mongod.uri) as proxy, closing(mongo_store(proxy.uri, timeout_s=0.5)) as hanging:
        wait_until(lambda: is_answering(hanging), "the connection")
        proxy.swallow(True)
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            hanging.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        assert time.monotonic() - began_s < 10  # the driver would wait for ever
        proxy.swallow(False)
        wait_until(lambda: is_answering(hanging), "the connection's return")


def is_answering(store: MongoStore) -> bool:
    try:
        store.read([KEY])
    except StoreUnavailable:
        return False
    return True


def test_write_without_a_majority_has_an_unknown_outcome(failing: tuple[MongoStore, Callable[..., None]]) -> None:
    """It may be lost again with the server that has it."""
    store, fail = failing
    fail(times=1, writeConcernError={"code": 64, "errmsg": "waiting for replication timed out"})
    with pytest.raises(StoreUnavailable, match="majority"):
        store.compare_and_set("here", [a_change(KEY, version=None, next_version=7)])
    assert 7 == store.read([KEY])[KEY].version


@pytest.mark.parametrize("code", (91, 189, 11602, 50, 8000), ids=str)
def test_error_of_the_server_is_an_unknown_outcome(failing: tuple[MongoStore, Callable[..., None]], code: int) -> None:
    """No error of the driver gets out."""
    store, fail = failing
    fail(times=2, errorCode=code)  # the driver tries some again
    with pytest.raises(StoreUnavailable):
        store.compare_and_set("here", [a_change(KEY, version=None, next_version=7)])


def test_single_server_in_place_of_a_replica_set_is_read(store: MongoStore) -> None:
    """It knows no operation times, and refuses to read later than one that the store, or a file, has from before."""
    store.compare_and_set("here", [a_change(KEY, version=None, next_version=7)])
    store.follow(1_700_000_000 << 32)
    assert [7, 7] == [store.read([KEY])[KEY].version for _ in range(2)]
    assert store.progress() is None


def test_rejected_change_stops_no_other(store: MongoStore, documents: Collection[dict[str, Any]]) -> None:
    """It is told apart from a lost race."""
    documents.database.create_collection(documents.name, collation={"locale": "en", "strength": 1})
    documents.create_index("_id.username", unique=True, collation={"locale": "simple"})
    documents.insert_one({"_id": {"clientId": "bad", "username": None}, "version": Int64(5), "requestCounters": "text"})
    changes = [
        a_change(Key("moved on", None), version=1, next_version=2),
        a_change(Key("bad", None), version=5, next_version=6),
        a_change(Key("good", "kim"), version=None, next_version=1),
        a_change(Key("no second one without a user", None), version=None, next_version=1),
        a_change(Key("Good", "Kim"), version=None, next_version=1),
    ]
    assert ([0], {1: "error (28)", 3: "error (11000)", 4: "error (11000)"}) == store.compare_and_set("here", changes)
    assert 1 == store.read([Key("good", "kim")])[Key("good", "kim")].version


def test_index_with_other_options_is_logged_once(mongo_uri: str, documents: Collection[dict[str, Any]]) -> None:
    documents.create_index("expire", name="expire")
    with capture_logs() as events, closing(mongo_store(mongo_uri)) as opened:
        opened.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        opened.read([KEY])
    assert ["expiry_index_missing"] == [event["event"] for event in events]
    assert 1 == documents.count_documents({})


@pytest.mark.parametrize(
    "failure",
    ({"blockConnection": True, "blockTimeMS": 1500}, {"closeConnection": True}, {"errorCode": 50}),
    ids=("hanging", "connection closed", "cut short"),
)
def test_index_that_cannot_be_made_fails_no_write_and_is_not_tried_again_at_once(
    failing: tuple[MongoStore, Callable[..., None]], failure: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "MAX_S", 0.2)
    store, fail = failing
    fail(times=2, failCommands=["createIndexes"], **failure)
    with capture_logs() as events:
        for version in range(3):
            change = a_change(KEY, version=version or None, next_version=version + 1)
            assert not store.compare_and_set("here", [change]).lost
    assert ["expiry_index_missing"] == [event["event"] for event in events]


def test_dead_member_delays_neither_counting_nor_the_index(replica_set: ReplicaSet, replica_set_uri: str) -> None:
    """The server would wait for it before it commits an index, and for longer than any client does."""
    primary = replica_set.primary()
    next(member for member in replica_set.members if member is not primary).kill()
    for user in ("ann", "ben", "kim"):
        with closing(mongo_store(replica_set_uri)) as opened:
            limiter = a_limiter(opened, Clock())
            limiter.check(CLIENT, user)
            assert (None, 1) == ((report := limiter.sync()).error, report.flushed_count)
    with MongoClient[dict[str, Any]](replica_set_uri) as client:
        assert "expire" in client.get_default_database()["ratelimits"].index_information()
        running = client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.createIndexes": {"$exists": True}}}])
        assert [] == list(running)
