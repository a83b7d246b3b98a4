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
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.document import document_id

FAR_S = 4_000_000_000.0  # in 2096: nothing expires by itself


@dataclass(frozen=True)
class Shared:
    """A store, and a way around it.

    Args:
        store: The store.
        remove: Removes a document, as its expiry or an operator would.
        collection: The documents, None if they are not in MongoDB.
    """

    store: CounterStore
    remove: Callable[[Key], object]
    collection: "Collection[dict[str, Any]] | None" = None


def mongo_store(uri: str, *, collection: str = "ratelimits", timeout_s: float = 2.0) -> MongoStore:
    """Return a store with a connection of its own."""
    return MongoStore(Connection(uri, timeout_s=timeout_s), collection=collection, closes_connection=True)


def everything_in(uri: str) -> str:
    """Return all documents of the database in a connection string, as text."""
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    with client:
        database = client.get_default_database()
        names = sorted(database.list_collection_names())
        return "\n".join(repr(document) for name in names for document in database[name].find())


@pytest.fixture(params=("memory", "mongodb"))
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    """An empty store."""
    if request.param == "memory":
        memory = MemoryStore()
        yield Shared(memory, memory.remove)
        return
    uri = request.getfixturevalue("mongo_uri")
    store = mongo_store(uri)
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    with client:
        documents = client.get_default_database()["ratelimits"]
        yield Shared(store, lambda key: documents.delete_one({"_id": document_id(key)}), documents)
    store.close()


@pytest.fixture
def store(shared: Shared) -> CounterStore:
    """An empty store."""
    return shared.store


def a_change(
    key: Key, *, version: int | None, next_version: int, hits: Hits | None = None, flush_id: int = 1, **stale: Any
) -> Change:
    """Return a change that adds one hit if nothing else is said."""
    return Change(key, version, next_version, flush_id, hits or {Series(6): {600: 1}}, FAR_S, **stale)
