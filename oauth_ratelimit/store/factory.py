"""Stores of a configuration: the one place that knows which kinds exist."""

from contextlib import AbstractContextManager
from functools import cached_property
from typing import final

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo.client import FAILURES, Connection, skip_waiting_at_exit
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.erasure import Erasure, Person
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.inspect import CounterDocuments
from oauth_ratelimit.store.mongo.migrations import Migrations
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore


@final
class Stores:
    """All stores of one process, over one connection to MongoDB.

    Args:
        connection: The connection.
        collection: Name of the collection of the counters, without the namespace.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._collection = collection

    @property
    def servers(self) -> str | None:
        """The hosts and ports of MongoDB, without credentials; None if they cannot be told apart."""
        return self._connection.servers

    @cached_property
    def counters(self) -> CounterStore:
        """The counters of tokens."""
        return MongoStore(self._connection, collection=self._collection)

    @cached_property
    def failures(self) -> CounterStore:
        """The counters of failed authentications."""
        return MongoStore(self._connection, collection=FAILURES)

    @cached_property
    def documents(self) -> CounterDocuments:
        """The counters of tokens, to inspect and reset."""
        return CounterDocuments(self._connection, collection=self._collection)

    @cached_property
    def overrides(self) -> OverrideStore:
        """The overrides and their history."""
        return OverrideStore(self._connection)

    @cached_property
    def heartbeats(self) -> HeartbeatStore:
        """The heartbeats of instances."""
        return HeartbeatStore(self._connection)

    @cached_property
    def statistics(self) -> StatisticsStore:
        """The statistics by client and minute."""
        return StatisticsStore(self._connection)

    @cached_property
    def denials(self) -> DenialStore:
        """The records of denials."""
        return DenialStore(self._connection)

    @cached_property
    def migrations(self) -> Migrations:
        """The migrations of the database."""
        return Migrations(self._connection, collection=self._collection)

    def erasure_of(self, person: Person) -> Erasure:
        """Return all records of a person, to count or remove."""
        return Erasure(self._connection, collection=self._collection, person=person)

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """Let all operations of this thread in a ``with`` block end within some seconds together."""
        return self._connection.time_limit(seconds)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def close_at_exit(self) -> None:
        """Close the connection of a process that is about to end, and let it end at once."""
        self.close()
        skip_waiting_at_exit()


def open_stores(settings: StoreSettings) -> Stores | None:
    """Return the stores of a configuration, None without ``store.uri``. Does not connect yet."""
    connection = _connection(settings)
    return None if connection is None else Stores(connection, collection=settings.collection)


def open_counters(settings: StoreSettings) -> CounterStore | None:
    """Return counters with a connection of their own, None without ``store.uri``. Does not connect yet."""
    connection = _connection(settings)
    if connection is None:
        return None
    return MongoStore(connection, collection=settings.collection, closes_connection=True)


def _connection(settings: StoreSettings) -> Connection | None:
    if settings.uri is None:
        return None
    return Connection(settings.uri, namespace=settings.namespace, timeout_s=settings.timeout_s)
