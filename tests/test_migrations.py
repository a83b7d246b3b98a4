"""
Migrations on a real MongoDB.
"""

import configparser
import importlib.util
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.store import lease as lease_module
from oauth_ratelimit.store import migrate as migrate_module
from oauth_ratelimit.store.connection import Connection
from oauth_ratelimit.store.lease import LEASE_ID, Lease
from oauth_ratelimit.store.migrate import MIGRATIONS, Migrations, migrations_directory
from tests.cli.conftest import Terminal, terminal
from tests.helpers import wait_until

__all__ = ["terminal"]

ROOT = Path(__file__).parents[1]
ALL = sorted(path.stem for path in (ROOT / "migrations").glob("[0-9]*.py"))

COUNTING = """
'''Count how often this is run.'''

name = "0001_count"
dependencies = []

def upgrade(db):
    db["ratelimits"].insert_one({"ran": True})
"""


@pytest.fixture
def database(mongo_uri: str) -> Iterator[Any]:
    """
    The empty database.
    """
    client: MongoClient[Any] = MongoClient(mongo_uri, tz_aware=True)
    with client:
        yield client.get_default_database()


@pytest.fixture
def connection(mongo_uri: str) -> Iterator[Connection]:
    """
    A connection to it.
    """
    with closing(Connection(mongo_uri)) as opened:
        yield opened


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A single migration that would show if it were run twice.
    """
    (tmp_path / "0001_count.py").write_text(COUNTING)
    monkeypatch.setattr(migrate_module, "migrations_directory", lambda: tmp_path)


def migrations_of(connection: Connection) -> Migrations:
    """
    Return the migrations of the default collections.
    """
    return Migrations(connection, collection="ratelimits")


def test_empty_database(connection: Connection, database: Any) -> None:
    """
    All migrations are run once, in order; then none is pending.
    """
    migrations = migrations_of(connection)
    assert ALL == migrations.pending()

    assert ALL == migrations.upgrade()
    assert [] == migrations.upgrade()
    assert [] == migrations.pending()
    for collection in ("ratelimits", "ratelimit_stats"):
        assert 0 == database[collection].index_information()["expire"]["expireAfterSeconds"]


def test_migrations_that_are_run_twice(connection: Connection, database: Any) -> None:
    """
    A migration whose end was never noted is run again, and changes nothing.
    """
    migrations_of(connection).upgrade()
    before = database["ratelimits"].index_information()
    database[MIGRATIONS].delete_many({"name": {"$exists": True}})

    assert ALL == migrations_of(connection).upgrade()
    assert before == database["ratelimits"].index_information()


def test_database_that_instances_have_used(connection: Connection, mongo_uri: str, database: Any) -> None:
    """
    Migrations meet the index that an instance made by itself, and an instance meets theirs.
    """
    for _ in range(2):
        limiter = Limiter(load_config({"store": {"uri": mongo_uri}}))
        limiter.check("app")
        assert None is limiter.sync().error
        limiter.close()
        migrations_of(connection).upgrade()

    assert {"_id_", "expire"} == set(database["ratelimits"].index_information())


def test_namespace_and_collection(mongo_uri: str, database: Any) -> None:
    """
    A namespace has migrations of its own, for the collections that are configured.
    """
    with closing(Connection(mongo_uri, namespace="one")) as connection:
        Migrations(connection, collection="counters").upgrade()

    assert {"one_counters", "one_ratelimit_stats", "one_ratelimit_migrations"} == set(database.list_collection_names())


def test_downgrade(database: Any) -> None:
    """
    Every migration can be taken back, also when it was never run.
    """
    for path in sorted((ROOT / "migrations").glob("[0-9]*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.downgrade(database)
        module.upgrade(database)
        module.downgrade(database)

    assert {"_id_"} == set(database["ratelimits"].index_information())


@pytest.mark.usefixtures("counting")
def test_thirty_starters(mongo_uri: str, database: Any) -> None:
    """
    Thirty that start at once run a migration once, and all come back when it has been run.
    """
    together = threading.Barrier(30)
    with ExitStack() as undo:
        starters = [migrations_of(undo.enter_context(closing(Connection(mongo_uri)))) for _ in range(30)]

        def start(migrations: Migrations) -> tuple[list[str], list[str]]:
            together.wait(timeout=30)
            return migrations.upgrade(), migrations.pending()

        with ThreadPoolExecutor(30) as pool:
            results = list(pool.map(start, starters))

    assert 1 == database["ratelimits"].count_documents({"ran": True})
    assert [["0001_count"]] == [applied for applied, _ in results if applied]
    assert [[]] * 30 == [pending for _, pending in results]


def test_holder_that_died(connection: Connection, database: Any) -> None:
    """
    A lease whose holder is gone is free when it runs out, by MongoDB's clock.
    """
    ended, going_on = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (-1, 60))
    database[MIGRATIONS].insert_one({"_id": LEASE_ID, "holder": "dead", "until": going_on})
    lease = Lease(connection.collection(MIGRATIONS))
    assert not lease.take()
    with pytest.raises(StoreUnavailable, match="another process"), lease.held(patience_s=0.2):
        pass

    database[MIGRATIONS].update_one({"_id": LEASE_ID}, {"$set": {"until": ended}})
    assert lease.take()
    assert lease.holder == database[MIGRATIONS].find_one({"_id": LEASE_ID})["holder"]


def test_lease_is_renewed(connection: Connection, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whoever takes longer than the lease is long keeps it, and gives it back at the end.
    """
    monkeypatch.setattr(lease_module, "RENEW_EVERY_S", 0.02)

    def until() -> datetime:
        found: datetime = database[MIGRATIONS].find_one({"_id": LEASE_ID})["until"]
        return found

    with Lease(connection.collection(MIGRATIONS)).held(patience_s=1):
        first = until()
        wait_until(lambda: until() > first, "the lease is renewed")

    assert 0 == until().timestamp()


def test_lease_that_somebody_else_has_taken(connection: Connection, database: Any) -> None:
    """
    A holder that was too slow does not take the lease from the next one.
    """
    late = Lease(connection.collection(MIGRATIONS))
    assert late.take()
    database[MIGRATIONS].update_one({"_id": LEASE_ID}, {"$set": {"holder": "next"}})
    late.release()

    assert "next" == database[MIGRATIONS].find_one({"_id": LEASE_ID})["holder"]


def test_commands(terminal: Terminal, database: Any) -> None:
    """
    The command line tells what is pending, exit code 1, runs it, and then has nothing to do.
    """
    pending = terminal.run("db", "status", "--json")
    assert 1 == pending.exit_code
    assert ALL == terminal.data("db", "upgrade")["applied_migrations"]
    assert "up to date" in terminal.ok("db", "upgrade")
    assert ALL == [row["name"] for row in terminal.data("db", "status")]
    assert ALL[0] in terminal.ok("db", "status")


def test_init_db(terminal: Terminal, database: Any) -> None:
    """
    Everything is there after init-db, and it can be called again.
    """
    collections = {"ratelimits", "ratelimit_overrides", "ratelimit_stats", "ratelimit_migrations"}
    assert collections == set(terminal.data("init-db")["created_collections"])
    assert collections == set(database.list_collection_names())

    assert {"created_collections": [], "applied_migrations": []} == terminal.data("init-db")
    assert "up to date" in terminal.ok("init-db")


def test_database_that_does_not_answer() -> None:
    """
    Without a server every method says so in this package's words.
    """
    with closing(Connection("mongodb://127.0.0.1:1/test", timeout_s=0.05)) as connection:
        migrations = migrations_of(connection)
        for call in (migrations.states, migrations.upgrade, migrations.create_collections):
            with pytest.raises(StoreUnavailable):
                call()


def test_packages() -> None:
    """
    The metadata names every package there is, the migrations among them, so that a wheel has them all.
    """
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "oauth_ratelimit").rglob("__init__.py")}

    assert found | {"oauth_ratelimit.migrations"} == set(metadata["options"]["packages"].split())
    assert "oauth_ratelimit.migrations = migrations" == metadata["options"]["package_dir"].strip()
    assert migrations_directory().is_dir()
