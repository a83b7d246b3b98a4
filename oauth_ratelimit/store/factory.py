"""Stores of a configuration: the one place that knows which kinds exist."""

from contextlib import AbstractContextManager, suppress
from typing import final

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo.client import FAILURES, Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.erasure import Erasure, Person
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.inspect import CounterDocuments
from oauth_ratelimit.store.mongo.migrations import Migrations
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.revocations import RevocationNotices
from oauth_ratelimit.store.mongo.rollups import RollupStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore


@final
class Stores:
    """All stores of one process, over one connection to MongoDB, which ``close`` closes.

    Every method of a store may block on the network and raises ``StoreUnavailable``, ``StoreRejected``, or nothing. The
    name of a collection is given without the namespace.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._collection = collection
        self.counters = MongoStore(connection, collection=collection)
        self.failures: CounterStore = MongoStore(connection, collection=FAILURES)
        self.overrides = OverrideStore(connection)
        self.revocations = RevocationNotices(connection)
        self.heartbeats = HeartbeatStore(connection)
        self.statistics = StatisticsStore(connection)
        self.rollups = RollupStore(connection)
        self.denials = DenialStore(connection)
        self.documents = CounterDocuments(connection, collection=collection)
        self.migrations = Migrations(connection, collection=collection)

    @property
    def servers(self) -> str | None:
        """Hosts and ports, without credentials; None if they are not recognised."""
        return self._connection.servers

    def erasure_of(self, person: Person) -> Erasure:
        """Return all records of a person, to count or remove."""
        return Erasure(self._connection, collection=self._collection, person=person)

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """Let all operations of this thread in a ``with`` block end within some seconds together."""
        return self._connection.time_limit(seconds)

    def reconnect(self, settings: StoreSettings) -> tuple[Connection, bool]:
        """Use another address of the same collections, and return the former connection, which its caller closes.

        The second value is True if the address is known to lead to another database. Blocks until the new one has shown
        that it can read overrides, and read and write counters. Raises ``StoreUnavailable`` or ``StoreRejected`` if it
        cannot: then the former one is used as before.
        """
        other = Connection(settings.uri or "", namespace=settings.namespace, timeout_s=settings.timeout_s)
        try:
            MongoStore(other, collection=self._collection).prove(after=self.counters)
            OverrideStore(other).revision()
            is_elsewhere = False
            with suppress(StoreRejected):  # by a role that may not read heartbeats
                is_elsewhere = self.heartbeats.is_elsewhere(HeartbeatStore(other))
        except BaseException:
            other.close()
            raise
        self._connection.swap(other)
        return other, is_elsewhere

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()


def open_stores(settings: StoreSettings) -> Stores | None:
    """Return the stores of a configuration, None without ``store.uri``. Does not connect yet."""
    connection = _connection(settings)
    return None if connection is None else Stores(connection, collection=settings.collection)


def open_counters(settings: StoreSettings) -> CounterStore | None:
    """Return counters with a connection of their own, None without ``store.uri``. Does not connect yet."""
    own = _connection(settings)
    return None if own is None else MongoStore(own, collection=settings.collection, closes_connection=True)


def _connection(settings: StoreSettings) -> Connection | None:
    if settings.uri is None:
        return None
    return Connection(settings.uri, namespace=settings.namespace, timeout_s=settings.timeout_s)
