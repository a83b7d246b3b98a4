"""Real servers and a clock for every test that asks for them."""

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pymongo.common
import pytest
from hypothesis import settings
from pymongo import MongoClient

from tests.support.helpers import Clock, patient, with_database
from tests.support.mongod import Mongod
from tests.support.mongod_program import MONGO_URI_VARIABLE
from tests.support.replica_set import ReplicaSet

_MONGO_FIXTURES = {"mongod", "mongodb", "replica_set"}


def pytest_configure() -> None:
    """Have SIGINT end what tests start, even if a shell runs them in the background and so has it ignored; let older
    versions of Authlib serve plain HTTP; let no example of a property fail for its time, which is the machine's affair.
    """
    os.environ.setdefault("AUTHLIB_INSECURE_TRANSPORT", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("unhurried", deadline=None)  # all else as it was, here and in CI
    settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need MongoDB: those with such a fixture, or with one as the parameter of another fixture."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        parameters = [value for value in callspec.params.values() if isinstance(value, str)] if callspec else []
        if not _MONGO_FIXTURES.isdisjoint([*getattr(item, "fixturenames", ()), *parameters]):
            item.add_marker("mongo")


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


@pytest.fixture(scope="session")
def mongod() -> Iterator[Mongod]:
    """The session's MongoDB, fail points allowed. A test that stops or kills a server starts one of its own."""
    with Mongod(allow_failpoints=True) as server:
        yield server


@pytest.fixture(scope="session")
def mongodb(request: pytest.FixtureRequest) -> str:
    """The URI of the session's MongoDB: the one named in the environment, else ``mongod``."""
    given = os.environ.get(MONGO_URI_VARIABLE)
    if given:
        return given
    server: Mongod = request.getfixturevalue("mongod")
    return server.uri


@pytest.fixture
def mongo_uri(mongodb: str) -> Iterator[str]:
    """The URI of an empty database that is this test's own."""
    with _own_database(mongodb) as uri:
        yield uri


@pytest.fixture(scope="session")
def replica_set() -> Iterator[ReplicaSet]:
    """The session's replica set of three, as the last test left it: ``replica_set_uri`` makes it whole first."""
    with ReplicaSet(3, allow_failpoints=True) as servers:
        yield servers


@pytest.fixture
def replica_set_uri(replica_set: ReplicaSet) -> Iterator[str]:
    """The URI of an empty database that is this test's own, on a replica set with all members running."""
    replica_set.heal()
    with _own_database(replica_set.uri, heal=replica_set) as uri:
        yield uri


@pytest.fixture
def quick_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients made from now on look for a lost server at once, not half a second later. Needs a proxy's ``uri``."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.01)


@contextlib.contextmanager
def _own_database(uri: str, *, heal: ReplicaSet | None = None) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield patient(with_database(uri, name))
    if heal is not None:
        heal.heal()
    client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=30_000)
    with client:
        client.drop_database(name)
