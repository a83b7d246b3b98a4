"""Migrations on a real MongoDB."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pymongo.errors import AutoReconnect
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.core.statistics import ClientMinute
from oauth_ratelimit.store.mongo import migrations as migrate_module
from oauth_ratelimit.store.mongo.client import MIGRATIONS, Connection
from oauth_ratelimit.store.mongo.migrations import Migrations
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import Terminal, terminal

__all__ = ["terminal"]

ROOT = Path(__file__).parents[2]
ALL = sorted(path.stem for path in (ROOT / "migrations").glob("[0-9]*.py"))


def migrations_of(connection: Connection) -> Migrations:
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


def test_indexes_are_the_same_whoever_makes_them(connection: Connection, mongo_uri: str, mongo_database: Any) -> None:
    """An instance, the command, or the command again after its record was damaged."""
    limiter = Limiter(load_config({"store": {"uri": mongo_uri}}))
    limiter.check("app")
    assert None is limiter.sync().error
    limiter.close()
    StatisticsStore(connection).put("w", [ClientMinute("app", 1_900_000_020)], keep_s=60)
    made = {name: mongo_database[name].index_information() for name in ("ratelimits", "ratelimit_stats")}
    assert [{"_id_", "expire"}, {"_id_", "expire", "minute", "denial"}] == [set(each) for each in made.values()]
    assert 0 == made["ratelimits"]["expire"]["expireAfterSeconds"]

    for _ in range(2):
        migrations = migrations_of(connection)
        assert (ALL, [], []) == (migrations.upgrade(), migrations.upgrade(), pending(migrations))
        assert made == {name: mongo_database[name].index_information() for name in made}
        assert made["ratelimits"] == mongo_database["ratelimit_failures"].index_information()
        mongo_database[MIGRATIONS].update_many({}, [{"$set": {"applied": ["$applied"]}}])


def test_upgrade_goes_by_namespace_and_collection(mongo_uri: str, mongo_database: Any) -> None:
    with closing(Connection(mongo_uri, namespace="one")) as connection:
        Migrations(connection, collection="counters").upgrade()

    names = ("counters", "ratelimit_failures", "ratelimit_migrations", "ratelimit_stats")
    assert [f"one_{name}" for name in names] == sorted(mongo_database.list_collection_names())


def test_same_migration_in_two_processes_at_once(
    mongo_uri: str, mongo_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def run(collections: Mapping[str, Any]) -> None:
        both.wait(timeout=30)
        collections["ratelimits"].create_index("expire", name="expire", expireAfterSeconds=0)
        both.wait(timeout=30)

    given(monkeypatch, {"0001_together": run})
    with ExitStack() as undo, ThreadPoolExecutor(2) as pool:
        starters = [migrations_of(undo.enter_context(closing(Connection(mongo_uri)))) for _ in range(2)]
        assert [["0001_together"]] * 2 == list(pool.map(Migrations.upgrade, starters))

    assert ["0001_together"] == [record["_id"] for record in mongo_database[MIGRATIONS].find()]


def test_failed_migration_is_pending(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_init_db_creates_everything_and_can_run_again(terminal: Terminal, mongo_database: Any) -> None:
    """With ``--check`` it lists the migrations, with exit code 1 while some are pending."""
    assert 1 == terminal.run("init-db", "--check").exit_code
    kinds = ("overrides", "stats", "failures", "migrations")
    collections = {"ratelimits", *(f"ratelimit_{kind}" for kind in kinds)}
    assert collections == set(terminal.data("init-db")["created_collections"])
    assert collections == set(mongo_database.list_collection_names())

    assert {"created_collections": [], "applied_migrations": []} == terminal.data("init-db")
    assert ALL == [row["name"] for row in terminal.data("init-db", "--check")]
    assert "up to date" in terminal.ok("init-db")
