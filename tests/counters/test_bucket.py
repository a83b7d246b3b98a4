"""Buckets: what one instance has counted, on top of what it was told."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import ClientPolicies, Limits, Policy
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.counters.bucket import AHEAD_S, Bucket
from oauth_ratelimit.counters.client_scope import Peers
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from tests.support.reference import exact_estimate

START_S = 1_200_000_000  # where a minute begins


def a_bucket(
    window: Window, now_s: float = START_S, *, estimator: Estimator = Estimator.SLIDING, limit: int = 1000
) -> Bucket:
    """Return the bucket of a client's only policy."""
    policies = ClientPolicies(Limits(client=(Policy("client", limit, window, estimator),)), Mode.ENFORCE)
    queue = DirtyQueue(is_shared=True)
    client = ClientState("app", policies, now_s, configured_id="app", dirty_queue=queue, peers=Peers())
    return client.add_key(None, now_s)


def test_drain_takes_each_hit_once_by_frame() -> None:
    """Hits since the last time are taken once, by frame."""
    bucket = a_bucket(Window(60, 10))
    bucket.add(2)
    assert {START_S: 2} == bucket.drain()
    assert not bucket.drain()
    bucket.add(3)
    bucket.turn(START_S + 6)
    bucket.add(4)
    bucket.turn(START_S + 13)
    bucket.add(5)
    assert {START_S: 3, START_S + 6: 4, START_S + 12: 5} == bucket.drain()
    assert not bucket.drain()
    assert 14 == bucket.estimate(START_S + 13)


def test_clock_that_steps_back_two_frames_and_forward_again_keeps_hits() -> None:
    """Hits of a frame that is counted in twice are added up."""
    bucket = a_bucket(Window(60, 10))
    bucket.add(2)
    bucket.turn(START_S + 12)
    bucket.turn(START_S)
    bucket.add(3)
    bucket.turn(START_S + 12)
    assert {START_S: 5} == bucket.drain()


def test_load_keeps_hits_in_flight_and_fresh_ones() -> None:
    """Hits in flight are laid on top of a snapshot that lacks them, and those not yet taken stay."""
    bucket = a_bucket(Window(60, 10))
    bucket.add(1)
    taken = bucket.drain()
    assert taken is not None
    bucket.add(2)
    bucket.load(START_S, {START_S: 40, START_S - 6: 500}, taken)
    assert 543 == bucket.estimate(START_S)
    assert {START_S: 2} == bucket.drain()


def test_load_keeps_hits_of_a_frame_that_ended_before_a_flush() -> None:
    """Hits of a frame that ended before anything took them are neither lost nor doubled by a snapshot."""
    bucket = a_bucket(Window(60, 10))
    bucket.add(1)
    bucket.turn(START_S + 6)
    bucket.add(2)
    for _ in range(3):
        bucket.load(START_S + 7, {START_S: 10, START_S + 6: 20})
        assert 33 == bucket.estimate(START_S + 7)
    assert {START_S: 1, START_S + 6: 2} == bucket.drain()


def test_frames_of_a_clock_that_is_ahead_count_now_or_when_they_begin() -> None:
    """Frames that begin a little later count as the current one; those far ahead count when they begin."""
    bucket = a_bucket(Window(10, 10))
    far_s = START_S + AHEAD_S + 1
    bucket.load(START_S, {START_S + 1: 1, START_S + AHEAD_S: 2, far_s: 40})
    assert 3 == bucket.estimate(START_S)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("hit"), st.integers(1, 3)),
        st.tuples(st.just("pass"), st.sampled_from((0, 1, 2, 5, 30))),
        st.tuples(st.just("send"), st.just(0)),
        st.tuples(st.just("merge"), st.just(0)),
        st.tuples(st.just("elsewhere"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(
    events=EVENTS,
    window=st.sampled_from((Window(4, 1), Window(6, 3), Window(6, 6))),
    estimator=st.sampled_from(Estimator),
)
def test_any_order_of_counting_draining_and_loading_keeps_the_estimate(
    events: list[tuple[str, int]], window: Window, estimator: Estimator
) -> None:
    """Over any mix of counting, taking and merging, the estimate is that of the hits known, and each is sent once."""
    bucket = a_bucket(window, estimator=estimator)
    now_s = START_S
    own: Counter[int] = Counter()  # by frame
    sent: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    known: Counter[int] = Counter()
    for event, amount in events:
        start_s = window.frame_start_s(now_s)
        if event == "hit":
            bucket.left_s(now_s)
            bucket.add(amount)
            own[start_s] += amount
            known[start_s] += amount
        elif event == "pass":
            now_s += amount
        elif event == "elsewhere":
            stored[start_s] += amount
        else:
            taken = Counter(bucket.drain() or {})
            sent += taken
            if event == "send":
                stored += taken
                bucket.load(now_s, stored)
            else:
                bucket.load(now_s, stored, taken)  # the send failed, and is tried again at once
                stored += taken
            known = stored.copy()
    assert exact_estimate(known, window, now_s=now_s, estimator=estimator) == bucket.estimate(now_s)
    sent += Counter(bucket.drain() or {})
    assert own == sent


@pytest.mark.parametrize(("used", "peers", "expected"), [(100, 1, 10), (100, 4, 10), (1980, 4, 5), (2000, 4, 1)])
def test_small_part_of_the_limit_or_of_what_is_left_is_used_before_the_alert(
    used: int, peers: int, expected: int
) -> None:
    """An instance stops taking the short cut when its unsent hits matter to others."""
    bucket = a_bucket(Window(60, 10), limit=2000)
    bucket.add(used)
    bucket.drain()
    bucket.watch(START_S, peers=peers, reserves=False)
    assert (used + expected, used + expected - 1) == (bucket.alert, bucket.ceiling)


def test_alert_moves_with_the_frames() -> None:
    """Hits that fade out of the window do not count as used."""
    bucket = a_bucket(Window(60, 10), limit=2000)
    bucket.add(20)
    bucket.drain()
    bucket.watch(START_S, peers=4, reserves=False)
    bucket.turn(START_S + 120)
    assert (10, 9) == (bucket.alert, bucket.ceiling)
