"""The connection of one process."""

import os
from contextlib import closing

import pytest

from oauth_ratelimit.store.mongo.client import Connection


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


def test_closed_connection_opens_a_new_client(mongo_uri: str) -> None:
    """With its next use."""
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
