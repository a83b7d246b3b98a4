"""
Running the migrations: once each, however many processes want to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pymongo
import structlog
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import CollectionInvalid
from pymongo_migrate.mongo_migrate import MongoMigrate

from oauth_ratelimit.store.connection import Connection, Document, full_name
from oauth_ratelimit.store.heartbeats import STATISTICS
from oauth_ratelimit.store.lease import Lease
from oauth_ratelimit.store.mongo import translated_errors
from oauth_ratelimit.store.overrides import OVERRIDES

log = structlog.get_logger(__name__)

COUNTERS = "ratelimits"  # what migrations call the collection, whatever its name is
MIGRATIONS = "ratelimit_migrations"
MIGRATION_S = 3600.0  # an index on a large collection takes its time
PATIENCE_S = 600.0  # for somebody else who is at it


@dataclass(frozen=True, slots=True)
class MigrationState:
    """
    A migration, and whether it has been run.

    Args:
        name: Its name.

        description: What it does.

        applied_at_s: When it was run, None if it was not.
    """

    name: str
    description: str
    applied_at_s: float | None


class Migrations:
    """
    The migrations of one configuration's collections.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database. Whoever made it closes it.

        collection: The configured name of the counters' collection, without the namespace.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._names = {
            name: full_name(collection if name == COUNTERS else name, namespace=connection.namespace)
            for name in (COUNTERS, OVERRIDES, STATISTICS, MIGRATIONS)
        }

    def states(self) -> list[MigrationState]:
        """
        Return all migrations in the order in which they run.
        """
        runner = self._runner()
        states = []
        with translated_errors():
            for migration in runner.get_migrations():
                applied: datetime | None = runner.get_state(migration).applied
                description = " ".join((getattr(migration, "description", None) or "").split())
                applied_at_s = None if applied is None else applied.timestamp()
                states.append(MigrationState(migration.name, description, applied_at_s))
        return states

    def pending(self) -> list[str]:
        """
        Return the names of the migrations that were not run yet.
        """
        return [state.name for state in self.states() if state.applied_at_s is None]

    def upgrade(self) -> list[str]:
        """
        Run what was not run yet, under a lease, and return the names of what was run here.
        """
        if not self.pending():
            return []
        with Lease(self._connection.collection(MIGRATIONS)).held(patience_s=PATIENCE_S):
            names = self.pending()
            # Instead of the connection's own timeouts, which are meant for the sync cycle.
            with translated_errors(), pymongo.timeout(MIGRATION_S):
                self._runner().upgrade()
        for name in names:
            log.info("migration_applied", name=name)
        return names

    def create_collections(self) -> list[str]:
        """
        Create the collections that do not exist, and return their names.

        MongoDB creates them by itself where rights allow.
        """
        database = self._connection.database
        created = []
        with translated_errors():
            for name in sorted(set(self._names.values()) - set(database.list_collection_names())):
                try:
                    database.create_collection(name)
                except CollectionInvalid:
                    continue  # somebody else was faster
                created.append(name)
        return created

    def _runner(self) -> "_Runner":
        with translated_errors():
            database = self._connection.database
            return _Runner(
                client=self._connection.client,
                database=database.name,
                migrations_dir=str(migrations_directory()),
                migrations_collection=self._names[MIGRATIONS],
                named=_Named(database, self._names),
            )


class _Named:
    """
    A database whose collections go by the names that migrations use.
    """

    def __init__(self, database: Database[Document], names: Mapping[str, str]) -> None:
        self._database = database
        self._names = names

    def __getitem__(self, name: str) -> Collection[Document]:
        return self._database[self._names.get(name, name)]


class _Runner(MongoMigrate):  # type: ignore[misc]  # untyped
    def __init__(self, *, named: _Named, **options: Any) -> None:
        self._named = named
        super().__init__(**options)

    @property
    def db(self) -> _Named:
        """
        What a migration is given.
        """
        return self._named


def migrations_directory() -> Path:
    """
    Return where the migrations are: in the installed package, else beside it in a checkout.
    """
    package = Path(__file__).parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"
