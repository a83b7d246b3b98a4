"""Decisions about requests."""

import gc
import math
from typing import Any

import pytest

from oauth_ratelimit.core.decision import Decision, LimitDenial, whole_seconds
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Content, Tier
from oauth_ratelimit.core.window import Window

NOW_S = 1_200_000_000.0  # a minute begins
POLICY = Policy("user", 10, Window(60, 10))
WIDE = Policy("wide", 12, Window(600, 10))
ENFORCED, ENFORCED_WIDE = Tier(POLICY, Mode.ENFORCE), Tier(WIDE, Mode.ENFORCE)


def content(tier: Tier, count: int, *, fading: int = 0, passed_s: float = 0.0) -> Content:
    """Return what a window holds, with hits of this frame and of the one that begins to leave it."""
    oldest_s = int(NOW_S) - tier.policy.window.window_s
    return tier.content({int(NOW_S): count, oldest_s: fading}, NOW_S + passed_s)


def test_admission_describes_its_policy_as_of_the_request() -> None:
    """What is left is rounded in favour of the limit."""
    counted = content(ENFORCED, 4, fading=2, passed_s=1.5)
    decision = Decision(Mode.ENFORCE, NOW_S + 1.5, (ENFORCED,), (counted,))
    assert (True, False, Mode.ENFORCE) == (decision.allowed, decision.would_deny, decision.mode)
    assert (10, 60) == (decision.limit, decision.window_s)
    assert ("user", 4, 64.5) == (decision.policy, decision.remaining, decision.reset_after_s)
    assert (POLICY, False, 4, pytest.approx(1.5, abs=2e-6), 64.5) == decision.enforced_quota()
    assert 5.5 == decision.tightest()[1].estimate
    assert "policy='user' remaining=4" in repr(decision)


@pytest.mark.parametrize("tiers", [(ENFORCED, ENFORCED_WIDE), (ENFORCED_WIDE, ENFORCED)])
def test_admission_by_several_tiers_describes_the_one_with_least_left(tiers: tuple[Tier, ...]) -> None:
    """The order of the tiers does not matter."""
    used = {POLICY: 4, WIDE: 7}
    decision = Decision(Mode.ENFORCE, NOW_S, tiers, tuple(content(tier, used[tier.policy]) for tier in tiers))
    assert ("wide", 5, 660.0) == (decision.policy, decision.remaining, decision.reset_after_s)
    assert (WIDE, False, 5, pytest.approx(608.571429), 660.0) == decision.enforced_quota()
    assert ENFORCED_WIDE is decision.tightest()[0]


@pytest.mark.parametrize(
    ("mode", "allowed", "quota"),
    [(Mode.ENFORCE, False, (WIDE, False, 0, 30.75, 30.75)), (Mode.DRY_RUN, True, (POLICY, False, 6, 61.0, 65.5))],
)
def test_denial_has_the_figures_of_its_limit(mode: Mode, allowed: bool, quota: tuple[Any, ...]) -> None:
    """A dry run is admitted all the same, with the quota of a limit that is enforced."""
    denial = LimitDenial(WIDE, mode, mode is Mode.ENFORCE, 0, retry_after_s=30.75, reset_after_s=60.5)
    tiers = Tier(WIDE, mode), ENFORCED
    counted = content(tiers[0], 12, passed_s=0.5), content(ENFORCED, 4, passed_s=0.5)
    decision = Decision(Mode.ENFORCE, NOW_S + 0.5, tiers, counted, denial)
    assert (allowed, True, mode) == (decision.allowed, decision.would_deny, decision.mode)
    assert 30.75 == decision.retry_after_s
    assert ("wide", 0, 60.5) == (decision.policy, decision.remaining, decision.reset_after_s)
    assert quota == decision.enforced_quota()


def test_decision_is_freed_without_the_garbage_collector() -> None:
    """There is one for each request, and a collection looks at all keys."""

    def count() -> int:
        return sum(type(each) is Decision for each in gc.get_objects())

    former_count = count()
    decision = Decision(Mode.ENFORCE, NOW_S, (ENFORCED,), (content(ENFORCED, 4),))
    assert ("user", 6, 66.0) == (decision.policy, decision.remaining, decision.reset_after_s)
    assert former_count + 1 == count()
    del decision
    assert former_count == count()


@pytest.mark.parametrize(
    ("seconds", "at_least", "expected"),
    ((0.0, 0, 0), (0.001, 0, 1), (1.0, 0, 1), (1.002, 0, 2), (0.0, 1, 1), (math.inf, 0, 0), (math.inf, 1, 1)),
)
def test_delay_is_rounded_up_to_whole_seconds(seconds: float, at_least: int, expected: int) -> None:
    assert expected == whole_seconds(seconds, at_least=at_least)
