"""Indexes, which ``init-db`` makes, and so do instances where their rights allow. Migrations, which it applies."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pymongo
from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure, PyMongoError

from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.mongo.client import (
    COUNTERS,
    FAILURES,
    MIGRATIONS,
    OVERRIDES,
    STATISTICS,
    UNAUTHORIZED,
    Connection,
    Document,
    code_of,
    translated_errors,
)
from oauth_ratelimit.store.mongo.fields import well_formed

log = get_logger(__name__)

CHECK_INTERVAL_S = 600.0  # the collection may be dropped, and its indexes with it
MAX_S = 1.0  # for each index: a collection that takes longer is left to init-db
COMMIT_QUORUM = "majority"  # by default the server waits for all members, those that are down included
NOT_COMPARED = {"v", "ns", "background"}  # parts of an index that say nothing about what it does
BAD_VALUE = 2  # from a server without a replica set, which knows no quorum
TIMEOUT_S = 3600.0  # of one migration: an index on a large collection takes long


class Index(NamedTuple):
    name: str
    path: str
    missing: str  # the event that is logged if it cannot be made
    options: Mapping[str, Any]


EXPIRY = Index("expire", "expire", "expiry_index_missing", {"expireAfterSeconds": 0})
MINUTE = Index("minute", "_id.minute", "minute_index_missing", {"sparse": True})
DENIAL = Index("denial", "at_s", "denial_index_missing", {"sparse": True})

INDEXES = {COUNTERS: (EXPIRY,), FAILURES: (EXPIRY,), STATISTICS: (EXPIRY, MINUTE, DENIAL)}


class IndexProblem(NamedTuple):
    """An index that is missing, or that others keep from being made."""

    collection: str
    name: str
    in_way: Sequence[str]  # names of the others

    def __str__(self) -> str:
        index = f"index {self.name} of {self.collection}"
        if not self.in_way:
            return f"{index} is missing; init-db makes it"
        others = " and ".join(self.in_way)
        return f"{index} cannot be made, because {others} has other options; drop it, and init-db makes the right one"


def index_problems(collection: Collection[Document], indexes: Iterable[Index]) -> Iterator[IndexProblem]:
    """Yield what is wrong with the indexes of a collection. Raises ``PyMongoError`` if they cannot be read."""
    found: list[Document] = []
    for name, parts in collection.index_information().items():
        options = {each: value for each, value in parts.items() if each not in NOT_COMPARED and value is not False}
        found.append({**options, "name": name, "key": dict(parts["key"])})
    for index in indexes:
        wanted = {"key": {index.path: 1}, "name": index.name, **index.options}
        in_way = [each for each in found if each["name"] == index.name or _signature(each) == _signature(wanted)]
        if wanted not in in_way:
            yield IndexProblem(collection.name, index.name, [each["name"] for each in in_way])


def _signature(index: Document) -> Document:
    return {**index, "name": None, "expireAfterSeconds": None}


def create_indexes(collection: Collection[Document], indexes: Iterable[Index]) -> None:
    """Create the indexes that do not exist. Raises ``PyMongoError`` if one cannot be created."""
    models = [IndexModel(index.path, name=index.name, **index.options) for index in indexes]
    try:
        collection.create_indexes(models, commitQuorum=COMMIT_QUORUM)
    except OperationFailure as exc:
        if exc.code != BAD_VALUE:
            raise
        collection.create_indexes(models)


class IndexKeeper:
    """Keeper of a collection's indexes. Creates them after a write: seldom, not for long, and without failing it."""

    def __init__(self, *indexes: Index) -> None:
        self._indexes = indexes
        self._next_s = -math.inf

    def ensure(self, collection: Collection[Document]) -> None:
        """Create indexes where rights allow. Without them documents stay and reads are slower; counts are the same."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + CHECK_INTERVAL_S
        for index in self._indexes:
            try:
                with pymongo.timeout(MAX_S):  # the server ends with the client, too
                    create_indexes(collection, (index,))
            except PyMongoError as exc:
                if not _is_made_by_others(collection, index, exc):
                    details = exc.details if isinstance(exc, OperationFailure) else None
                    reason = code_of(details) if details else type(exc).__name__
                    log.warning(index.missing, collection=collection.name, reason=reason)


class StatisticsCollection:
    """Base of the stores that share the collection of statistics. The connection's owner closes it.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._indexes = IndexKeeper(*INDEXES[STATISTICS])

    @property
    def _collection(self) -> Collection[Document]:
        return self._connection.collection(STATISTICS)


def _is_made_by_others(collection: Collection[Document], index: Index, error: PyMongoError) -> bool:
    """Return whether an index exists that this process has no right to create."""
    if not isinstance(error, OperationFailure) or error.code not in UNAUTHORIZED:
        return False
    query = {"find": collection.name, "hint": index.name}
    try:  # unlike a list of indexes, a query plan needs no right but to read
        plan = collection.database.command("explain", query, verbosity="queryPlanner")
    except PyMongoError:  # the collection has no index of that name
        return False
    return "IXSCAN" in str(plan["queryPlanner"]["winningPlan"])  # not in the plan for a missing collection


class MigrationState(NamedTuple):
    name: str  # of its file
    description: str
    applied_at_s: float | None  # None if that is not recorded
    is_pending: bool  # False also if instances have done all of it
    problems: Sequence[IndexProblem]  # what is not as it should be


class Migrations:
    """The migrations of one configuration's collections.

    Any number of processes may upgrade at once: each migration can run twice or in parallel without harm.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._names = {COUNTERS: collection} | {name: name for name in (FAILURES, OVERRIDES, STATISTICS, MIGRATIONS)}

    def states(self) -> list[MigrationState]:
        with translated_errors():
            collections = self._collections()
            records = collections[MIGRATIONS].find({"_id": {"$type": "string"}})
            applied = dict(well_formed(lambda record: (record["_id"], record["applied"].timestamp()), records))
            states = []
            for name, module in load_migrations().items():
                problems = module.problems(collections)
                is_pending = name not in applied and bool(problems)
                description = " ".join((module.__doc__ or "").split())
                states.append(MigrationState(name, description, applied.get(name), is_pending, problems))
        return states

    def upgrade(self) -> list[str]:
        """Apply the migrations that are pending or undone, and return their names.

        Raises ``StoreRejected`` if something else is in the way of an index.
        """
        modules = load_migrations()
        names = [state.name for state in self.states() if state.applied_at_s is None or state.problems]
        for name in names:
            # The timeouts of the connection are meant for the sync cycle.
            with translated_errors(), pymongo.timeout(TIMEOUT_S):
                collections = self._collections()
                modules[name].upgrade(collections)
                with suppress(DuplicateKeyError):  # another process has just recorded it
                    record = {"$set": {"applied": datetime.now(UTC)}}
                    collections[MIGRATIONS].update_one({"_id": name}, record, upsert=True)
            log.info("migration_applied", name=name)
        return names

    def create_collections(self) -> list[str]:
        """Create the missing collections, which MongoDB does by itself where rights allow, and return their names."""
        created = []
        with translated_errors():
            database = self._connection.database
            wanted = {collection.name for collection in self._collections().values()}
            for name in sorted(wanted - set(database.list_collection_names())):
                with suppress(CollectionInvalid):  # another process has just created it
                    database.create_collection(name)
                    created.append(name)
        return created

    def _collections(self) -> Mapping[str, Collection[Document]]:
        """Return the configured collections by the names that migrations use."""
        return {name: self._connection.collection(configured) for name, configured in self._names.items()}


def load_migrations() -> dict[str, ModuleType]:
    """Return the modules of all migrations by name, in order."""
    names = sorted(path.stem for path in (Path(__file__).parents[2] / "migrations").glob("[0-9]*.py"))
    return {name: import_module(f"oauth_ratelimit.migrations.{name}") for name in names}
