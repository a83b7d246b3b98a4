"""Stores of a configuration, and change of their connection at run time."""

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import final

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.errors import StoreError, StoreRejected
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.process.signals import background_thread
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo.client import FAILURES, Connection
from oauth_ratelimit.store.mongo.counters import CounterDocuments, MongoStore
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.erasure import Erasure, Person
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore, RevocationNotices
from oauth_ratelimit.store.mongo.indexes import Migrations
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.rollups import RollupStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

log = get_logger(__name__)

RETRY_S = 5.0
REPEAT_S = 60.0  # between two log entries about the same address
FORMER_KEPT_S = 10.0  # or its timeout, so that operations that have begun can end: cut off, a write may be applied
NOT_TRIED = "not tried yet"
ELSEWHERE = "store.uri leads to another database: every limit begins anew, without the former overrides and statistics"
FAILED = "the new store.uri or store.timeout is not used yet, the former one is; it is tried again every five seconds"


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
        other = _connection(settings)
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
    return Stores(_connection(settings), collection=settings.collection) if settings.uri else None


def open_counters(settings: StoreSettings) -> CounterStore | None:
    """Return counters with a connection of their own, None without ``store.uri``. Does not connect yet."""
    if settings.uri is None:
        return None
    return MongoStore(_connection(settings), collection=settings.collection, closes_connection=True)


def _connection(settings: StoreSettings) -> Connection:
    return Connection(settings.uri or "", namespace=settings.namespace, timeout_s=settings.timeout_s)


class Reconnector:
    """Change to another address of the same collections, in a thread of its own, once a new connection works.

    ``problem`` is why the address that is wanted is not used: the code of an error; None while it is used.
    """

    def __init__(self, stores: Stores, settings: StoreSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.problem: str | None = None
        self._stores = stores
        self._used = settings
        self._wanted: StoreSettings | None = None  # what the file names, unless it is used
        self._clock = clock
        self._retry_at_s = -math.inf
        self._log = ThrottledLog(log, REPEAT_S)
        self._trying = threading.Lock()  # held by the thread that connects
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []  # those that may still run

    def follow(self, wanted: StoreSettings) -> None:
        """Start to take over an address if it is another one and a try is due. Never waits, so call it often."""
        if wanted == self._used or not wanted.has_same_collections(self._used):
            self._wanted = self.problem = None
            return
        if wanted != self._wanted:
            self._wanted, self._retry_at_s, self._log = wanted, -math.inf, ThrottledLog(log, REPEAT_S)
            self.problem = NOT_TRIED
        now_s = self._clock()
        if now_s < self._retry_at_s or not self._trying.acquire(blocking=False):
            return
        self._retry_at_s = now_s + RETRY_S
        thread = background_thread(partial(self._connect, wanted), "connect")
        try:
            thread.start()
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        except RuntimeError:  # the process has none left
            self._trying.release()

    def _connect(self, wanted: StoreSettings) -> None:
        try:
            former, is_elsewhere = self._stores.reconnect(wanted)
            kept_s = max(FORMER_KEPT_S, self._used.timeout_s)
            self._used = wanted
            if wanted == self._wanted:  # the file may name another one by now
                self.problem = None
        except Exception as exc:  # noqa: BLE001  # after a bug, too, it is tried again
            code = error = type(exc).__name__  # its text may have the password
            if isinstance(exc, StoreError):
                code, error = exc.code, str(exc)
            if wanted == self._wanted:
                self.problem = code
                self._log.warning("connection_change_failed", error=error, hint=FAILED)
            return
        finally:
            self._trying.release()
        log.info("connection_changed", servers=self._stores.servers)
        if is_elsewhere:
            log.warning("database_changed", servers=self._stores.servers, hint=ELSEWHERE)
        self._ending.wait(kept_s)
        former.close()
        if self._ending.is_set():  # the stores may have been closed before they got the new one
            self._stores.close()

    def stop(self, deadline: Deadline) -> None:
        """Close what is not used any more. Call it after the last use of the stores."""
        self._ending.set()
        for thread in self._threads:
            thread.join(deadline.remaining_s)
