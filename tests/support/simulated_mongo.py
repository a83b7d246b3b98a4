"""A MongoDB in memory that fails on command: one server, any number of clients, no threads and no real time.

It keeps to the rules that the sync protocol relies on, and ``tests/store/test_simulated_mongo.py`` holds it against the
real one: compare-and-set in unordered bulks of upserts with the errors 66 and 11000, ``$inc``, ``$set``, ``$max``,
``$unset``, ``$setOnInsert`` and ``$currentDate``, ranges of ``_id``, removal by ``_id`` and by TTL, majority reads, and
rollback of what no majority has.

Only one member is simulated. What a majority has is ``committed``; the primary's own state is ``latest``. A write that
is acknowledged is committed with all that came before it. An election drops what is not committed.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, NamedTuple

from bson import MaxKey, MinKey, encode
from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.errors import AutoReconnect, BulkWriteError, NetworkTimeout, OperationFailure

Document = dict[str, Any]
State = dict[bytes, Document]

NO_LIST = {"$not": {"$type": "array"}}
DUPLICATE_KEY, IMMUTABLE_FIELD, PATH_NOT_VIABLE, TYPE_MISMATCH, NOT_PERMITTED = 11000, 66, 28, 14, 13
CANNOT_BACKFILL, MAX_BACKFILL = 34, 1_500_000  # elements


class Fate(Enum):
    """Fates of one command."""

    ANSWERED = auto()
    LOST = auto()  # never reaches the server
    UNANSWERED = auto()  # applied, and the reply is lost
    HELD = auto()  # applied later, in any order; the client has given up by then
    CUT = auto()  # some operations of the bulk are applied, and the connection breaks
    REFUSED_AFTERWARDS = auto()  # applied, the reply lost, and the driver's retry refused, as after a loss of rights
    UNCONFIRMED = auto()  # applied on the primary, and no majority confirms it


class Removal(NamedTuple):
    """A counter that is not in its document any more.

    Attributes:
        identity: The ``_id``.
        series: Name of the series.
        start_s: Start of the frame.
        count: Hits.
        at_s: The server's time.
        is_update: Whether an update removed it; else the document was removed.
    """

    identity: Document
    series: str
    start_s: int
    count: int
    at_s: float
    is_update: bool


class Backup(NamedTuple):
    """A state of the documents.

    Attributes:
        documents: What a majority had.
        removal_count: Number of removals until then.
    """

    documents: State
    removal_count: int


class WriteRejected(Exception):
    """One operation of a bulk failed.

    Args:
        code: The server's error code.
        message: Its text.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class Server:
    """The documents of one collection.

    Args:
        clock: Returns the server's time, seconds since the epoch.
        on_insert: Called with the id of each document that a write has made.

    Attributes:
        latest: What the primary has.
        committed: What a majority has.
        held: Bulks that arrive later.
        removals: All counters that were removed from ``latest``.
    """

    clock: Callable[[], float]
    on_insert: Callable[[bytes], object] = lambda _: None
    latest: State = field(default_factory=dict)
    committed: State = field(default_factory=dict)
    held: list[list[UpdateOne]] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    _committed_removal_count: int = 0

    def apply(self, operations: Sequence[UpdateOne]) -> list[tuple[int, WriteRejected]]:
        """Apply an unordered bulk on the primary, and return its errors with their positions."""
        errors = []
        for index, operation in enumerate(operations):
            try:
                self._update(operation)
            except WriteRejected as exc:
                errors.append((index, exc))
        return errors

    def commit(self) -> None:
        """Replicate everything to a majority."""
        self.committed = dict(self.latest)
        self._committed_removal_count = len(self.removals)

    def elect(self) -> None:
        """Elect another primary: what no majority has is rolled back."""
        self.latest = dict(self.committed)
        del self.removals[self._committed_removal_count :]

    def expire(self) -> None:
        """Remove documents whose time is over, as the TTL monitor does."""
        now = _now(self.clock())
        for identity, document in list(self.latest.items()):
            expire = document.get("expire")
            if isinstance(expire, datetime) and expire <= now:
                self.remove(identity)
        self.commit()

    def release(self, index: int) -> None:
        """Apply a write that was held back."""
        self.apply(self.held.pop(index))

    def remove(self, identity: bytes) -> None:
        """Remove a document, as an operator does."""
        document = self.latest.pop(identity, None)
        if document is not None:
            self._note_removals(document, {}, is_update=False)
        self.commit()

    def replace(self, identity: bytes, document: Document) -> None:
        """Replace a document, as somebody with a shell does."""
        self._note_removals(self.latest.get(identity, {}), document, is_update=False)
        self.latest[identity] = document
        self.commit()

    def reset(self, identity: bytes) -> None:
        """Remove the counters of a document, as the command for that does."""
        document = dict(self.latest[identity])
        document.pop("requestCounters", None)
        self.replace(identity, {**document, "version": document["version"] + 1})

    def backup(self) -> Backup:
        """Return the committed documents, to be given to ``restore``."""
        return Backup(dict(self.committed), self._committed_removal_count)

    def restore(self, backup: Backup) -> None:
        """Replace all documents by those of a backup."""
        self.latest = dict(backup.documents)
        del self.removals[backup.removal_count :]
        self.commit()

    def documents(self) -> list[Document]:
        """Return copies of all documents that a majority has."""
        return [copy.deepcopy(document) for document in self.committed.values()]

    def _update(self, operation: UpdateOne) -> None:
        query, update, upsert = operation._filter, operation._doc, operation._upsert
        identity = encode({"_id": query["_id"]})
        found = self.latest.get(identity)
        if found is not None and all(_matches(found.get(name), wanted) for name, wanted in query.items()):
            self.latest[identity] = changed = self._changed(found, update)
            if "$unset" in update:
                self._note_removals(found, changed, is_update=True)
            return
        if not upsert:
            return
        given = {name: value for name, value in query.items() if value != NO_LIST}
        inserted = self._changed(given, update, is_insert=True)
        if inserted["_id"] != query["_id"]:
            raise WriteRejected(
                IMMUTABLE_FIELD, "Performing an update on the path '_id' would modify the immutable field"
            )
        if found is not None:
            raise WriteRejected(DUPLICATE_KEY, "E11000 duplicate key error")
        self.latest[identity] = inserted
        self.on_insert(identity)

    def _note_removals(self, before: Document, after: Document, *, is_update: bool) -> None:
        left = _counters(after)
        self.removals += (
            Removal(before["_id"], *counter, count, self.clock(), is_update)
            for counter, count in _counters(before).items()
            if counter not in left
        )

    def _changed(self, document: Document, update: Mapping[str, Any], *, is_insert: bool = False) -> Document:
        changed = copy.deepcopy(document)
        for path, amount in update.get("$inc", {}).items():
            _change(changed, path, lambda old, amount=amount: _sum(old, amount))
        for path, value in update.get("$set", {}).items():
            _change(changed, path, lambda _, value=value: value)
        for path, value in update.get("$max", {}).items():
            _change(changed, path, lambda old, value=value: value if old is None or old < value else old)
        for path in update.get("$currentDate", {}):
            _change(changed, path, lambda _: _now(self.clock()))
        for path in update.get("$unset", {}):
            _remove(changed, path)
        if is_insert:
            for path, value in update.get("$setOnInsert", {}).items():
                changed[path] = value
        return changed


def _counters(document: Document) -> dict[tuple[str, int], int]:
    """Return the hits by series and frame start, without what is damaged."""
    series = document.get("requestCounters")
    return {
        (name, int(start_s)): count
        for name, frames in (series.items() if isinstance(series, dict) else ())
        for start_s, count in (frames.items() if isinstance(frames, dict) else ())
        if start_s.isdecimal() and type(count) in (int, Int64)
    }


def _matches(value: Any, wanted: Any) -> bool:
    """Return True if a field has a value, or is no list where none is allowed."""
    return not isinstance(value, list) if wanted == NO_LIST else bool(value == wanted)


def _is_selected(identity: Document, query: Mapping[str, Any]) -> bool:
    """Return True if a query by ``_id`` finds a document."""
    if "$or" in query:
        return any(_is_selected(identity, part) for part in query["$or"])
    found = _order(identity)
    for operator, bound in query.get("_id", {}).items():
        match operator:
            case "$in":
                fits = any(found == _order(each) for each in bound)
            case "$gte":
                fits = found >= _order(bound)
            case "$lte":
                fits = found <= _order(bound)
            case "$ne":
                fits = found != _order(bound)
            case _:
                raise NotImplementedError(operator)
        if not fits:
            return False
    return True


def _order(value: Any) -> tuple[Any, ...]:
    """Return the position of a value among others, as MongoDB sorts them: by type, name and value of each field."""
    match value:
        case MinKey():
            return (0,)
        case None:
            return (1,)
        case bool():
            return (5, value)
        case str():
            return (3, value.encode())
        case dict():
            return (4, tuple((_order(inner)[0], name, _order(inner)) for name, inner in value.items()))
        case MaxKey():
            return (6,)
    raise NotImplementedError(f"the order of {value!r}")


def _now(at_s: float) -> datetime:
    """Return a date as BSON keeps it: to the millisecond."""
    return datetime.fromtimestamp(int(at_s * 1000) / 1000, UTC)


def _change(document: Document, path: str, change: Callable[[Any], Any]) -> None:
    *parents, name = path.split(".")
    container: Any = document
    for parent in parents:
        container = _field(container, parent, change=lambda old: {} if old is None else old)
    _field(container, name, change=change)


def _field(container: Any, name: str, *, change: Callable[[Any], Any]) -> Any:
    """Change one field, and return its value. A number names an element of a list, which is filled up to it."""
    if isinstance(container, list) and name.isdigit():
        index = int(name)
        if index - len(container) > MAX_BACKFILL:
            raise WriteRejected(CANNOT_BACKFILL, "can't backfill array to that size")
        container += [None] * (index + 1 - len(container))
        container[index] = change(container[index])
        return container[index]
    if not isinstance(container, dict):
        raise WriteRejected(PATH_NOT_VIABLE, f"Cannot create field {name!r} in an element that is no mapping")
    container[name] = change(container.get(name))
    return container[name]


def _remove(document: Document, path: str) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        inner = document.get(parent)
        if not isinstance(inner, dict):
            return
        document = inner
    document.pop(name, None)


def _projected(document: Document, projection: Mapping[str, Any] | None) -> Document:
    if projection is None:
        return document
    expressions = {name: f"${name}" if value is True else value for name, value in {"_id": True, **projection}.items()}
    fields = {name: _value_of(expression, document) for name, expression in expressions.items()}
    return {name: value for name, value in fields.items() if value is not _MISSING}


_MISSING = object()


def _value_of(expression: Any, document: Document) -> Any:
    """Return the value of an expression of MongoDB, as far as the counter store uses them."""
    match expression:
        case "$$ROOT":
            return document
        case "$$REMOVE":
            return _MISSING
        case str():
            return document.get(expression.removeprefix("$"), _MISSING)
        case {"$bsonSize": inner}:
            return len(encode(_value_of(inner, document)))
        case {"$lte": [low, high]}:
            return bool(_value_of(low, document) <= _value_of(high, document))
        case {"$eq": [one, other]}:
            return bool(_value_of(one, document) == _value_of(other, document))
        case {"$and": conditions}:
            return all(_value_of(condition, document) for condition in conditions)
        case {"$cond": [test, then, otherwise]}:
            return _value_of(then if _value_of(test, document) else otherwise, document)
    return expression


def _sum(old: Any, amount: int) -> Any:
    if old is None:
        return amount
    if isinstance(old, bool) or not isinstance(old, int | float):
        raise WriteRejected(TYPE_MISMATCH, "Cannot apply $inc to a value of non-numeric type")
    total = old + amount
    if isinstance(total, int) and total >= 2**63:
        raise WriteRejected(2, "integer overflow")
    return Int64(total) if isinstance(old, Int64) else total


class SimulatedCollection:
    """One client's view of the server: the part of pymongo's ``Collection`` that the counter store uses.

    Args:
        server: Whose documents.
        fate_of: Returns what happens to the next command of this name, such as ``update``.
        on_command: Called before each command.
        on_read: Called after each answered read of documents by their ``_id``.
    """

    name = "ratelimits"

    def __init__(
        self,
        server: Server,
        fate_of: Callable[[str], Fate] = lambda _: Fate.ANSWERED,
        on_command: Callable[[str], None] = lambda _: None,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = server
        self._fate_of = fate_of
        self._on_command = on_command
        self._on_read = on_read

    @property
    def database(self) -> "SimulatedCollection":
        """The database, which answers ``hello``."""
        return self

    def command(self, name: str) -> Document:
        """Answer ``hello`` with the server's time, and ``ping`` likewise."""
        self._begin(name)
        return {"localTime": _now(self._server.clock()), "maxBsonObjectSize": 16 * 2**20}

    def with_options(self, **_options: Any) -> "SimulatedCollection":
        """Return the collection itself: it always reads and writes with a majority."""
        return self

    def create_index(self, *_keys: Any, **_options: Any) -> str:
        """Accept any index."""
        return "index"

    def find(
        self, query: Mapping[str, Any], projection: Mapping[str, Any] | None = None, **_options: Any
    ) -> "SimulatedCursor":
        """Return documents that a majority has, or the expressions of a projection in place of their fields."""
        self._begin("find")
        committed = self._server.committed
        if query.keys() == {"_id"} and "$in" in query["_id"]:
            wanted = [encode({"_id": identity}) for identity in query["_id"]["$in"]]
            found = [committed[identity] for identity in wanted if identity in committed]
            self._on_read()
        else:
            found = [document for document in committed.values() if _is_selected(document["_id"], query)]
        return SimulatedCursor(copy.deepcopy(found), projection)

    def find_one(self, query: Mapping[str, Any]) -> Document | None:
        """Return the document with an ``_id``, None if there is none."""
        return next(iter(self.find({"_id": {"$in": [query["_id"]]}})), None)

    def update_one(self, query: Mapping[str, Any], update: Mapping[str, Any], *, upsert: bool = False) -> None:
        """Apply one update."""
        self.bulk_write([UpdateOne(query, update, upsert=upsert)])

    def delete_many(self, query: Mapping[str, Any]) -> None:
        """Remove documents."""
        self._begin("delete")
        for identity, document in list(self._server.latest.items()):
            if _is_selected(document["_id"], query):
                self._server.remove(identity)
        self._server.commit()

    def bulk_write(self, operations: Sequence[UpdateOne], **_options: Any) -> None:
        """Apply an unordered bulk, unless something happens to it.

        Raises:
            AutoReconnect: The outcome is unknown.
            BulkWriteError: Operations were refused, or no majority confirmed.
        """
        server, fate = self._server, self._begin("update")
        if fate is Fate.HELD:
            server.held.append(list(operations))
            raise NetworkTimeout("timed out")
        if fate is Fate.CUT:
            server.apply(operations[: len(operations) // 2])
            raise AutoReconnect("connection closed")
        errors = server.apply(operations)
        if fate is Fate.UNANSWERED:
            raise AutoReconnect("connection closed")
        if fate is Fate.REFUSED_AFTERWARDS:
            raise OperationFailure("not authorized", code=NOT_PERMITTED)
        details: Document = {"writeErrors": [], "writeConcernErrors": []}
        details["writeErrors"] = [{"index": index, "code": exc.code, "errmsg": exc.message} for index, exc in errors]
        if fate is Fate.UNCONFIRMED:
            details["writeConcernErrors"] = [{"code": 64, "errmsg": "waiting for replication timed out"}]
            raise BulkWriteError(details)
        server.commit()
        if errors:
            raise BulkWriteError(details)

    def _begin(self, command: str) -> Fate:
        self._on_command(command)
        fate = self._fate_of(command)
        if fate is Fate.LOST or (fate is not Fate.ANSWERED and command != "update"):
            raise AutoReconnect("connection refused")
        return fate


class SimulatedCursor:
    """The result of a ``find``.

    Args:
        documents: What was found.
        projection: Expressions in place of their fields.
    """

    def __init__(self, documents: list[Document], projection: Mapping[str, Any] | None) -> None:
        self._documents = documents
        self._projection = projection

    def sort(self, name: str, direction: int) -> "SimulatedCursor":
        """Sort by one field that all documents have."""
        key = (lambda document: _order(document[name])) if name == "_id" else (lambda document: document[name])
        self._documents.sort(key=key, reverse=direction < 0)
        return self

    def limit(self, count: int) -> "SimulatedCursor":
        """Keep the first documents."""
        del self._documents[count:]
        return self

    def __iter__(self) -> "Iterable[Document]":  # type: ignore[override]
        return (_projected(document, self._projection) for document in self._documents)


class SimulatedConnection:
    """The part of ``Connection`` that the counter store uses.

    Args:
        collection: The collection, whatever its name.
    """

    namespace = None

    def __init__(self, collection: SimulatedCollection) -> None:
        self._collection = collection

    @property
    def client(self) -> "SimulatedConnection":
        """The driver's client: the connection itself."""
        return self

    @property
    def database(self) -> SimulatedCollection:
        """The database."""
        return self._collection.database

    def start_session(self, **_options: Any) -> None:
        """Return no session: reads are never older than this client's own writes."""

    def collection(self, _name: str) -> SimulatedCollection:
        """Return the collection."""
        return self._collection

    def time_limit(self, _seconds: float) -> AbstractContextManager[None]:
        """Return a limit that nothing reaches, because nothing waits."""
        return nullcontext()

    def close(self) -> None:
        """Nothing to close."""
