"""Migrations of the database: idempotent, applied in order, recorded in MongoDB."""

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pymongo
import structlog
from pymongo.collection import Collection
from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure, PyMongoError

from oauth_ratelimit.store.mongo.client import (
    FAILURES,
    MIGRATIONS,
    OVERRIDES,
    STATISTICS,
    Connection,
    Document,
    translated_errors,
)

log = structlog.get_logger(__name__)

COUNTERS = "ratelimits"  # the name that migrations use, whatever store.collection is
TIMEOUT_S = 3600.0  # of one migration: an index on a large collection takes long


@dataclass(frozen=True, slots=True)
class MigrationState:
    """State of one migration.

    Args:
        name: Name of its file.
        description: Its docstring.
        applied_at_s: Time at which it was applied, seconds since the epoch; None if that is not recorded.
        is_present: True if instances have done all of it already.
    """

    name: str
    description: str
    applied_at_s: float | None
    is_present: bool = False

    @property
    def is_pending(self) -> bool:
        """True if it is still to be done."""
        return self.applied_at_s is None and not self.is_present


class Migrations:
    """The migrations of one configuration's collections.

    Any number of processes may upgrade at once: each migration can run twice or in parallel without harm.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
        collection: The configured name of the counters' collection, without the namespace.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._modules = load_migrations()
        self._names = {COUNTERS: collection} | {name: name for name in (FAILURES, OVERRIDES, STATISTICS, MIGRATIONS)}

    def states(self) -> list[MigrationState]:
        """Return all migrations in the order in which they are applied."""
        with translated_errors():
            # Only dates count: earlier versions recorded null for a migration that was undone.
            records = self._collections()[MIGRATIONS].find({"name": {"$type": "string"}, "applied": {"$type": "date"}})
            applied = {record["name"]: record["applied"].timestamp() for record in records}
        return [
            MigrationState(
                name,
                " ".join((module.__doc__ or "").split()),
                applied.get(name),
                is_present=name not in applied and self._is_done(module),
            )
            for name, module in self._modules.items()
        ]

    def _is_done(self, module: ModuleType) -> bool:
        """Return True if a migration is not recorded and there is nothing left of it to do."""
        try:
            return "is_done" in vars(module) and bool(module.is_done(self._collections()))
        except OperationFailure:  # no right to list indexes, or no collection yet
            return False
        except PyMongoError:
            with translated_errors():
                raise

    def upgrade(self) -> list[str]:
        """Apply the pending migrations, and return their names."""
        names = [state.name for state in self.states() if state.applied_at_s is None]
        for name in names:
            # The timeouts of the connection are meant for the sync cycle.
            with translated_errors(), pymongo.timeout(TIMEOUT_S):
                self._modules[name].upgrade(self._collections())
                self._record(name)
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

    def _record(self, name: str) -> None:
        # Earlier versions look for ``name`` and accept no other field than these.
        fields = {"name": name, "applied": datetime.now(UTC)}
        with suppress(DuplicateKeyError):  # another process has just recorded it
            self._collections()[MIGRATIONS].update_one({"_id": name}, {"$set": fields}, upsert=True)


def load_migrations() -> dict[str, ModuleType]:
    """Return the modules of all migrations by name, in order."""
    package = Path(__file__).parents[2]
    installed = package / "migrations"
    folder = installed if installed.is_dir() else package.parent / "migrations"  # beside the package in a checkout
    modules = {}
    for path in sorted(folder.glob("[0-9]*.py")):
        spec = importlib.util.spec_from_file_location(f"oauth_ratelimit.migrations.{path.stem}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {path}")
        modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[path.stem])
    return modules
