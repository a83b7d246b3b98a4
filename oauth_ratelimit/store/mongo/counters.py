"""The store in MongoDB: one document per key, changed by compare-and-set in unordered bulks.

How a lost race shows. A change to a known document filters on ``_id`` and ``version`` and is sent as an upsert that can
never insert, because its ``$setOnInsert`` names another ``_id``: a document that has moved on, or is gone, answers with
error 66 and the change's index. A first change filters on a version that no document has: it inserts, or answers with
duplicate key, 11000. So one round trip tells exactly which changes lost, and a change to a known document can never
bring back a document that was removed in between, however late the server applies it.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog
from pymongo import DESCENDING, MongoClient, ReadPreference
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.process.yielding import gently
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.mongo.client import connect, database_of, ensure_expiry, make_expiry, translated_errors
from oauth_ratelimit.store.mongo.document import FIELDS, Document, compose, document_id, parse_all

log = structlog.get_logger(__name__)

EXPIRY_LOOK_S = 600.0  # how often the index is made again, in case somebody has dropped the collection
LOST_RACE = frozenset({66, 11000})  # ImmutableField: not at this version or gone; DuplicateKey: exists already


class MongoStore:
    """Shared counters in a MongoDB collection.

    Connects on first use, never in the constructor, so that it can be made before a fork. Not for several threads at
    once: the sync cycle is its only user.

    Args:
        uri: Connection string; its options win over the defaults given here.
        collection: Name of the collection.
        timeout_s: How long the connection may hang in any one step.
    """

    def __init__(self, uri: str, *, collection: str = "ratelimits", timeout_s: float = 2.0) -> None:
        self._uri = uri
        self._collection_name = collection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # guards the three below while they are being made
        self._client: MongoClient[Document] | None = None
        self._collection: Collection[Document] | None = None
        self._session: ClientSession | None = None
        self._next_look_s = 0.0
        self._inherited: MongoClient[Document] | None = None

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.read``. One ``find`` by ``_id``, answered by the primary with majority read concern."""
        with translated_errors():
            collection, session = self._open()
            ids = [document_id(key) for key in keys]
            return dict(parse_all(gently(collection.find({"_id": {"$in": ids}}, FIELDS, session=session))))

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``. One ``update`` command for all changes."""
        operations = compose(writer, gently(changes))
        try:
            with translated_errors():
                collection, session = self._open()
                collection.bulk_write(operations, ordered=False, session=session)
        except BulkWriteError as exc:
            if exc.details["writeConcernErrors"]:
                raise StoreUnavailable("a majority did not confirm the write") from exc
            errors = {error["index"]: error for error in exc.details["writeErrors"]}
            lost = [index for index, error in errors.items() if error["code"] in LOST_RACE]
            return WriteResult(
                lost=lost,
                rejected={index: error["errmsg"] for index, error in errors.items() if error["code"] not in LOST_RACE},
            )
        return WriteResult()

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.latest``. Uses the index on ``expire``."""
        with translated_errors():
            collection, session = self._open()
            found = collection.find({}, FIELDS, session=session).sort("expire", DESCENDING).limit(count)
            return dict(parse_all(found))

    def clock_offset_s(self) -> float:
        """See ``CounterStore.clock_offset_s``."""
        with translated_errors():
            collection, _ = self._open()
            asked_s = time.time()
            hello = collection.database.command("hello")
            return float(hello["localTime"].timestamp() - (asked_s + time.time()) / 2)

    def close(self) -> None:
        """Release connections. Idempotent."""
        with self._lock:
            client, self._client, self._collection, self._session = self._client, None, None, None
        if client is not None:
            client.close()

    def abandon(self) -> None:
        """See ``CounterStore.abandon``."""
        self._lock = threading.Lock()
        self._inherited = self._client  # kept, because collecting it would close what the parent uses
        self._client = self._collection = self._session = None

    def _open(self) -> tuple[Collection[Document], ClientSession]:
        with self._lock:
            if self._collection is None or self._session is None:
                if self._client is None:
                    self._client = connect(self._uri, timeout_s=self._timeout_s)
                collection = database_of(self._client)[self._collection_name].with_options(
                    read_preference=ReadPreference.PRIMARY,
                    read_concern=ReadConcern("majority"),
                    # A standalone server acknowledges writes that a kill then loses, unless they are journaled.
                    write_concern=WriteConcern(w="majority", j=True),
                )
                # Causal consistency: a former primary that has not noticed must not answer with an older version than
                # the one already known, because "not at this version" is read as "has moved on".
                self._session = self._client.start_session(causal_consistency=True)
                ensure_expiry(collection)
                self._collection = collection
                self._next_look_s = time.monotonic() + EXPIRY_LOOK_S
            elif time.monotonic() >= self._next_look_s:
                self._next_look_s = time.monotonic() + EXPIRY_LOOK_S
                with suppress(PyMongoError):  # what goes on without it goes on; it was said at first use
                    make_expiry(self._collection)
            return self._collection, self._session
