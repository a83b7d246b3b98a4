"""Tiers and the series that they count in."""

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Series, tiers_of
from oauth_ratelimit.core.window import Window

POLICY = Policy("user", 10, Window(60, 10))


def test_widest_tier_comes_first_and_policies_that_are_off_are_left_out() -> None:
    policies = (POLICY, Policy("off", 1, Window(1, 1), mode=Mode.OFF), Policy("wide", 12, Window(600, 10)))
    tiers = tiers_of(policies, Mode.ENFORCE)
    assert [("wide", Series(60)), ("user", Series(6))] == [(tier.policy.name, tier.series) for tier in tiers]


def test_tiers_that_count_other_requests_have_another_series() -> None:
    angry = Policy("angry", 1, Window(60, 10), count_denied=True)
    trial = Policy("trial", 1, Window(60, 10), mode=Mode.DRY_RUN)
    both = Policy("both", 1, Window(60, 10), count_denied=True, mode=Mode.DRY_RUN)
    assert {
        "user": Series(6),
        "angry": Series(6, count_denied=True),
        "trial": Series(6, on_trial=True),
        "both": Series(6, count_denied=True, on_trial=True),
    } == {tier.policy.name: tier.series for tier in tiers_of((POLICY, angry, trial, both), Mode.ENFORCE)}
    assert [Series(6)] == [tier.series for tier in tiers_of((trial,), Mode.DRY_RUN)]
