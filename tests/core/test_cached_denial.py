"""Denials that are repeated without computing them again."""

import pytest

from oauth_ratelimit.core.cached_denial import CachedDenial, SuppressionPeriod
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Window

NOW_S = 1_200_000_000.0
POLICY = Policy("user", 10, Window(60, 10))


def test_repeated_denial_counts_its_delays_from_its_own_request() -> None:
    """It says what the first one said, with the time that is left and a name of its own."""
    first = FullDecision(
        False, True, Mode.ENFORCE, rule=POLICY, remaining=0, reset_after_s=66.0, retry_after_s=31.0, decision_id="a0"
    )
    cached_denial = CachedDenial(first, NOW_S, NOW_S + 30.998)
    cached_denial.suppress(SuppressionPeriod(NOW_S, NOW_S + 60, 0xA0, 1))
    decision = cached_denial.repeat(NOW_S + 0.25)
    assert (False, True, "user", 0) == (decision.allowed, decision.would_deny, decision.policy, decision.remaining)
    assert (30.75, 65.75) == (decision.retry_after_s, decision.reset_after_s)
    assert (f"{0xA2:016x}", True) == (decision.decision_id, decision.is_repeat)


@pytest.mark.parametrize(("suppressed_s", "until_s"), ((60, 30.998), (10, 10)))
def test_denial_is_repeated_until_it_ends_or_the_next_event_is_due(suppressed_s: int, until_s: float) -> None:
    """Before it was reported it is not repeated."""
    cached_denial = CachedDenial(FullDecision(False, True, Mode.ENFORCE), NOW_S, NOW_S + 30.998)
    assert NOW_S == cached_denial.until_s
    cached_denial.suppress(SuppressionPeriod(NOW_S, NOW_S + suppressed_s, 0))
    assert NOW_S + until_s == cached_denial.until_s
