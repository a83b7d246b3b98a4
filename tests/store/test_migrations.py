"""Migrations on a real MongoDB."""

import json
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
from oauth_ratelimit.store.mongo import indexes as migrate_module
from oauth_ratelimit.store.mongo.client import MIGRATIONS, Connection
from oauth_ratelimit.store.mongo.indexes import Migrations
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
        vars(modules[name]).update(upgrade=step, problems=lambda _: [])
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


IN_THE_WAY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "another time": ("ratelimits", "expire", {"name": "expire", "expireAfterSeconds": 3600}),
    "no time": ("ratelimit_failures", "expire", {"name": "expire"}),
    "another name": ("ratelimit_stats", "expire", {"expireAfterSeconds": 0}),
    "another name and time": ("ratelimits", "expire", {"expireAfterSeconds": 5}),
    "another field": ("ratelimit_stats", "at", {"name": "denial", "sparse": True}),
    "not sparse": ("ratelimit_stats", "_id.minute", {"name": "minute"}),
    "one value each": ("ratelimits", "expire", {"name": "expire", "expireAfterSeconds": 0, "unique": True}),
}


@pytest.mark.parametrize("is_migrated", [False, True], ids=["before", "after init-db"])
@pytest.mark.parametrize(("collection", "path", "options"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_index_with_other_options_is_named(
    terminal: Terminal, mongo_database: Any, collection: str, path: str, options: dict[str, Any], is_migrated: bool
) -> None:
    """By ``--check``, and by ``init-db``, which cannot go on. Without it all is well."""
    if is_migrated:
        terminal.ok("init-db")
        mongo_database[collection].drop_indexes()
    name = mongo_database[collection].create_index(path, **options)
    check, upgrade = terminal.run("init-db", "--check"), terminal.run("init-db")
    [named] = [line for line in check.output.splitlines() if f"because {name} has other options" in line]
    [problems] = [each["problems"] for each in json.loads(terminal.run("init-db", "--check", "--json").stdout)]

    assert ([1, 3], True) == ([check.exit_code, upgrade.exit_code], named in problems)
    assert f" of {collection} cannot be made" in named
    assert named in upgrade.stderr and "Conflict (8" in upgrade.stderr
    mongo_database[collection].drop_index(name)
    terminal.ok("init-db")
    terminal.ok("init-db", "--check")


def test_index_that_somebody_has_dropped_is_made_again(terminal: Terminal, mongo_database: Any) -> None:
    terminal.ok("init-db")
    mongo_database["ratelimit_stats"].drop_index("minute")
    result = terminal.run("init-db", "--check")
    assert (1, True) == (result.exit_code, "index minute of ratelimit_stats is missing" in result.output)

    assert ALL == terminal.data("init-db")["applied_migrations"]
    terminal.ok("init-db", "--check")


def test_foreign_index_that_is_not_in_the_way_is_left_alone(terminal: Terminal, mongo_database: Any) -> None:
    mongo_database["ratelimits"].create_index("expire", partialFilterExpression={"version": {"$gt": 5}})
    mongo_database["ratelimit_failures"].create_index("expire", name="expire", expireAfterSeconds=0, sparse=False)
    terminal.ok("init-db")
    terminal.ok("init-db", "--check")
