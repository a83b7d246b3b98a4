"""Counts in the store while limits change: each request once in each series that it was counted in."""

from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import FaultyStore
from tests.support.limiters import CLIENT, a_limiter, a_policy, hit, send_hits, some_settings

HOUR = a_policy(100, 3600)


def test_hits_of_a_wider_window_are_kept_after_it_is_narrowed(clock: Clock) -> None:
    """They are sent after the change, to a document that knows the narrow window only, and the change is taken back."""
    store = MemoryStore(clock)
    wide, narrow = a_policy(100, 600, frames=100), a_policy(100, 60, frames=10)
    here, there = a_limiter(store, clock, wide), a_limiter(store, clock, narrow)
    here.check(CLIENT, cost=40)
    here.reconfigure(some_settings(narrow))
    send_hits(there, 1, CLIENT)
    here.peek(CLIENT)
    here.sync()
    for _ in range(4):
        clock.now_s += 70
        for limiter in (here, there):
            send_hits(limiter, 1, CLIENT)

    here.reconfigure(some_settings(wide))
    here.peek(CLIENT)
    here.sync()
    assert 100 - 40 - 1 - 8 == here.peek(CLIENT).remaining


def test_change_that_changes_no_series_reads_nothing(clock: Clock) -> None:
    store = FaultyStore(MemoryStore())
    limiter = a_limiter(store, clock, HOUR)
    hit(limiter)
    store.calls.clear()
    limiter.reconfigure(some_settings(HOUR._replace(limit=500)))
    limiter.check(CLIENT)
    assert limiter.sync_urgent() is None
    limiter.sync()
    assert [("write", 1)] == store.calls


def test_share_of_what_is_left_stays_after_a_change(clock: Clock) -> None:
    """An instance that has used a small part of a limit sends its hits early, also right after the limit changed."""
    store = MemoryStore()
    limiters = [a_limiter(store, clock, HOUR) for _ in range(2)]
    for limiter in limiters * 2:
        hit(limiter)
    limiter.sync_urgent()
    limiter.reconfigure(some_settings(HOUR._replace(limit=2000)))
    limiter.check(CLIENT)
    assert limiter.sync_urgent() is None
    limiter.check(CLIENT, cost=49)
    assert limiter.sync_urgent() is not None
