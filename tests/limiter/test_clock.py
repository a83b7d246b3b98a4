"""A clock that does not only go forward evenly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator, Window
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, a_limiter, a_policy, some_settings, stored_hits

LIMIT, WINDOW_S, FRAME_S = 5, 60, 6
POLICY = a_policy(LIMIT, WINDOW_S)
STEPS = {"one second": 1.0, "one frame": float(FRAME_S), "two frames": 2.0 * FRAME_S, "one hour": 3600.0}


@pytest.mark.parametrize("step_s", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("before", (LIMIT - 2, LIMIT, LIMIT + 1), ids=("below the limit", "at the limit", "denied"))
def test_step_back_keeps_counts_for_at_most_a_window(clock: Clock, step_s: float, before: int) -> None:
    limiter = a_limiter(None, clock, POLICY)
    clock.advance(3.5)
    for _ in range(before):
        limiter.check(CLIENT)
    clock.advance(-step_s)
    for _ in range(LIMIT - before):
        assert limiter.check(CLIENT).allowed
    decision = limiter.check(CLIENT)
    assert (False, 0) == (decision.allowed, decision.remaining)
    assert 0 < decision.retry_after_s <= WINDOW_S + 2 * FRAME_S
    assert 0 < decision.reset_after_s <= WINDOW_S + 2 * FRAME_S
    clock.advance(WINDOW_S + 2 * FRAME_S)
    assert limiter.check(CLIENT).allowed


@pytest.mark.parametrize("now_s", [0.0, 5.5, -5.5])
def test_clock_at_the_epoch_limits_as_any_other(now_s: float) -> None:
    limiter = a_limiter(None, Clock(now_s), POLICY)
    assert [True] * LIMIT + [False] == [limiter.check(CLIENT).allowed for _ in range(LIMIT + 1)]


@pytest.mark.parametrize("estimator", Estimator)
@pytest.mark.parametrize("step_s", (0.5, 1.0, 4.0, 6.0))
def test_retry_after_is_tight_after_a_step_into_the_frame_before(
    clock: Clock, step_s: float, estimator: Estimator
) -> None:
    """Hits of a frame that has not begun wait for it: the delay is tight on the clock that was set back, with one limit
    and with two.
    """
    first = POLICY._replace(estimator=estimator)
    second = Policy("wider", LIMIT + 1, Window(2 * WINDOW_S, 10), estimator)
    for policies in ((first,), (second, first)):
        limiter = a_limiter(None, clock, *policies)
        for _ in range(2 * LIMIT):
            clock.advance(FRAME_S / 3)
            limiter.check(CLIENT)
        clock.advance(2 * FRAME_S - clock.now_s % FRAME_S)
        limiter.peek(CLIENT)
        clock.advance(-step_s)

        decision = limiter.peek(CLIENT)
        clock.advance(decision.retry_after_s - 0.01)
        too_early = limiter.peek(CLIENT)
        clock.advance(0.01)

        assert (False, False, True) == (decision.allowed, too_early.allowed, limiter.peek(CLIENT).allowed)


@given(
    steps=st.lists(
        st.tuples(st.one_of(st.floats(-20, 20), st.sampled_from((0.0, -3600.0, 3600.0))), st.booleans()), max_size=60
    ),
    estimator=st.sampled_from(Estimator),
    frames=st.sampled_from((1, 2, 3)),
)
def test_any_clock_keeps_figures_in_bounds_and_hits_stored_once(
    steps: list[tuple[float, bool]], estimator: Estimator, frames: int
) -> None:
    clock, store, window_s = Clock(), MemoryStore(), 6
    policy = Policy("client", LIMIT, Window(window_s, frames), estimator)
    limiter = Limiter(some_settings(policy), store, clock=clock)
    admitted = dropped = 0
    for step_s, syncs in steps:
        clock.advance(step_s)
        if syncs:
            dropped += limiter.sync().dropped_hits
        decision = limiter.check(CLIENT)
        admitted += decision.allowed
        assert 0 <= decision.remaining <= LIMIT
        assert 0 <= decision.retry_after_s <= window_s + 2 * policy.window.frame_s
        assert 0 <= decision.reset_after_s <= window_s + 2 * policy.window.frame_s
    dropped += limiter.sync().dropped_hits
    assert admitted - dropped >= stored_hits(store)
    limiter.close()
