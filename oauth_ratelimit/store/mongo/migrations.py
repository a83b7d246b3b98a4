"""Migrations of the database: idempotent, applied in order, recorded in MongoDB."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pymongo
from pymongo.collection import Collection
from pymongo.errors import CollectionInvalid, DuplicateKeyError

from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.mongo.client import (
    COUNTERS,
    FAILURES,
    MIGRATIONS,
    OVERRIDES,
    STATISTICS,
    Connection,
    Document,
    translated_errors,
)
from oauth_ratelimit.store.mongo.fields import well_formed
from oauth_ratelimit.store.mongo.indexes import IndexProblem

log = get_logger(__name__)

TIMEOUT_S = 3600.0  # of one migration: an index on a large collection takes long


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
        """Return all migrations in the order in which they are applied."""
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
