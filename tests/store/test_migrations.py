"""Migrations on a real MongoDB."""

import configparser
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.store.mongo import migrations as migrate_module
from oauth_ratelimit.store.mongo.client import MIGRATIONS, Connection
from oauth_ratelimit.store.mongo.migrations import Migrations, load_migrations
from tests.cli.conftest import Terminal, terminal

__all__ = ["terminal"]

ROOT = Path(__file__).parents[2]
ALL = sorted(path.stem for path in (ROOT / "migrations").glob("[0-9]*.py"))


def migrations_of(connection: Connection) -> Migrations:
    """Return the migrations of the default collections."""
    return Migrations(connection, collection="ratelimits")


def pending(migrations: Migrations) -> list[str]:
    """Return the names of the migrations that are not applied."""
    return [state.name for state in migrations.states() if state.applied_at_s is None]


def given(monkeypatch: pytest.MonkeyPatch, steps: Mapping[str, Callable[[Mapping[str, Any]], None]]) -> None:
    """Put other migrations in the place of the package's."""
    modules = {name: ModuleType(name) for name in steps}
    for name, step in steps.items():
        vars(modules[name])["upgrade"] = step
    monkeypatch.setattr(migrate_module, "load_migrations", lambda: modules)


def test_upgrade_of_an_empty_database_applies_all_migrations(connection: Connection, mongo_database: Any) -> None:
    migrations = migrations_of(connection)
    assert ALL == pending(migrations)

    assert ALL == migrations.upgrade()
    assert [] == migrations.upgrade()
    assert [] == pending(migrations)
    for collection in ("ratelimits", "ratelimit_stats", "ratelimit_failures"):
        assert 0 == mongo_database[collection].index_information()["expire"]["expireAfterSeconds"]


def test_migration_can_run_twice(connection: Connection, mongo_database: Any) -> None:
    """If its record is lost, for instance."""
    migrations_of(connection).upgrade()
    before = mongo_database["ratelimits"].index_information()
    mongo_database[MIGRATIONS].delete_many({})

    assert ALL == migrations_of(connection).upgrade()
    assert before == mongo_database["ratelimits"].index_information()


def test_upgrade_of_a_used_database_creates_the_same_indexes(
    connection: Connection, mongo_uri: str, mongo_database: Any
) -> None:
    for _ in range(2):
        limiter = Limiter(load_config({"store": {"uri": mongo_uri}}))
        limiter.check("app")
        assert None is limiter.sync().error
        limiter.close()
        migrations_of(connection).upgrade()

    assert {"_id_", "expire"} == set(mongo_database["ratelimits"].index_information())


def test_upgrade_goes_by_namespace_and_collection(mongo_uri: str, mongo_database: Any) -> None:
    with closing(Connection(mongo_uri, namespace="one")) as connection:
        Migrations(connection, collection="counters").upgrade()

    names = ("counters", "ratelimit_failures", "ratelimit_migrations", "ratelimit_stats")
    assert [f"one_{name}" for name in names] == sorted(mongo_database.list_collection_names())


def test_same_migration_in_two_processes_at_once(
    mongo_uri: str, mongo_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that are within a migration at the same time both end it, and both report it."""
    both = threading.Barrier(2)

    def run(collections: Mapping[str, Any]) -> None:
        both.wait(timeout=30)
        collections["ratelimits"].create_index("expire", name="expire", expireAfterSeconds=0)
        both.wait(timeout=30)

    given(monkeypatch, {"0001_together": run})
    with ExitStack() as undo, ThreadPoolExecutor(2) as pool:
        starters = [migrations_of(undo.enter_context(closing(Connection(mongo_uri)))) for _ in range(2)]
        assert [["0001_together"]] * 2 == list(pool.map(Migrations.upgrade, starters))

    assert ["0001_together"] == [record["name"] for record in mongo_database[MIGRATIONS].find()]


def test_failed_migration_is_pending(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails ends the upgrade; those before it are recorded, and the next upgrade goes on with it."""
    applied: list[str] = []
    failures = [AutoReconnect("gone")]

    def fail_once(_: Mapping[str, Any]) -> None:
        if failures:
            raise failures.pop()
        applied.append("second")

    steps = {"0001_first": lambda _: applied.append("first"), "0002_second": fail_once}
    given(monkeypatch, {**steps, "0003_third": lambda _: applied.append("third")})
    with capture_logs() as logs, pytest.raises(StoreUnavailable):
        migrations_of(connection).upgrade()
    assert (["first"], ["0001_first"]) == (applied, [log["name"] for log in logs])

    assert ["0002_second", "0003_third"] == migrations_of(connection).upgrade()
    assert ["first", "second", "third"] == applied


def test_records_of_pymongo_migrate_are_valid(connection: Connection, mongo_database: Any) -> None:
    """A database that pymongo-migrate has upgraded is up to date, and its lease is ignored."""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    records = [{"_id": ObjectId(), "name": name, "applied": at} for name in ALL]
    lease = {"_id": "lease", "holder": "node-1:4711:0badcafe", "until": datetime(2100, 1, 1, tzinfo=UTC)}
    mongo_database[MIGRATIONS].insert_many([lease, *records])

    migrations = migrations_of(connection)
    assert [(name, at.timestamp()) for name in ALL] == [(each.name, each.applied_at_s) for each in migrations.states()]
    assert [] == migrations.upgrade()
    assert [lease, *records] == list(mongo_database[MIGRATIONS].find())


def test_migration_that_pymongo_migrate_has_undone_is_pending(connection: Connection, mongo_database: Any) -> None:
    """A record without a date is no record."""
    mongo_database[MIGRATIONS].insert_one({"_id": ObjectId(), "name": ALL[0], "applied": None})

    assert ALL == migrations_of(connection).upgrade()
    assert [] == pending(migrations_of(connection))


def test_earlier_versions_can_read_the_records(connection: Connection, mongo_database: Any) -> None:
    """pymongo-migrate finds a record by its name and takes no field but these."""
    migrations_of(connection).upgrade()
    for name in ALL:
        record = mongo_database[MIGRATIONS].find_one({"name": name})
        assert {"_id", "name", "applied"} == set(record)
        assert abs(record["applied"].timestamp() - time.time()) < 60


def test_commands_list_and_apply_pending_migrations(terminal: Terminal, mongo_database: Any) -> None:
    """With exit code 1 while some are pending."""
    pending = terminal.run("db", "status", "--json")
    assert 1 == pending.exit_code
    assert ALL == terminal.data("db", "upgrade")["applied_migrations"]
    assert "up to date" in terminal.ok("db", "upgrade")
    assert ALL == [row["name"] for row in terminal.data("db", "status")]
    assert ALL[0] in terminal.ok("db", "status")


def test_init_db_creates_everything_and_can_run_again(terminal: Terminal, mongo_database: Any) -> None:
    kinds = ("overrides", "stats", "failures", "migrations")
    collections = {"ratelimits", *(f"ratelimit_{kind}" for kind in kinds)}
    assert collections == set(terminal.data("init-db")["created_collections"])
    assert collections == set(mongo_database.list_collection_names())

    assert {"created_collections": [], "applied_migrations": []} == terminal.data("init-db")
    assert "up to date" in terminal.ok("init-db")


def test_metadata_names_every_package() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "oauth_ratelimit").rglob("__init__.py")}

    assert found | {"oauth_ratelimit.migrations"} == set(metadata["options"]["packages"].split())
    assert "oauth_ratelimit.migrations = migrations" == metadata["options"]["package_dir"].strip()
    assert ALL == list(load_migrations())
