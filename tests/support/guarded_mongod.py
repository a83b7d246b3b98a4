"""A MongoDB with authentication, and users with no more rights than a test gives them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.mongod import Mongod

PASSWORD = "correct-horse-battery-staple"


class GuardedMongod:
    """A server with authentication, and its administrator."""

    def __init__(self, mongod: Mongod) -> None:
        self._mongod = mongod
        with mongod.client() as client:  # as long as there is no user, this machine may create one
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])

    @property
    def address(self) -> str:
        """Host and port."""
        return self._mongod.address

    def uri(self, user: str, *, password: str = PASSWORD) -> str:
        """Return the connection string of a user."""
        return f"mongodb://{user}:{password}@{self._mongod.address}/oauth?authSource=admin"

    def grant(self, user: str, *privileges: dict[str, Any]) -> str:
        """Make a user with these rights alone, or change the rights of one, and return the connection string."""
        with self._mongod.client(username="root", password=PASSWORD) as client:
            if client.admin.command("usersInfo", user)["users"]:
                client.admin.command("updateRole", user, privileges=list(privileges))
            else:
                client.admin.command("createRole", user, privileges=list(privileges), roles=[])
                client.admin.command("createUser", user, pwd=PASSWORD, roles=[user])
        return self.uri(user)

    def indexes(self, collection: str) -> set[str]:
        """Return the names of a collection's indexes."""
        with self._mongod.client(username="root", password=PASSWORD) as client:
            return set(client["oauth"][collection].index_information())

    def count(self, collection: str, selected: dict[str, Any]) -> int:
        """Return how many documents there are of a kind."""
        with self._mongod.client(username="root", password=PASSWORD) as client:
            return client["oauth"][collection].count_documents(selected)

    def empty(self) -> None:
        """Remove all data."""
        with self._mongod.client(username="root", password=PASSWORD) as client:
            client.drop_database("oauth")


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[GuardedMongod]:
    """A server of these tests' own."""
    with Mongod(["--auth"]) as mongod:
        yield GuardedMongod(mongod)


@pytest.fixture
def guarded(guarded_server: GuardedMongod) -> GuardedMongod:
    """The server, empty."""
    guarded_server.empty()
    return guarded_server
