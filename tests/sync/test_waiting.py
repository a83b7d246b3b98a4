"""Keys far from their limits: hits that wait, and writes that need no read."""

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.counters import steps, table
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import FaultyStore
from tests.support.limiters import CLIENT, a_limiter, a_policy, hit, in_flight_hits, some_settings, stored_hits


def known(limiter: Limiter, clock: Clock) -> Limiter:
    """Return a limiter that has written the document of the key."""
    hit(limiter)
    clock.advance(1)
    return limiter


def seconds_until_sent(limiter: Limiter, clock: Clock) -> int:
    for passed_s in range(100):
        limiter.sync(is_scheduled=True)
        if not in_flight_hits(limiter):
            return passed_s
        clock.advance(1)
    raise AssertionError("never sent")


@pytest.mark.parametrize(("window_s", "expected_s"), [(600, 9), (60, 5), (10, 0)])
def test_hits_wait_for_max_interval_or_a_tenth_of_the_window(clock: Clock, window_s: int, expected_s: int) -> None:
    """A second less, because the request may have come a second before the first cycle."""
    limiter = known(a_limiter(MemoryStore(clock), clock, a_policy(1000, window_s)), clock)
    limiter.check(CLIENT)
    assert expected_s == seconds_until_sent(limiter, clock)


def test_hits_of_a_key_that_is_near_its_limit_do_not_wait(clock: Clock) -> None:
    limiter = known(a_limiter(MemoryStore(clock), clock, a_policy(1000)), clock)
    limiter.check(CLIENT, cost=40)
    assert 5 == seconds_until_sent(limiter, clock)
    hit(limiter, cost=90)
    clock.advance(1)
    limiter.check(CLIENT)
    assert 0 == seconds_until_sent(limiter, clock)


def test_unsent_hits_of_all_instances_are_at_most_a_twentieth_of_the_limit(clock: Clock) -> None:
    store = MemoryStore(clock)
    for limiter in (pair := [a_limiter(store, clock, a_policy(1000)) for _ in range(2)]):
        known(limiter, clock)
    known(pair[0], clock)
    for limiter in pair:
        limiter.check(CLIENT, cost=24)
        assert limiter.sync_urgent() is None
        limiter.check(CLIENT)
        assert limiter.sync_urgent() is not None


def test_waiting_hits_are_sent_by_a_cycle_that_its_owner_asks_for_and_at_the_end(clock: Clock) -> None:
    store = MemoryStore(clock)
    limiter = known(a_limiter(store, clock), clock)
    for expected, send in ((2, limiter.sync), (3, limiter.close)):
        limiter.check(CLIENT)
        limiter.sync(is_scheduled=True)
        assert expected - 1 == stored_hits(store)
        send()
        assert expected == stored_hits(store)
        clock.advance(1)


def test_waiting_ends_when_limits_change(clock: Clock) -> None:
    store = MemoryStore(clock)
    limiter = known(a_limiter(store, clock), clock)
    limiter.check(CLIENT)
    limiter.sync(is_scheduled=True)
    limiter.reconfigure(some_settings(a_policy(100)))
    limiter.sync(is_scheduled=True)
    assert 2 == stored_hits(store)


def test_no_more_keys_wait_than_an_end_can_flush(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (steps, table):
        monkeypatch.setattr(module, "MAX_WAITING", 200)
    limiter = a_limiter(MemoryStore(clock), clock)
    for _ in range(2):
        for number in range(207):
            limiter.check(CLIENT, f"user-{number}")
        report = limiter.sync(is_scheduled=True)
        clock.advance(1)
    assert (7, 200) == (report.flushed_count, report.waiting_count)


def test_write_far_from_the_limit_reads_nothing_whatever_others_write(faulty: FaultyStore, clock: Clock) -> None:
    here, there = (a_limiter(faulty, clock) for _ in range(2))
    for limiter in (there, here, there):
        known(limiter, clock)
    faulty.calls.clear()
    for _ in range(10):
        for limiter in (here, there):
            known(limiter, clock)
    assert [("write", 1)] * 20 == faulty.calls
    assert 23 == stored_hits(faulty)


def test_key_that_others_write_much_more_often_is_read(faulty: FaultyStore, clock: Clock) -> None:
    """They may be near the limit, which this instance would not notice by itself."""
    here, there = (a_limiter(faulty, clock) for _ in range(2))
    for limiter in (there, here, *[there] * 40):
        known(limiter, clock)
    faulty.calls.clear()
    assert 1 == hit(here).conflict_count
    assert [("write", 1), ("read", 1), ("write", 1)] == faulty.calls
