"""Marks of instances that end."""

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy
from tests.sync.faulty_store import Fault, FaultyStore

WORKERS = 4


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    """A store that goes by the same clock."""
    return MemoryStore(clock)


def hit(limiter: Limiter) -> None:
    """Make a request, and have it sent."""
    limiter.check(CLIENT)
    limiter.sync()


def test_rolling_restart_leaves_as_many_marks_as_workers_run(store: MemoryStore, clock: Clock) -> None:
    """However often they are replaced, one after the other."""
    workers = [a_limiter(store, clock) for _ in range(WORKERS)]
    for _ in range(10 * WORKERS):
        for worker in workers:
            hit(worker)
        workers.pop(0).close()
        workers.append(a_limiter(store, clock))
        clock.advance(1)
    for worker in workers:
        hit(worker)
    snapshot = store.read([KEY])[KEY]
    assert (WORKERS, WORKERS) == (len(snapshot.writers), len(snapshot.seen))


def test_killed_workers_leave_marks_that_the_next_writer_removes(store: MemoryStore, clock: Clock) -> None:
    """After the longest horizon and the slack, by the store's time."""
    for _ in range(20):
        hit(a_limiter(store, clock, a_policy(window_s=60)))
    assert 20 == len(store.read([KEY])[KEY].writers)
    clock.advance(66 + 61)
    workers = [a_limiter(store, clock, a_policy(window_s=60)) for _ in range(2)]
    for _ in range(2):
        for worker in workers:
            hit(worker)
    assert len(workers) == len(store.read([KEY])[KEY].writers)


def test_mark_stays_while_an_outcome_is_unknown(store: MemoryStore, clock: Clock) -> None:
    """It would tell whether the write has arrived."""
    faulty = FaultyStore(store)
    limiter = a_limiter(faulty, clock)
    hit(limiter)
    limiter.check(CLIENT)
    faulty.faults.extend([Fault.LOST_REQUEST] * 3)
    limiter.close()
    assert 1 == len(store.read([KEY])[KEY].writers)


def test_mark_of_an_instance_that_ends_is_removed_without_a_new_version(store: MemoryStore, clock: Clock) -> None:
    """The others need not read the document again."""
    limiter = a_limiter(store, clock)
    hit(limiter)
    before = store.read([KEY])[KEY]
    limiter.close()
    after = store.read([KEY])[KEY]
    assert (before.version, before.hits, {}) == (after.version, after.hits, after.writers)
