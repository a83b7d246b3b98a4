"""The primary is killed under load, and MongoDB is gone for longer than a window."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from pymongo import MongoClient

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.limiter import Limiter
from testbed.clock import wait_until
from testbed.mongod import Mongod
from testbed.replica_set import ReplicaSet
from tests.chaos.conftest import IS_LONG
from tests.chaos.fleet import CLIENT, Instance, assert_exact
from tests.support.helpers import with_database
from tests.support.limiters import in_background, in_flight_hits

pytestmark = pytest.mark.chaos

USER = "user-0"
ROUNDS = 4  # writes of a document in one cycle
USUAL_S = 1.0  # far above any check on a busy machine, below any timeout of the database
BACK_WITHIN_S = 2.0 if IS_LONG else 60.0  # the long form is for a machine that does nothing else


@contextmanager
def under_load(instances: Sequence[Instance]) -> Iterator[None]:
    """Let each instance make requests in a thread and synchronise in the background."""
    stop = threading.Event()

    def work(instance: Instance) -> None:
        count = 0
        while not stop.wait(0.002):
            count += 1
            instance.hit(f"user-{count % 7}")

    threads = [threading.Thread(target=work, args=(instance,)) for instance in instances]
    with ExitStack() as stack:
        for instance in instances:
            stack.enter_context(in_background(instance.limiter, interval_s=0.5))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_killed_primary_costs_no_hit_and_no_wait(
    replica_set: ReplicaSet, replica_set_uri: str, repetitions: int
) -> None:
    """Nothing is lost or doubled, no check waits, and flushing is back two seconds after the new primary."""
    for repetition in range(10 if IS_LONG else repetitions):
        uri = with_database(replica_set_uri, f"failover_{repetition}")
        instances = [Instance(uri) for _ in range(3)]
        with under_load(instances):
            wait_until(lambda counted=instances[0].counted: counted.total() > 100, "the load has begun")  # type: ignore[misc]
            killed = replica_set.kill_primary()
            replica_set.primary()
            for instance in instances:
                wait_until(
                    lambda instance=instance: in_flight_hits(instance.limiter, Key(CLIENT, USER)) < 30,  # type: ignore[misc]
                    "flushing is back",
                    timeout_s=BACK_WITHIN_S,
                )
        replica_set.restart(killed)
        replica_set.heal()
        assert_exact(instances, uri)
        assert max(instance.slowest_s for instance in instances) < USUAL_S


def test_many_instances_recover_in_few_operations() -> None:
    users = [f"user-{number}" for number in range(100)]
    with Mongod() as mongod:
        uri = with_database(mongod.uri, "recovery")
        instances = [Instance(uri, timeout_s=1.0) for _ in range(8)]
        for instance in instances:
            instance.hit(USER)
            wait_until(lambda limiter=instance.limiter: limiter.sync().error is None, "all have connected")  # type: ignore[misc]
        mongod.kill()
        for instance in instances:
            for user in users:
                instance.hit(user)
        mongod.start()
        with ThreadPoolExecutor(len(instances)) as pool, MongoClient(mongod.uri) as client:
            before = client.admin.command("serverStatus")["opcounters"]
            flushed = list(pool.map(lambda instance: flushed_at_last(instance.limiter), instances))
            after = client.admin.command("serverStatus")["opcounters"]
        assert_exact(instances, uri)
        most = len(users) * len(instances)
        assert most / 2 <= sum(flushed)  # the rest waits for the next cycle
        written = after["update"] - before["update"]
        assert written <= most * ROUNDS  # nobody writes a document oftener than in one cycle
        assert after["query"] - before["query"] <= 2 * len(instances) * ROUNDS


def flushed_at_last(limiter: Limiter) -> int:
    """Synchronise as soon as MongoDB answers, and return how many documents that cycle wrote."""
    report = wait_until(lambda: (found := limiter.sync()).error is None and found, "MongoDB is back")
    return report.flushed_count
