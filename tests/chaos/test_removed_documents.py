"""A document is removed and made anew, while an instance still knows its former life."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from tests.chaos.fleet import Books, Instance, balance
from tests.support.faults import FaultyProxy
from tests.support.helpers import Clock, with_database

pytestmark = pytest.mark.chaos

USER = "user-0"


def documents(client: MongoClient[dict[str, Any]]) -> Collection[dict[str, Any]]:
    """Return the collection of counters."""
    return client.get_default_database()["ratelimits"]


def version_of(collection: Collection[dict[str, Any]]) -> int:
    """Return the version of the only document."""
    document = collection.find_one()
    assert document is not None
    return int(document["version"])


def test_removed_and_made_anew(mongo_uri: str, clock: Clock, record: list[Books]) -> None:
    """
    A stale instance overwrites nothing and doubles nothing, and no version number comes back, on a clock that stands.
    """
    prunable, *others = [Instance(mongo_uri, clock=clock) for _ in range(3)]
    versions = []
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        collection = documents(client)
        for instance in (prunable, *others, prunable):
            instance.hit(USER)
            instance.limiter.sync()
            versions.append(version_of(collection))
        collection.delete_many({})
        for instance in (prunable, *others):
            instance.counted.clear()  # the removed hits are nobody's any more
        for _ in range(2):
            for instance in others:
                instance.hit(USER)
                instance.limiter.sync()
                versions.append(version_of(collection))
        prunable.hit(USER)
        prunable.limiter.sync()
        versions.append(version_of(collection))
    assert len(versions) == len(set(versions))
    books = balance([prunable, *others], mongo_uri)
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)


def test_late_write_to_a_removed_document(mongo_uri: str, record: list[Books]) -> None:
    """A write that arrives after its document was removed does not bring it back."""
    server = urlsplit(mongo_uri)
    with FaultyProxy(server.hostname or "", server.port or 27017) as proxy:
        prunable = Instance(with_database(proxy.uri, server.path[1:]))
        prunable.hit(USER)
        prunable.limiter.sync()
        prunable.hit(USER)
        proxy.hold_next()
        assert prunable.limiter.sync().error is not None
        with MongoClient[dict[str, Any]](mongo_uri) as client:
            documents(client).delete_many({})
            prunable.counted.clear()
            prunable.counted[USER] = 1  # the second hit was never in the removed document
            proxy.release()
            assert 0 == documents(client).count_documents({})
        books = balance([prunable], mongo_uri)
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)
