"""Servers, databases and a clock as fixtures."""

import contextlib
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo.common
import pytest
import structlog
from hypothesis import Phase, settings
from prometheus_client import CollectorRegistry
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from structlog.testing import capture_logs

from oauth_ratelimit import blueprints
from oauth_ratelimit.observe import metrics
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import Connection
from testbed.clock import Clock
from testbed.mongod import Mongod
from testbed.mongod_program import MONGO_URI_VARIABLE
from testbed.oauth_server.database import seed
from testbed.replica_set import ReplicaSet
from tests.support.helpers import patient, with_database

_MEMORY = "/dev/shm"  # files in a directory of their own
_MEMORY_OF_SERVERS = 2 * 2**30  # bytes, of all processes that share the tests
_MONGO_FIXTURES = {"mongod", "mongodb", "replica_set"}


def pytest_configure() -> None:
    """Allow plain HTTP, restore SIGINT, configure structlog, and try properties with the same few examples."""
    os.environ.setdefault("AUTHLIB_INSECURE_TRANSPORT", "1")
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))  # standard output is for JSON
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell ignores it for background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    same = settings(deadline=None, max_examples=50, derandomize=True)
    settings.register_profile("same", same)
    settings.register_profile("unshrunk", same, phases=(Phase.explicit, Phase.generate))  # for breakages
    settings.register_profile("random", deadline=None, max_examples=1000)
    settings.load_profile("same")
    with contextlib.suppress(OSError):  # a system without it
        if shutil.disk_usage(_MEMORY).free > _MEMORY_OF_SERVERS:
            Mongod.memory = _MEMORY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need MongoDB: those with such a fixture, or with one as the parameter of another fixture."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        parameters = [value for value in callspec.params.values() if isinstance(value, str)] if callspec else []
        if not _MONGO_FIXTURES.isdisjoint([*getattr(item, "fixturenames", ()), *parameters]):
            item.add_marker("mongo")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Have threads interrupt each other as often as the interpreter can."""
    former_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(former_s)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded database. Codes and tokens are random, so tests can share it."""
    path = tmp_path_factory.mktemp("authserver") / "demo.sqlite3"
    seed(path)
    return path


@pytest.fixture(scope="session")
def mongod() -> Iterator[Mongod]:
    """MongoDB of the session, with fail points. A test that stops or kills a server starts its own."""
    with Mongod(allow_failpoints=True) as server:
        yield server


@pytest.fixture(scope="session")
def mongodb(request: pytest.FixtureRequest) -> str:
    """URI of the session's MongoDB: the one in the environment, else ``mongod``."""
    given = os.environ.get(MONGO_URI_VARIABLE)
    if given:
        return given
    server: Mongod = request.getfixturevalue("mongod")
    return server.uri


@pytest.fixture
def mongo_uri(mongodb: str) -> Iterator[str]:
    with _own_database(mongodb) as uri:
        yield uri


@pytest.fixture
def mongo_database(mongo_uri: str) -> Iterator[Database[dict[str, Any]]]:
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri, tz_aware=True)
    with client:
        yield client.get_default_database()


@pytest.fixture
def documents(mongo_database: Database[dict[str, Any]]) -> Collection[dict[str, Any]]:
    return mongo_database["ratelimits"]


@pytest.fixture
def connection(mongo_uri: str) -> Iterator[Connection]:
    with contextlib.closing(Connection(mongo_uri)) as opened:
        yield opened


@pytest.fixture(scope="session")
def replica_set() -> Iterator[ReplicaSet]:
    """Replica set of three members for the session, as the last test left it. ``replica_set_uri`` heals it first."""
    with ReplicaSet(allow_failpoints=True) as servers:
        yield servers


@pytest.fixture
def replica_set_uri(replica_set: ReplicaSet) -> Iterator[str]:
    """URI of an empty database for this test, on a replica set with all members running."""
    replica_set.heal()
    with _own_database(replica_set.uri) as uri:
        yield uri
        replica_set.heal()


@pytest.fixture(autouse=True)
def quick_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new clients look for a lost server at once instead of after half a second."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.01)


@pytest.fixture
def quick_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what ends here give up at once on a MongoDB that does not answer, instead of after seconds."""
    monkeypatch.setattr(Deadline.__init__, "__defaults__", (0.5,))


@contextlib.contextmanager
def _own_database(uri: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield patient(with_database(uri, name))
    client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=30_000)
    with client:
        for each in client.list_database_names():
            if each.startswith(name):  # a test may use several
                client.drop_database(each)


@pytest.fixture
def own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the page of metrics show what this test counts, and nothing that the process counted before."""
    registry = CollectorRegistry()
    monkeypatch.setattr(blueprints, "REGISTRY", registry)
    monkeypatch.setattr(metrics, "_opened", [metrics.Metrics(registry)])


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """Logged events."""
    with capture_logs() as captured:
        yield captured
