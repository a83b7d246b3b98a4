"""The connection of one process."""

import os
import time
from contextlib import closing

import pytest

from oauth_ratelimit import StoreUnavailable
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, translated_errors
from oauth_ratelimit.store.mongo.counters import CounterDocuments, MongoStore
from oauth_ratelimit.store.mongo.indexes import Migrations
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.support.limiters import KEY
from tests.support.stores import a_change


@pytest.mark.filterwarnings("ignore:MongoClient opened before fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_forked_child_opens_a_client_of_its_own_and_leaves_the_parents_alone(mongo_uri: str) -> None:
    """The parent goes on with its client after the child has ended."""
    with closing(Connection(mongo_uri)) as connection:
        parents = connection.client
        parents.admin.command("ping")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                connection.database.command("ping")
                status = 2 if connection.client is parents else 0
                connection.close()
            finally:
                os._exit(status)

        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert parents is connection.client
        assert 1.0 == connection.database.command("ping")["ok"]


def test_child_forked_below_python_opens_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver would use the parent's sessions, and the server take a write of one process for that of the other.

    No server answers: the driver, too, sees the other process id, and would leave sockets open.
    """
    with closing(Connection("mongodb://127.0.0.1:1")) as connection:
        parents = connection.client
        monkeypatch.setattr("os.getpid", lambda: 4711)
        assert parents is not connection.client
        assert connection.client is connection.client
        parents.close()


def test_closed_connection_opens_a_new_client(mongo_uri: str) -> None:
    with closing(Connection(mongo_uri)) as connection:
        first = connection.client
        connection.close()
        connection.close()
        assert 1.0 == connection.database.command("ping")["ok"]
        assert first is not connection.client


@pytest.mark.parametrize(
    ("uri", "servers"),
    [
        ("mongodb://one:27017,two/oauth", "one:27017,two"),
        ("mongodb://kim:se%40cret@[::1]:27017/oauth?w=1", "[::1]:27017"),
        ("mongodb+srv://cluster.example.com", "cluster.example.com"),
        ("mongodb://kim:se@cret@one/oauth", None),
        ("mongodb://kim:secret", None),
    ],
)
def test_servers_have_no_part_of_the_password(uri: str, servers: str | None) -> None:
    """If they cannot be told apart, there are none."""
    assert servers == Connection(uri).servers


def test_unreachable_database_raises_store_unavailable_in_time() -> None:
    """No error of the driver gets out, and no password."""
    with closing(Connection("mongodb://user:secret@127.0.0.1:1/test", timeout_s=0.05)) as connection:
        counters = MongoStore(connection)
        documents = CounterDocuments(connection, collection="ratelimits")
        overrides, migrations = OverrideStore(connection), Migrations(connection, collection="ratelimits")
        override = Override(Target(OverrideKind.MODE), "ann", "incident", 0.0, mode=Mode.OFF)
        began_s = time.monotonic()
        for call in (
            *(
                lambda: counters.read([KEY]),
                lambda: counters.latest(10),
                lambda: counters.remove_marks("here", {KEY: 1}),
            ),
            lambda: counters.compare_and_set("here", [a_change(KEY, version=None, next_version=1)]),
            *(counters.time_s, documents.facts, lambda: list(documents.every(0.0)), lambda: documents.reset("app")),
            *(overrides.revision, overrides.read, overrides.history, lambda: overrides.put(override)),
            *(migrations.states, migrations.upgrade, migrations.create_collections),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert "secret" not in str(caught.value)
        assert time.monotonic() - began_s < 20  # the driver would wait 30 s, each time
        began_s = time.monotonic()
        for _ in range(20):
            with pytest.raises(StoreUnavailable), connection.time_limit(0.0):
                overrides.revision()
        assert time.monotonic() - began_s < 20 * 0.05  # after a deadline no call waits


def test_slow_database_is_told_from_an_unreachable_one(mongo_uri: str) -> None:
    uri = f"{mongo_uri.partition('?')[0]}?directConnection=true"
    with closing(Connection(uri, timeout_s=0.3)) as connection:
        collection = connection.collection(STATISTICS)
        collection.insert_one({"_id": "slow"})
        expected = r"^MongoDB did not answer within 0\.3 s: NetworkTimeout$"
        with pytest.raises(StoreUnavailable, match=expected), translated_errors():
            collection.find_one({"$where": "sleep(900) || true"})
