"""Decisions about requests."""

import gc
import math

import pytest

from oauth_ratelimit.core.decision import Admission, FullDecision, whole_seconds
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import Window

NOW_S = 1_200_000_000.0  # a minute begins
POLICY = Policy("user", 10, Window(60, 10))
WIDE = Policy("wide", 12, Window(600, 10))


def a_tier(policy: Policy = POLICY) -> Tier:
    """Return an enforced tier."""
    return Tier(policy, Mode.ENFORCE)


def test_decision_without_a_policy_has_no_figures() -> None:
    """The properties of the policy are None."""
    decision = FullDecision(True, False, Mode.DRY_RUN)
    assert (None, None, None) == (decision.policy, decision.limit, decision.window_s)
    assert (0, 0.0, 0.0, False) == (
        decision.remaining,
        decision.reset_after_s,
        decision.retry_after_s,
        decision.trusted,
    )
    assert [] == list(decision.used_hits())


def test_decision_names_its_policy() -> None:
    """It has the policy's name, limit and window."""
    decision = FullDecision(True, False, Mode.ENFORCE, rule=POLICY, remaining=3)
    assert ("user", 10, 60) == (decision.policy, decision.limit, decision.window_s)
    assert [(POLICY, 7.0)] == list(decision.used_hits())
    assert "policy='user' remaining=3" in repr(decision)


@pytest.mark.parametrize(
    ("seconds", "at_least", "expected"),
    ((0.0, 0, 0), (0.001, 0, 1), (1.0, 0, 1), (1.002, 0, 2), (0.0, 1, 1), (math.inf, 0, 0), (math.inf, 1, 1)),
)
def test_delay_is_rounded_up_to_whole_seconds(seconds: float, at_least: int, expected: int) -> None:
    """Delays are rounded up; one that never ends is as good as none."""
    assert expected == whole_seconds(seconds, at_least=at_least)


def test_admission_computes_its_figures_as_of_the_request() -> None:
    """They are rounded in favour of the limit."""
    decision = Admission(a_tier(), 4, 2, NOW_S + 6, NOW_S + 1.5)
    assert (True, False, False, 0.0) == (
        decision.allowed,
        decision.would_deny,
        decision.trusted,
        decision.retry_after_s,
    )
    assert (Mode.ENFORCE, "user", 10, 60) == (decision.mode, decision.policy, decision.limit, decision.window_s)
    assert math.floor(10 - (4 + 2 * 4.5 / 6)) == decision.remaining
    assert 64.5 == decision.reset_after_s
    assert [(POLICY, 5.5)] == list(decision.used_hits())
    assert "allowed=True" in repr(decision)


def test_admission_after_the_clock_stepped_back_reports_at_most_a_frame_more() -> None:
    """No figure is larger than it can be."""
    decision = Admission(a_tier(), 4, 2, NOW_S + 6, NOW_S - 3600)
    assert (4, 66.0) == (decision.remaining, decision.reset_after_s)


@pytest.mark.parametrize(
    ("edge", "now_s", "expected"),
    [(0, NOW_S, (6, 66.0)), (2, NOW_S + 1.5, (4, 64.5)), (0, NOW_S - 3600, (6, 66.0)), (2, NOW_S - 3600, (4, 66.0))],
)
def test_quota_has_the_figures_of_the_decision(edge: int, now_s: float, expected: tuple[int, float]) -> None:
    """Headers say what the properties say, with hits of an older frame and without."""
    decision = Admission(a_tier(), 4, edge, NOW_S + 6, now_s)
    assert (POLICY, *expected) == decision.enforced_quota()
    assert expected == (decision.remaining, decision.reset_after_s)


def test_decision_is_freed_without_the_garbage_collector() -> None:
    """There is one for each request, and a collection looks at all keys."""
    gc.collect()
    decision = Admission(a_tier(), 4, 0, NOW_S + 6, NOW_S)
    assert ("user", 6, 66.0) == (decision.policy, decision.remaining, decision.reset_after_s)
    del decision
    assert not gc.collect()


@pytest.mark.parametrize("is_wide_first", [True, False])
def test_admission_by_several_tiers_describes_the_one_with_least_left(is_wide_first: bool) -> None:
    """The order of the tiers does not matter, and the use of each is known."""
    narrow = Admission(a_tier(), 4, 0, NOW_S + 6, NOW_S)
    wide = Admission(a_tier(WIDE), 7, 0, NOW_S + 60, NOW_S)
    decision, other = (wide, narrow) if is_wide_first else (narrow, wide)
    decision.also = other
    assert ("wide", 5, 660.0) == (decision.policy, decision.remaining, decision.reset_after_s)
    assert (Mode.ENFORCE, True, 0.0) == (decision.mode, decision.allowed, decision.retry_after_s)
    assert {POLICY: 4.0, WIDE: 7.0} == dict(decision.used_hits())
