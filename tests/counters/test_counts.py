"""Frames that begin later than now by the clock of an instance."""

from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, a_limiter, a_policy

START_S = 1_200_000_000  # where a frame begins
LIMIT = 1000


def test_frames_of_a_clock_that_is_ahead_count_now_or_when_they_begin() -> None:
    """Those that begin up to five seconds later count now: the clocks of instances differ a little."""
    clock, ahead = Clock(START_S), Clock(START_S)
    store = MemoryStore(clock)
    policy = a_policy(LIMIT, 10)
    here, there = a_limiter(store, clock, policy), a_limiter(store, ahead, policy)
    for ahead_s, cost in ((1, 1), (5, 2), (6, 40)):
        ahead.now_s = START_S + ahead_s
        there.check(CLIENT, cost=cost)
    there.sync()
    here.peek(CLIENT)
    here.sync()
    assert LIMIT - 3 == here.peek(CLIENT).remaining
