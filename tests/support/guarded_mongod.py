"""A MongoDB with authentication, and users with no more rights than a test gives them."""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database

from testbed.mongod import Mongod

PASSWORD = "correct-horse-battery-staple"


class GuardedMongod:
    def __init__(self, mongod: Mongod) -> None:
        with mongod.client() as client:  # as long as there is no user, this machine may create one
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        self.address = mongod.address
        self.root = mongod.client(username="root", password=PASSWORD)

    @property
    def database(self) -> Database[dict[str, Any]]:
        return self.root["oauth"]

    def uri(self, user: str, *, password: str = PASSWORD) -> str:
        return f"mongodb://{user}:{password}@{self.address}/oauth?authSource=admin"

    def grant(self, user: str, *privileges: dict[str, Any]) -> str:
        """Make a user with these rights alone, or change the rights of one, and return the connection string."""
        if self.root.admin.command("usersInfo", user)["users"]:
            self.root.admin.command("updateRole", user, privileges=list(privileges))
        else:
            self.root.admin.command("createRole", user, privileges=list(privileges), roles=[])
            self.root.admin.command("createUser", user, pwd=PASSWORD, roles=[user])
        return self.uri(user)


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[GuardedMongod]:
    with Mongod(["--auth"]) as mongod:
        server = GuardedMongod(mongod)
        with server.root:
            yield server


@pytest.fixture
def guarded(guarded_server: GuardedMongod) -> GuardedMongod:
    guarded_server.root.drop_database("oauth")
    return guarded_server
