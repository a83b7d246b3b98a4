"""Counters in MongoDB: one document per key, changed by compare-and-set in unordered bulks.

One round trip finds every lost race. A change to a known document filters on ``_id`` and ``version``, or on the
writer's mark and a range of versions. It is sent as an upsert that can never insert, because its ``$setOnInsert`` names
another ``_id``: if the document has moved on or was removed, MongoDB answers with error 66 and the index of the change.
A first change filters on a version that no document has: it inserts, or answers with duplicate key, 11000. So of late
writes only a first one can restore a removed document.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

from bson.timestamp import Timestamp
from pymongo import DESCENDING
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreError, StoreRejected, StoreUnavailable
from oauth_ratelimit.process.yielding import pause, yield_between
from oauth_ratelimit.store.base import MAX_WHOLE, Change, Snapshot, WriteResult
from oauth_ratelimit.store.mongo.client import (
    COUNTERS,
    MAX_SCAN_MS,
    Connection,
    Document,
    code_of,
    server_time,
    translated_errors,
)
from oauth_ratelimit.store.mongo.document import (
    EXPIRE,
    MAX_BYTES,
    MAX_PRELOADED_BYTES,
    SIZE,
    compose,
    compose_mark_removal,
    document_id,
    filter_of_client,
    filter_of_live,
    parse_all,
    projection,
    reset_of,
)
from oauth_ratelimit.store.mongo.indexes import EXPIRY, IndexKeeper

MAX_READ_BYTES = MAX_WHOLE * MAX_BYTES  # of all documents that are read at once
PRELOADED = projection(MAX_PRELOADED_BYTES)
PROBE = Key("oauth_ratelimit: probe", None)  # no document is ever made for it
MAX_NAMED = 5  # damaged documents in an error
MAX_LOOKED_AT = 200  # documents after a reset, each of up to 512 KiB
NO_REPLICATION = 20  # IllegalOperation: among others a read that is to be later than another, without a replica set
LOST_RACE_CODES = frozenset({66, 11000})  # ImmutableField: another version or removed; DuplicateKey: exists already


class MongoStore:
    """Shared counters in a MongoDB collection. Connects on first use, so that it can be made before a fork.

    The collection is named without the namespace. With ``closes_connection`` nothing else uses the connection.
    """

    def __init__(self, connection: Connection, *, collection: str = COUNTERS, closes_connection: bool = False) -> None:
        self._connection = connection
        self._name = collection
        self._closes_connection = closes_connection
        self._session: ClientSession | None = None
        self._followed: int | None = None  # the progress that the next session begins with
        self._index = IndexKeeper(EXPIRY)

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Read by one ``find`` on ``_id``, answered by the primary with majority read concern.

        The driver's first batch would be 101 documents, and each further one another round trip.
        """
        with translated_errors(self._connection):
            try:
                return self._read(keys)
            except OperationFailure as exc:
                if exc.code != NO_REPLICATION or self.progress() is None:
                    raise
                self._followed = self._session = None  # a single server has taken the place of the replica set
                return self._read(keys)

    def _read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        ids = [document_id(key) for key in keys]
        most = min(MAX_BYTES, MAX_READ_BYTES // max(len(ids), 1))
        collection, session = self._open()
        found = collection.find({"_id": {"$in": ids}}, projection(most), session=session, batch_size=len(ids) + 1)
        return dict(parse_all(yield_between(found), max_bytes=most))

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Send one ``update`` command for all changes."""
        operations = compose(writer, yield_between(changes))
        pause()  # the driver encodes them all at once
        result = WriteResult()
        with translated_errors(self._connection):
            collection, session = self._open()
            try:
                collection.bulk_write(operations, ordered=False, session=session)
            except BulkWriteError as exc:
                result = _result_of(exc)
            self._index.ensure(collection)
        return result

    def prove(self, after: "MongoStore") -> None:
        """Raise an error unless this store can read and write, later than all that another one has seen.

        Changes nothing: the write names a version that no document has.
        """
        self._followed = after.progress()
        self.read([PROBE])
        change = Change(PROBE, secrets.randbelow(2**52), 0, 0, {}, 0.0)
        if self.compare_and_set("probe", [change]).rejected:
            raise StoreRejected("MongoDB refused a write")

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """Read by the index on ``expire``."""
        with translated_errors(self._connection):  # without the session, which a sync cycle may be using or opening
            collection = self._connection.collection(self._name)
            found = collection.find({}, PRELOADED, sort=[(EXPIRE, DESCENDING)], limit=count, batch_size=count + 1)
            small = (document for document in found if document[SIZE] <= MAX_PRELOADED_BYTES)
            return dict(parse_all(yield_between(small)))

    def remove_marks(self, writer: str, marks: Mapping[Key, int]) -> None:
        # A damaged document, or one that no majority confirmed.
        with translated_errors(self._connection), suppress(BulkWriteError):
            collection, session = self._open()
            collection.bulk_write(compose_mark_removal(writer, marks), ordered=False, session=session)

    def progress(self) -> int | None:
        """Return the operation time of the session; only a replica set has one."""
        at = None if self._session is None else self._session.operation_time
        return self._followed if at is None else at.time << 32 | at.inc

    def follow(self, progress: int) -> None:
        self._followed = progress
        if self._session is not None:
            self._session.advance_operation_time(_operation_time(progress))

    def time_s(self) -> float:
        """Return the time of the primary's clock."""
        with translated_errors():
            return server_time(self._connection.database).timestamp()

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        return self._connection.time_limit(seconds)

    def close(self) -> None:
        self._followed, self._session = self.progress(), None
        if self._closes_connection:
            self._connection.close()

    def _open(self) -> tuple[Collection[Document], ClientSession]:
        collection = self._connection.collection(self._name)
        client, session = collection.database.client, self._session
        if session is None or session.client is not client:  # another one after close(), in a forked child, or swapped
            # Causal consistency: a former primary that has not noticed must not answer with an older version than
            # the one already known, because "not at this version" is read as "has moved on".
            self._followed, session = self.progress(), client.start_session(causal_consistency=True)
            if self._followed is not None:
                session.advance_operation_time(_operation_time(self._followed))
            self._session = session
        return collection, session


def _operation_time(progress: int) -> Timestamp:
    return Timestamp(progress >> 32, progress & 0xFFFFFFFF)


def _result_of(error: BulkWriteError) -> WriteResult:
    """Return the result of a bulk that was applied in part. Raises if no majority has confirmed it."""
    if error.details["writeConcernErrors"]:
        raise StoreUnavailable("a majority did not confirm the write") from None
    errors = error.details["writeErrors"]
    lost = [each["index"] for each in errors if _is_lost_race(each)]
    return WriteResult(lost, rejected={each["index"]: code_of(each) for each in errors if not _is_lost_race(each)})


def _is_lost_race(error: Document) -> bool:
    """Return whether another writer was faster. Another unique index, or a collation, may refuse a key that is new."""
    is_of_key = error.get("keyPattern", {"_id": 1}) == {"_id": 1} and "collation" not in error
    return error["code"] in LOST_RACE_CODES and is_of_key


class ServerFacts(NamedTuple):
    """Version and time of MongoDB, and the approximate number of counter documents."""

    version: str
    document_count: int
    clock_s: float  # seconds since the epoch


class CounterDocuments:
    """The counter documents of all instances, in a collection whose name has no namespace."""

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._name = collection

    def facts(self) -> ServerFacts:
        collection = self._connection.collection(self._name)
        with translated_errors():
            return ServerFacts(
                version=str(self._connection.client.server_info()["version"]),
                document_count=collection.estimated_document_count(),
                clock_s=server_time(self._connection.database).timestamp(),
            )

    def every(self, now_s: float) -> Iterator[tuple[Key, Snapshot]]:
        """Yield all documents that have not expired. Reads page by page."""
        yield from self._find(filter_of_live(now_s))

    def latest(self, now_s: float, count: int) -> Iterator[tuple[Key, Snapshot]]:
        """Yield up to ``count`` documents, those that expire last first. Uses the index on ``expire``."""
        last_first = [(EXPIRE, DESCENDING)]
        yield from self._find(filter_of_live(now_s), sort=last_first, limit=count, max_time_ms=MAX_SCAN_MS)

    def of_client(self, client_id: str, *, at_most: int = 0) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of a client and of its users, or only ``at_most``. Uses the index on ``_id``."""
        yield from self._find(filter_of_client(client_id), limit=at_most)

    def of_keys(self, keys: Iterable[Key]) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of these keys, as far as they exist."""
        yield from self._find({"_id": {"$in": [document_id(key) for key in keys]}})

    def reset(self, client_id: str, username: str | None = None) -> int:
        """Set the counters of a client, or of one user of it, to zero on all instances.

        Returns the number of documents that had hits. A user's counters are those at all grant types and endpoints.
        Raises ``StoreRejected`` if some of the first ``MAX_LOOKED_AT`` are damaged: of those each instance goes on by
        what it has counted itself.
        """
        everything = filter_of_client(client_id, username)
        selected, update = reset_of(everything)
        with translated_errors():
            count = self._connection.collection(self._name).update_many(selected, update).modified_count
        damaged: list[str] = []
        with suppress(StoreError):  # the counters are set to zero all the same
            for key, found in self._find(everything, limit=MAX_LOOKED_AT, max_time_ms=MAX_SCAN_MS):
                if found.damage:
                    damaged.append(f"{document_id(key)} ({found.damage})")
        if damaged:
            raise StoreRejected(
                f"{count} counters are set to zero, but instances do not read {len(damaged)} of the first "
                f"{MAX_LOOKED_AT} in {self._connection.collection(self._name).name}: {', '.join(damaged[:MAX_NAMED])}"
            )
        return count

    def _find(self, selected: Document, **options: Any) -> Iterator[tuple[Key, Snapshot]]:
        collection = self._connection.collection(self._name)
        with translated_errors():
            yield from parse_all(collection.find(selected, projection(MAX_BYTES), **options))
