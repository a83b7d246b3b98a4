"""The primary is killed under load, and MongoDB is gone for longer than a window."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from pymongo import MongoClient
from structlog.testing import capture_logs

from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.sync.flusher import MAX_ROUNDS, CycleReport
from oauth_ratelimit.sync.scheduler import SyncScheduler
from tests.chaos.conftest import IS_LONG
from tests.chaos.fleet import CLIENT, Books, Instance, balance
from tests.support.helpers import wait_until, with_database
from tests.support.mongod import Mongod
from tests.support.replica_set import ReplicaSet

pytestmark = pytest.mark.chaos

USER = "user-0"
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
    schedulers = [SyncScheduler(instance.limiter, interval_s=0.5) for instance in instances]
    for starting in (*threads, *schedulers):
        starting.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for scheduler in schedulers:
            assert scheduler.stop(timeout_s=30)


def test_killed_primary_costs_no_hit_and_no_wait(
    replica_set: ReplicaSet, replica_set_uri: str, repetitions: int, record: list[Books]
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
                    lambda instance=instance: instance.limiter.counts(CLIENT, USER).in_flight_hits < 30,  # type: ignore[misc]
                    "flushing is back",
                    timeout_s=BACK_WITHIN_S,
                )
        replica_set.restart(killed)
        replica_set.heal()
        books = balance(instances, uri)
        record.append(books)
        assert (0, 0) == (books.lost, books.doubled)
        assert books.slowest_ms < USUAL_S * 1000


def test_many_instances_recover_in_few_operations(record: list[Books]) -> None:
    """
    When MongoDB is back, eight instances that all have the same keys to send come to an end, in few operations each.
    """
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
            reports = list(pool.map(lambda instance: settled(instance.limiter), instances))
            after = client.admin.command("serverStatus")["opcounters"]
        books = balance(instances, uri)
        record.append(books)
        assert (0, 0) == (books.lost, books.doubled)
        most = len(users) * len(instances)
        assert most / 2 <= sum(report.flushed_count for report in reports)  # the rest waits for the next cycle
        written = after["update"] - before["update"]
        assert written <= most * MAX_ROUNDS  # nobody writes a document oftener than in one cycle
        assert after["query"] - before["query"] <= 2 * len(instances) * MAX_ROUNDS


def settled(limiter: Limiter) -> CycleReport:
    """Synchronise as soon as MongoDB answers, all at once with everybody, and return what the first full cycle did."""
    reports: list[CycleReport] = []

    def is_answered() -> bool:
        reports.append(limiter.sync())
        return reports[-1].error is None

    wait_until(is_answered, "MongoDB is back")
    return reports[-1]


def test_limiter_that_ends_while_mongodb_is_down_logs_its_hits(record: list[Books]) -> None:
    """A limiter that cannot deliver its last hits logs how many, by client. The connection may have taken a write."""
    with Mongod() as mongod:
        instance = Instance(mongod.uri, timeout_s=0.3)
        instance.hit(USER)
        wait_until(lambda: instance.limiter.sync().error is None, "the first request is sent")
        mongod.kill()
        for _ in range(3):
            instance.hit(USER)
        with capture_logs() as logs:
            instance.limiter.close()
    record.append(Books(requests=4, lost=0))
    left = [entry["by_client"] for entry in logs if entry["event"] in ("hits_undelivered", "hits_unconfirmed")]
    assert [{CLIENT: 3}] == left
