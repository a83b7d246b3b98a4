"""A primary that fails as servers do: it steps down, shuts down, hangs, or loses its majority, command by command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

from testbed.replica_set import ReplicaSet
from tests.chaos.conftest import IS_LONG
from tests.chaos.fleet import Instance, assert_exact, run
from tests.support.helpers import with_database

pytestmark = pytest.mark.chaos

BLOCKED_MS, TIMEOUT_S = 500, 0.3  # the client gives up before the server begins, and the write is applied late
FAULTS: dict[str, dict[str, Any]] = {
    "connection closed": {"closeConnection": True},
    "blocked": {"blockConnection": True, "blockTimeMS": BLOCKED_MS},
    "shutdown in progress": {"errorCode": 91},
    "primary stepped down": {"errorCode": 189},
    "interrupted at shutdown": {"errorCode": 11600},
    "no majority in time": {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
    "stepped down after the write": {"writeConcernError": {"code": 189, "errmsg": "stepped down"}},
}
SHORT = ("blocked", "primary stepped down", "stepped down after the write")


@contextmanager
def failing(uri: str, fault: dict[str, Any]) -> Iterator[Callable[[], int]]:
    """Let a part of our clients' reads and writes fail on one server in the block. Yields their number so far."""
    commands = ["update"] if "writeConcernError" in fault else ["update", "find"]
    command = {"configureFailPoint": "failCommand", "mode": {"activationProbability": 0.3}}
    with MongoClient[dict[str, Any]](uri) as client:
        client.admin.command(command | {"data": {"failCommands": commands, "appName": "oauth_ratelimit", **fault}})
        state = {"getParameter": 1, "failpoint.failCommand": 1}
        try:
            yield lambda: int(client.admin.command(state)["failpoint.failCommand"]["timesEntered"])
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


@pytest.mark.parametrize("retry_writes", (True, False), ids=("retryable writes", "no retryable writes"))
@pytest.mark.parametrize("name", FAULTS if IS_LONG else SHORT)
def test_commands_that_fail_at_random_lose_and_double_nothing(
    replica_set: ReplicaSet, replica_set_uri: str, name: str, retry_writes: bool
) -> None:
    for repetition in range(3 if IS_LONG else 1):
        own_uri = with_database(replica_set.uri, f"{urlsplit(replica_set_uri).path[1:]}_{repetition}")
        uri = f"{own_uri}&retryWrites={str(retry_writes).lower()}"
        instances = [Instance(uri, timeout_s=TIMEOUT_S) for _ in range(4)]
        with failing(replica_set.primary().uri, FAULTS[name]) as failed_count:
            run(instances, cycles=15 if IS_LONG else 8, seed=repetition)
            assert failed_count() > 0
        assert_exact(instances, own_uri)
