"""The answer to a flush never comes: was it applied, or not, or will it be later?"""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.chaos.fleet import Books, Instance, balance, run
from tests.support.faults import CUT, HOLD, LOSE_REPLY, FaultyProxy
from tests.support.helpers import with_database
from tests.support.replica_set import ReplicaSet

pytestmark = pytest.mark.chaos


INSTANCE_COUNT = 8


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, str]]:
    """Host and port of a server that takes writes, and the URI of a database of this test's own."""
    if request.param == "standalone":
        uri = request.getfixturevalue("mongo_uri")
        server = urlsplit(uri)
        yield server.hostname or "", server.port or 27017, uri
    else:
        uri = request.getfixturevalue("replica_set_uri")
        replica_set: ReplicaSet = request.getfixturevalue("replica_set")
        server = urlsplit(replica_set.primary().uri)
        yield server.hostname or "", server.port or 27017, uri


def through(proxy: FaultyProxy, uri: str, *, retry_writes: bool) -> str:
    """Return the URI of the same database by way of a proxy."""
    return with_database(proxy.uri, urlsplit(uri).path[1:]) + f"&retryWrites={str(retry_writes).lower()}"


@pytest.mark.parametrize(
    ("target", "retry_writes"),
    [("standalone", False), ("replica set", False), ("replica set", True)],
    indirect=["target"],
    ids=["standalone", "replica set", "replica set, retryable writes"],
)
def test_replies_lost_at_random(
    target: tuple[str, int, str], retry_writes: bool, repetitions: int, record: list[Books]
) -> None:
    """
    A third of all flushes are cut off, before or after the server applied them, or reach it only cycles later: MongoDB
    holds each hit once.
    """
    host, port, uri = target
    for repetition in range(repetitions):
        with ExitStack() as stack:
            proxies = [stack.enter_context(FaultyProxy(host, port)) for _ in range(INSTANCE_COUNT)]
            database_uri = with_database(uri, f"{urlsplit(uri).path[1:]}_{repetition}")
            instances = [Instance(through(proxy, database_uri, retry_writes=retry_writes)) for proxy in proxies]
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
            books = balance(instances, database_uri)
            assert sum(proxy.faults.total() for proxy in proxies) > 0
            record.append(books)
            assert (0, 0) == (books.lost, books.doubled)
