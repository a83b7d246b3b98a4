"""Counters in MongoDB: one document per key, changed by compare-and-set in unordered bulks.

One round trip finds every lost race. A change to a known document filters on ``_id`` and ``version`` and is sent as an
upsert that can never insert, because its ``$setOnInsert`` names another ``_id``: if the document has another version or
was removed, MongoDB answers with error 66 and the index of the change. A first change filters on a version that no
document has: it inserts, or answers with duplicate key, 11000. So of late writes only a first one can restore a
removed document.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from pymongo import DESCENDING, MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.process.yielding import yield_between
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.mongo.client import (
    Connection,
    Document,
    create_expiry_index,
    ensure_expiry,
    server_time,
    translated_errors,
)
from oauth_ratelimit.store.mongo.document import (
    ERASURES_ID,
    EXPIRE,
    MAX_PRELOADED_BYTES,
    ReadParser,
    compose,
    compose_leave,
    document_id,
    is_sent,
    parse_all,
    projection,
)

INDEX_CHECK_INTERVAL_S = 600.0  # the collection may be dropped, and its index with it
PRELOADED = projection(MAX_PRELOADED_BYTES)
LOST_RACE_CODES = frozenset({66, 11000})  # ImmutableField: another version or removed; DuplicateKey: exists already


class MongoStore:
    """Shared counters in a MongoDB collection. Connects on first use, so that it can be made before a fork.

    Args:
        connection: The connection to the database.
        collection: Name of the collection, without the namespace.
        closes_connection: True to close the connection with the store, because nothing else uses it.
    """

    def __init__(
        self, connection: Connection, *, collection: str = "ratelimits", closes_connection: bool = False
    ) -> None:
        self._connection = connection
        self._name = collection
        self._closes_connection = closes_connection
        self._opened: _Opened | None = None
        self._next_index_check_s = 0.0
        self._parser = ReadParser()

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.read``. One ``find`` by ``_id``, answered by the primary with majority read concern.

        The driver's first batch would be 101 documents, and each further one another round trip.
        """
        ids = [document_id(key) for key in keys]
        with translated_errors():
            opened = self._open()
            ids.append(ERASURES_ID)
            found = opened.collection.find(
                {"_id": {"$in": ids}}, self._parser.projection, session=opened.session, batch_size=len(ids) + 1
            )
            return dict(self._parser.parse(yield_between(found)))

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``. One ``update`` command for all changes."""
        operations = compose(writer, yield_between(changes))
        try:
            with translated_errors():
                opened = self._open()
                opened.collection.bulk_write(operations, ordered=False, session=opened.session)
        except BulkWriteError as exc:
            if exc.details["writeConcernErrors"]:
                raise StoreUnavailable("a majority did not confirm the write") from exc
            errors = {error["index"]: error for error in exc.details["writeErrors"]}
            lost = [index for index, error in errors.items() if error["code"] in LOST_RACE_CODES]
            others = {index: error["errmsg"] for index, error in errors.items() if error["code"] not in LOST_RACE_CODES}
            return WriteResult(lost, rejected=others)
        return WriteResult()

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.latest``. Uses the index on ``expire``."""
        with translated_errors():  # without the session, which a sync cycle may be using or opening
            collection = self._connection.collection(self._name)
            found = collection.find({"_id": {"$ne": ERASURES_ID}}, PRELOADED, batch_size=count + 1)
            found = found.sort(EXPIRE, DESCENDING).limit(count)
            small = (document for document in found if is_sent(document, MAX_PRELOADED_BYTES))
            return dict(parse_all(yield_between(small)))

    def leave(self, writer: str, keys: Sequence[Key]) -> None:
        """See ``CounterStore.leave``. One ``update`` command for all documents."""
        with translated_errors(), suppress(BulkWriteError):  # a damaged document, or one that no majority confirmed
            opened = self._open()
            opened.collection.bulk_write(compose_leave(writer, keys), ordered=False, session=opened.session)

    def time_s(self) -> float:
        """See ``CounterStore.time_s``. The clock of the primary."""
        with translated_errors():
            return server_time(self._open().collection.database).timestamp()

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """See ``CounterStore.time_limit``."""
        return self._connection.time_limit(seconds)

    def close(self) -> None:
        """See ``CounterStore.close``."""
        self._opened = None
        if self._closes_connection:
            self._connection.close()

    def _open(self) -> "_Opened":
        client, opened = self._connection.client, self._opened
        if opened is None or opened.client is not client:  # another one after close() or in a forked child
            # Causal consistency: a former primary that has not noticed must not answer with an older version than
            # the one already known, because "not at this version" is read as "has moved on".
            session = client.start_session(causal_consistency=True)
            opened = _Opened(client, session, self._connection.collection(self._name))
            ensure_expiry(opened.collection)
            self._opened = opened
            self._next_index_check_s = time.monotonic() + INDEX_CHECK_INTERVAL_S
        elif time.monotonic() >= self._next_index_check_s:
            self._next_index_check_s = time.monotonic() + INDEX_CHECK_INTERVAL_S
            with suppress(PyMongoError):  # was logged at first use
                create_expiry_index(opened.collection)
        return opened


@dataclass(frozen=True, slots=True)
class _Opened:
    client: MongoClient[Document]
    session: ClientSession
    collection: Collection[Document]
