"""The answer to a flush never comes: was it applied, or not, or will it be later?"""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from testbed.replica_set import ReplicaSet
from tests.chaos.fleet import Instance, assert_exact, run
from tests.support.faults import CUT, HOLD, LOSE_REPLY, FaultyProxy
from tests.support.helpers import with_database

pytestmark = pytest.mark.chaos

INSTANCE_COUNT = 8


@pytest.fixture
def target(request: pytest.FixtureRequest) -> tuple[str, str]:
    """URI of a server that takes writes, and that of a database of this test's own."""
    if request.param == "standalone":
        uri: str = request.getfixturevalue("mongo_uri")
        return uri, uri
    replica_set: ReplicaSet = request.getfixturevalue("replica_set")
    return replica_set.primary().uri, request.getfixturevalue("replica_set_uri")


@pytest.mark.parametrize(
    ("target", "retry_writes"),
    [("standalone", False), ("replica set", False), ("replica set", True)],
    indirect=["target"],
    ids=["standalone", "replica set", "replica set, retryable writes"],
)
def test_replies_lost_at_random(target: tuple[str, str], retry_writes: bool, repetitions: int) -> None:
    """
    A third of all flushes are cut off, before or after the server applied them, or reach it only cycles later: MongoDB
    holds each hit once.
    """
    primary_uri, uri = target
    for repetition in range(repetitions):
        with ExitStack() as stack:
            name = f"{urlsplit(uri).path[1:]}_{repetition}"
            target_uri = with_database(primary_uri, name)
            proxies = [stack.enter_context(FaultyProxy(target_uri)) for _ in range(INSTANCE_COUNT)]
            instances = [Instance(f"{proxy.uri}&retryWrites={str(retry_writes).lower()}") for proxy in proxies]
            for index, proxy in enumerate(proxies):
                proxy.random_faults(0.33, random.Random(f"{repetition} {index}"), kinds=(LOSE_REPLY, CUT, HOLD))

            def release(cycle: int, proxies: Sequence[FaultyProxy] = proxies) -> None:
                if cycle % 3 == 2:
                    for proxy in proxies:
                        proxy.release()

            run(instances, cycles=12, seed=repetition, before_cycle=release)
            for proxy in proxies:
                proxy.random_faults(0.0, random.Random(0))
            release(2)
            assert_exact(instances, with_database(uri, name))
            assert sum(proxy.faults.total() for proxy in proxies) > 0
