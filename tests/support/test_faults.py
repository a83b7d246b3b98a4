"""The proxy that breaks connections."""

import random
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, NetworkTimeout
from pymongo.uri_parser import parse_uri

from tests.support.faults import CUT, HOLD, LOSE_REPLY, FaultyProxy
from tests.support.helpers import wait_until

pytestmark = pytest.mark.mongo

_ADD_ONE = {"$inc": {"n": 1}}


@pytest.fixture
def proxy(mongo_uri: str) -> Iterator[FaultyProxy]:
    """A proxy before the session's MongoDB."""
    host, port = parse_uri(mongo_uri)["nodelist"][0]
    with FaultyProxy(host, port) as proxy:
        yield proxy


@pytest.fixture
def direct(mongo_uri: str) -> Iterator[Collection[dict[str, Any]]]:
    """A collection of this test, seen without the proxy, with one document."""
    with a_client(mongo_uri) as client:
        collection = client.get_default_database()["hits"]
        collection.insert_one({"_id": 1, "n": 0})
        yield collection


@pytest.fixture
def proxied(proxy: FaultyProxy, direct: Collection[dict[str, Any]]) -> Iterator[Collection[dict[str, Any]]]:
    """The same collection through the proxy, without the driver's own retries."""
    with a_client(proxy.uri, retryWrites=False) as client:
        yield client[direct.database.name][direct.name]


def a_client(uri: str, **options: Any) -> MongoClient[dict[str, Any]]:
    """Return a client, which the caller closes."""
    return MongoClient(uri, **options)


def hits(collection: Collection[dict[str, Any]]) -> int:
    """Return the count that the document has."""
    document = collection.find_one({"_id": 1})
    assert document is not None
    return int(document["n"])


def test_lost_reply_breaks_the_connection_after_the_write(
    proxy: FaultyProxy, proxied: Collection[dict[str, Any]], direct: Collection[dict[str, Any]]
) -> None:
    proxy.lose_next_reply("update")
    with pytest.raises(AutoReconnect):
        proxied.bulk_write([UpdateOne({"_id": 1}, _ADD_ONE)])
    assert hits(direct) == 1
    assert proxy.faults == {LOSE_REPLY: 1}
    proxied.update_one({"_id": 1}, _ADD_ONE)
    assert hits(direct) == 2


def test_request_that_is_cut_never_reaches_the_server(
    proxy: FaultyProxy, proxied: Collection[dict[str, Any]], direct: Collection[dict[str, Any]]
) -> None:
    proxy.cut_next("update", count=2)
    for _ in range(2):
        assert hits(proxied) == 0
        with pytest.raises(AutoReconnect):
            proxied.update_one({"_id": 1}, _ADD_ONE)
    proxied.update_one({"_id": 1}, _ADD_ONE)
    assert hits(direct) == 1
    assert proxy.faults == {CUT: 2}


def test_held_write_is_applied_when_it_is_released(
    proxy: FaultyProxy, proxied: Collection[dict[str, Any]], direct: Collection[dict[str, Any]]
) -> None:
    proxy.hold_next("update")
    with pytest.raises(AutoReconnect):
        proxied.bulk_write([UpdateOne({"_id": 1}, _ADD_ONE)])
    assert hits(proxied) == 0
    proxied.update_one({"_id": 1}, {"$inc": {"n": 10}})
    assert hits(direct) == 10
    assert [answer["nModified"] for answer in proxy.release()] == [1]
    assert hits(proxied) == 11
    assert proxy.faults == {HOLD: 1, "released": 1}
    assert proxy.release() == []


@pytest.mark.parametrize(("requests", "applied"), [(True, 0), (False, 1)], ids=["both ways", "replies only"])
def test_swallowed_messages_cause_a_timeout(
    proxy: FaultyProxy,
    proxied: Collection[dict[str, Any]],
    direct: Collection[dict[str, Any]],
    requests: bool,
    applied: int,
) -> None:
    assert hits(proxied) == 0
    proxy.swallow(True, requests=requests)
    with pytest.raises(NetworkTimeout), pymongo.timeout(0.3):
        proxied.update_one({"_id": 1}, _ADD_ONE)
    wait_until(lambda: hits(direct) == applied, "the server has done what arrived")
    proxy.swallow(False)
    proxied.update_one({"_id": 1}, _ADD_ONE)
    assert hits(direct) == applied + 1
    assert proxy.faults["swallowed"] >= 1


def test_random_faults_hit_the_given_share_of_writes(
    proxy: FaultyProxy, proxied: Collection[dict[str, Any]], direct: Collection[dict[str, Any]]
) -> None:
    proxy.random_faults(0.3, random.Random(7), kinds=(LOSE_REPLY, CUT, HOLD))
    failed = 0
    for _ in range(100):
        try:
            proxied.update_one({"_id": 1}, _ADD_ONE)
        except AutoReconnect:
            failed += 1
    assert 15 <= failed <= 45
    assert failed == proxy.faults.total()
    assert hits(direct) == 100 - proxy.faults[CUT] - proxy.faults[HOLD]
    assert len(proxy.release()) == proxy.faults[HOLD]
    assert hits(direct) == 100 - proxy.faults[CUT]
