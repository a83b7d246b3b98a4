"""Migrations of the database: idempotent, applied in order, recorded in MongoDB."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pymongo
from pymongo.collection import Collection
from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure

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

log = get_logger(__name__)

TIMEOUT_S = 3600.0  # of one migration: an index on a large collection takes long


class MigrationState(NamedTuple):
    name: str  # of its file
    description: str
    applied_at_s: float | None  # None if that is not recorded
    is_pending: bool  # False also if instances have done all of it


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
            records = self._collections()[MIGRATIONS].find({"_id": {"$type": "string"}})
            applied = dict(well_formed(lambda record: (record["_id"], record["applied"].timestamp()), records))
        return [
            MigrationState(
                name,
                " ".join((module.__doc__ or "").split()),
                applied.get(name),
                is_pending=name not in applied and not self._is_done(module),
            )
            for name, module in load_migrations().items()
        ]

    def _is_done(self, module: ModuleType) -> bool:
        with translated_errors():
            try:
                return "is_done" in vars(module) and bool(module.is_done(self._collections()))
            except OperationFailure:  # no right to list indexes
                return False

    def upgrade(self) -> list[str]:
        """Apply the pending migrations, and return their names."""
        names, modules = [state.name for state in self.states() if state.applied_at_s is None], load_migrations()
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
