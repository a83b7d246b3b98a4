"""A MongoDB in memory that fails on command: one server, any number of clients, no threads and no real time.

It keeps to the rules that the sync protocol relies on: compare-and-set in unordered bulks of upserts, removal by TTL,
majority reads, and rollback of what no majority has. ``tests/store/test_simulated_mongo.py`` compares it with MongoDB.

Only one member is simulated. What a majority has is ``committed``; the primary's own state is ``latest``. A write that
is acknowledged is committed with all that came before it. An election drops what is not committed. A read may be
answered by what a majority had before, as by a former primary, but in a causally consistent session never by less than
the session has seen.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from functools import reduce
from typing import Any, NamedTuple

from bson import encode
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import UpdateOne
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    NetworkTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteError,
)

Document = dict[str, Any]
State = dict[bytes, Document]

NO_LIST = {"$not": {"$type": "array"}}
REMEMBERED_COMMITS = 20  # from which reads are answered
DUPLICATE_KEY, IMMUTABLE_FIELD, PATH_NOT_VIABLE, NOT_PERMITTED = 11000, 66, 28, 13
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "$inc": lambda old, amount: amount if old is None else old + amount,
    "$set": lambda _, value: value,
    "$max": lambda old, value: value if old is None else max(old, value),
}


class Fate(Enum):
    ANSWERED = auto()
    LOST = auto()  # never reaches the server
    UNREACHED = auto()  # the same, and the client knows it: it finds no server to send it to
    UNANSWERED = auto()  # applied, and the reply is lost
    HELD = auto()  # applied later, in any order; the client has given up by then
    CUT = auto()  # some operations of the bulk are applied, and the connection breaks
    REFUSED_AFTERWARDS = auto()  # applied, the reply lost, and the driver's retry refused, as after a loss of rights
    UNCONFIRMED = auto()  # applied on the primary, and no majority confirms it
    STALE = auto()  # a read that a former primary answers


class Removal(NamedTuple):
    """A counter that is not in its document any more."""

    identity: Document
    series: str
    start_s: int
    count: int
    at_s: float  # by the server's clock
    is_update: bool  # False if the whole document was removed


class Committed(NamedTuple):
    """What a majority has, and the number of removals until then. Never changed, so it serves as a backup."""

    documents: State
    removal_count: int
    number: int = 0  # of the commit


@dataclass
class Session:
    """A session, with the number of the last commit that it has seen; None if it is not causally consistent."""

    seen: int | None = None
    client: object = None

    @property
    def operation_time(self) -> Timestamp | None:
        return None if self.seen is None else Timestamp(1, self.seen)

    def advance_operation_time(self, operation_time: Timestamp) -> None:
        self.seen = max(self.seen or 0, operation_time.inc)


@dataclass
class Server:
    """The documents of one collection."""

    clock: Callable[[], float]
    on_insert: Callable[[bytes], object] = lambda _: None  # called with the id of each document that a write has made
    latest: State = field(default_factory=dict)  # what the primary has
    committed: Committed = field(default_factory=lambda: Committed({}, 0))
    former: deque[Committed] = field(default_factory=lambda: deque(maxlen=REMEMBERED_COMMITS))  # the newest one last
    held: list[list[UpdateOne]] = field(default_factory=list)  # bulks that arrive later
    removals: list[Removal] = field(default_factory=list)  # from ``latest``

    def apply(self, operations: Sequence[UpdateOne]) -> list[Document]:
        """Apply each operation by itself, and return the errors in the form of ``BulkWriteError``."""
        errors = []
        for index, operation in enumerate(operations):
            try:
                self._update(operation)
            except WriteError as exc:
                errors.append({"index": index, "code": exc.code, "errmsg": str(exc)})
        return errors

    def commit(self) -> None:
        self.committed = Committed(dict(self.latest), len(self.removals), self.committed.number + 1)
        self.former.append(self.committed)

    def seen_by(self, session: Session | None, *, is_stale: bool) -> State:
        """Return what a majority has, or the oldest state that is remembered and that a session may be shown."""
        least = 0 if session is None or session.seen is None else session.seen
        found = next((each for each in self.former if is_stale and each.number >= least), self.committed)
        self.note_seen(session, found.number)
        return found.documents

    def note_seen(self, session: Session | None, number: int) -> None:
        """Note the commit that an answer shows to a session."""
        if session is not None and session.seen is not None:
            session.seen = max(session.seen, number)

    def elect(self) -> None:
        """Elect another primary: what no majority has is rolled back."""
        self._go_back_to(self.committed)

    def expire(self) -> None:
        now = _now(self.clock())
        for identity, document in list(self.latest.items()):
            if document["expire"] <= now:
                self.replace(identity, None)
        self.commit()

    def release(self, index: int) -> None:
        self.apply(self.held.pop(index))

    def replace(self, identity: bytes, document: Document | None) -> None:
        """Replace a document, or remove it, as an operator does."""
        self._put(identity, document)
        self.commit()

    def reset(self, identity: bytes) -> None:
        document = dict(self.latest[identity])
        document.pop("requestCounters", None)
        self.replace(identity, {**document, "version": document["version"] + 1})

    def restore(self, backup: Committed) -> None:
        """Restore a backup, as an operator does. No member has anything else afterwards."""
        self._go_back_to(backup)
        self.former.clear()
        self.commit()

    def _go_back_to(self, committed: Committed) -> None:
        self.latest = dict(committed.documents)
        del self.removals[committed.removal_count :]

    def documents(self) -> list[Document]:
        return [_copied(document) for document in self.committed.documents.values()]

    def _update(self, operation: UpdateOne) -> None:
        query, update, upsert = operation._filter, operation._doc, operation._upsert
        identity = encode({"_id": query["_id"]})
        found = self.latest.get(identity)
        if found is not None and all(_matches(_at(found, name), wanted) for name, wanted in query.items()):
            self._put(identity, self._changed(found, update), is_update=True)
        elif upsert:
            given = {name: value for name, value in query.items() if name == "_id" or not isinstance(value, dict)}
            inserted = self._changed(given, update, is_insert=True)
            if inserted["_id"] != query["_id"]:
                raise WriteError("the update would modify the immutable field '_id'", IMMUTABLE_FIELD)
            if found is not None:
                raise WriteError("E11000 duplicate key error", DUPLICATE_KEY)
            self._put(identity, inserted)
            self.on_insert(identity)

    def _put(self, identity: bytes, document: Document | None, *, is_update: bool = False) -> None:
        before, left = self.latest.get(identity, {}), _counters(document or {})
        if document is None:
            self.latest.pop(identity, None)
        else:
            self.latest[identity] = document
        self.removals += (
            Removal(before["_id"], *counter, count, self.clock(), is_update)
            for counter, count in _counters(before).items()
            if counter not in left
        )

    def _changed(self, document: Document, update: Mapping[str, Any], *, is_insert: bool = False) -> Document:
        changed = _copied(document)
        values = update.get("$set", {}) | dict.fromkeys(update.get("$currentDate", {}), _now(self.clock()))
        if is_insert:
            values |= update.get("$setOnInsert", {})
        for operator, combine in OPERATORS.items():
            for path, value in {**update, "$set": values}.get(operator, {}).items():
                *parents, name = path.split(".")
                parent = changed
                for each in parents:
                    parent = parent.setdefault(each, {})
                    if not isinstance(parent, dict):
                        raise WriteError(f"cannot create field in {each!r}, which is no mapping", PATH_NOT_VIABLE)
                parent[name] = combine(parent.get(name), value)
        for path in update.get("$unset", {}):
            *parents, name = path.split(".")
            found = reduce(lambda inner, each: inner.get(each) if isinstance(inner, dict) else None, parents, changed)
            if isinstance(found, dict):
                found.pop(name, None)
        return changed


def _copied(value: Any) -> Any:
    """Return a copy of a document or a part of it. Its texts, numbers and dates never change."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _counters(document: Document) -> dict[tuple[str, int], int]:
    """Return the hits by series and frame start, without what is damaged."""
    series = document.get("requestCounters")
    return {
        (name, int(start_s)): count
        for name, frames in (series.items() if isinstance(series, dict) else ())
        for start_s, count in (frames.items() if isinstance(frames, dict) else ())
        if start_s.isdecimal() and type(count) in (int, Int64)
    }


def _at(document: Document, path: str) -> Any:
    return reduce(lambda inner, name: inner.get(name) if isinstance(inner, dict) else None, path.split("."), document)


def _matches(value: Any, wanted: Any) -> bool:
    """Return True if a field has a value, lies in a range, or is no list where none is allowed."""
    if isinstance(wanted, dict) and "$gte" in wanted:
        return type(value) in (int, Int64) and bool(wanted["$gte"] <= value <= wanted["$lte"])
    return not isinstance(value, list) if wanted == NO_LIST else bool(value == wanted)


def _now(at_s: float) -> datetime:
    """Return a date as BSON keeps it: to the millisecond."""
    return datetime.fromtimestamp(int(at_s * 1000) / 1000, UTC)


class SimulatedMongo:
    """One client's view of the server: the parts of ``Connection`` and of pymongo that the counter store uses.

    Connection, driver's client, database and collection are this one object, whatever their names. ``begin`` is called
    with the name of each command, such as ``update``, and decides what happens to it; ``end`` before the answer.
    """

    def __init__(
        self,
        server: Server,
        begin: Callable[[str], Fate] = lambda _: Fate.ANSWERED,
        end: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._server = server
        self._begin_command = begin
        self._end_command = end
        self.client = self.database = self
        self.refusals: dict[str, float] = {}

    def collection(self, _name: str) -> "SimulatedMongo":
        return self

    def start_session(self, *, causal_consistency: bool = False) -> Session:
        return Session(0 if causal_consistency else None, self)

    def time_limit(self, _seconds: float) -> AbstractContextManager[None]:
        """Return a limit that nothing reaches, because nothing waits."""
        return nullcontext()

    def command(self, name: str) -> Document:
        """Answer ``hello`` with the server's time."""
        self._begin(name)
        answer = {"localTime": _now(self._server.clock())}
        self._end_command(name)
        return answer

    def create_indexes(self, *_indexes: Any, **_options: Any) -> None:
        """Accept any index."""

    def find(
        self,
        query: Document,
        _projection: Document,
        *,
        sort: Sequence[tuple[str, int]] = (),
        limit: int = 0,
        session: Session | None = None,
        **_options: Any,
    ) -> list[Document]:
        """Return documents that a majority has, with their size, and with all fields at any size."""
        fate = self._begin("find")
        committed = self._server.seen_by(session, is_stale=fate is Fate.STALE)
        ids = [encode({"_id": identity}) for identity in query["_id"]["$in"]] if query else committed
        found = _copied([committed[identity] for identity in ids if identity in committed])
        for name, direction in sort:
            found.sort(key=lambda document: document[name], reverse=direction < 0)
        self._end_command("find")
        return [{**document, "size": len(encode(document))} for document in found[: limit or None]]

    def bulk_write(self, operations: Sequence[UpdateOne], *, session: Session | None = None, **_options: Any) -> None:
        """Apply an unordered bulk, unless something happens to it."""
        server, fate = self._server, self._begin("update")
        if fate is Fate.HELD:
            server.held.append(list(operations))
            raise NetworkTimeout("timed out")
        is_cut = fate is Fate.CUT
        errors = server.apply(operations[: len(operations) // 2] if is_cut else operations)
        if is_cut or fate is Fate.UNANSWERED:
            raise AutoReconnect("connection closed")
        if fate is Fate.REFUSED_AFTERWARDS:
            raise OperationFailure("not authorized", code=NOT_PERMITTED)
        no_majority = {"code": 64, "errmsg": "waiting for replication timed out"}
        unconfirmed = [no_majority] if fate is Fate.UNCONFIRMED else []
        if not unconfirmed:
            server.commit()
            server.note_seen(session, server.committed.number)
        self._end_command("update")
        if errors or unconfirmed:
            raise BulkWriteError({"writeErrors": errors, "writeConcernErrors": unconfirmed})

    def _begin(self, command: str) -> Fate:
        fate = self._begin_command(command)
        if fate is Fate.UNREACHED:
            raise ServerSelectionTimeoutError("no server")
        if fate is Fate.LOST or (fate not in (Fate.ANSWERED, Fate.STALE) and command != "update"):
            raise AutoReconnect("connection refused")
        return fate
