"""Every store there is, for the tests that any store has to pass."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change, CounterStore, Hits
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.document import document_id
from testbed.memory_store import MemoryStore

FAR_S = 4_000_000_000.0  # in 2096: nothing expires by itself


@dataclass(frozen=True)
class Shared:
    """A store, and a way around it."""

    store: CounterStore
    other: CounterStore  # another one of the same documents, as a second process has
    remove: Callable[[Key], object]  # as expiry or an operator would
    collection: "Collection[dict[str, Any]] | None" = None  # None if the documents are not in MongoDB


def mongo_store(uri: str, *, collection: str = "ratelimits", timeout_s: float = 2.0) -> MongoStore:
    return MongoStore(Connection(uri, timeout_s=timeout_s), collection=collection, closes_connection=True)


def everything_in(uri: str) -> str:
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    with client:
        database = client.get_default_database()
        names = sorted(database.list_collection_names())
        return "\n".join(repr(document) for name in names for document in database[name].find())


@pytest.fixture(params=("memory", "mongodb"))
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    if request.param == "memory":
        memory = MemoryStore()
        yield Shared(memory, memory, memory.remove)
        return
    uri = request.getfixturevalue("mongo_uri")
    store, other = mongo_store(uri), mongo_store(uri)
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    with client:
        documents = client.get_default_database()["ratelimits"]
        yield Shared(store, other, lambda key: documents.delete_one({"_id": document_id(key)}), documents)
    store.close()
    other.close()


@pytest.fixture
def store(shared: Shared) -> CounterStore:
    return shared.store


def a_change(
    key: Key, *, version: int | None, next_version: int, hits: Hits | None = None, write_number: int = 1, **more: Any
) -> Change:
    """Return a change that adds one hit if nothing else is said."""
    return Change(
        key, version, next_version, write_number, hits or {Series(6): {600: 1}}, **{"expire_at_s": FAR_S, **more}
    )
