"""Counts of one key: what an instance has counted, on top of what it has read."""

import pytest

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.memory import MemoryStore
from testbed.clock import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, stored_hits

START_S = 1_200_000_000  # where a minute begins
LIMIT = 1000


@pytest.fixture
def clock() -> Clock:
    """A clock at the begin of a frame."""
    return Clock(START_S)


def test_hits_in_flight_are_known_by_frame_until_they_are_sent(clock: Clock) -> None:
    store = MemoryStore(clock)
    limiter = a_limiter(store, clock, a_policy(LIMIT))
    for cost in (3, 4, 5):
        limiter.check(CLIENT, cost=cost)
        clock.advance(6.5)
    assert {Series(6): {START_S: 3, START_S + 6: 4, START_S + 12: 5}} == limiter.in_flight(KEY)
    assert [KEY] == list(limiter.known_keys())
    limiter.sync()
    assert (None, LIMIT - 12) == (limiter.in_flight(KEY), limiter.peek(CLIENT).remaining)
    assert 12 == stored_hits(store)


def test_frames_of_a_clock_that_is_ahead_count_now_or_when_they_begin(clock: Clock) -> None:
    """Those that begin up to five seconds later count now: the clocks of instances differ a little."""
    store, ahead = MemoryStore(clock), Clock(START_S)
    policy = a_policy(LIMIT, 10)
    here, there = a_limiter(store, clock, policy), a_limiter(store, ahead, policy)
    for ahead_s, cost in ((1, 1), (5, 2), (6, 40)):
        ahead.now_s = START_S + ahead_s
        there.check(CLIENT, cost=cost)
    there.sync()
    here.peek(CLIENT)
    here.sync()
    assert LIMIT - 3 == here.peek(CLIENT).remaining
