"""Flushing on a store that fails: every hit arrives, and arrives once."""

import pytest

from oauth_ratelimit import Limiter
from testbed.clock import Clock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import (
    CLIENT,
    KEY,
    a_limiter,
    a_policy,
    hit,
    in_flight,
    in_flight_hits,
    some_settings,
    stored_hits,
    used_hits,
)

Pair = tuple[Limiter, Limiter]

HORIZON_S = 66  # how long a frame of a window of 60 s matters
SLACK_S = 60  # how far the clocks of two servers may differ
ROUNDS = 4  # writes of a key in one cycle


@pytest.fixture
def pair(faulty: FaultyStore, clock: Clock) -> Pair:
    """An instance whose store fails, and one whose does not."""
    return a_limiter(faulty, clock), a_limiter(faulty.inner, clock)


@pytest.mark.parametrize("is_first", (True, False), ids=("first write", "later write"))
@pytest.mark.parametrize(("after_s", "dropped"), ((HORIZON_S, 0), (HORIZON_S + 1, 10)), ids=("in time", "too late"))
def test_hits_of_an_unanswered_write_are_sent_again_as_long_as_a_window_may_hold_them(
    pair: Pair, faulty: FaultyStore, clock: Clock, is_first: bool, after_s: int, dropped: int
) -> None:
    here, there = pair
    if not is_first:
        hit(here)
    faulty.faults.append(Fault.LOST_REQUEST)
    hit(here, cost=10)
    hit(there)
    clock.advance(after_s)
    assert dropped == here.sync().dropped_hits
    assert ((not is_first) + 1 + 10 - dropped, 0) == (stored_hits(faulty.inner), in_flight_hits(here))


@pytest.mark.parametrize("user_window_s", (60, 600))
def test_write_whose_mark_is_gone_is_not_repeated_for_a_wider_window(
    pair: Pair, faulty: FaultyStore, clock: Clock, user_window_s: int
) -> None:
    """The document had a short horizon when others removed the mark. That it has a long one now proves nothing.

    Nor does a wider window for users, who have documents of their own.
    """
    here, there = pair
    here.reconfigure(some_settings(a_policy(window_s=60), user=(a_policy(window_s=user_window_s),)))
    there.reconfigure(some_settings(a_policy(5000)))  # near it, so that the mark is removed soon
    faulty.faults.append(Fault.LOST_REPLY)
    hit(here, cost=10)
    clock.advance(60 + SLACK_S + 12)
    hit(there, cost=700)
    clock.advance(2)
    hit(there)
    assert 1 == len(faulty.inner.read([KEY])[KEY].writers)
    hit(a_limiter(faulty.inner, clock, a_policy(1000, 600, frames=100)))
    before = stored_hits(faulty.inner)
    assert 10 == here.sync().dropped_hits
    assert (before, {}) == (stored_hits(faulty.inner), in_flight(here))


def test_contested_key_is_tried_a_bounded_number_of_times(pair: Pair, faulty: FaultyStore) -> None:
    here, there = pair
    for limiter in pair:
        limiter.reconfigure(some_settings(a_policy(5000)))  # far from a limit nothing is contested
    hit(here, cost=691)
    faulty.before_write = lambda: hit(there, cost=100)
    here.check(CLIENT, cost=10)
    faulty.calls.clear()
    report = here.sync()
    assert (0, ROUNDS, ROUNDS) == (report.flushed_count, report.conflict_count, report.round_count)
    assert [("write", 1), ("read", 1)] * ROUNDS == faulty.calls
    assert 10 == in_flight_hits(here)
    assert 701 + ROUNDS * 100 == used_hits(here)
    faulty.before_write = lambda: None
    here.sync()
    assert (701 + ROUNDS * 100, 0) == (stored_hits(faulty.inner), in_flight_hits(here))
