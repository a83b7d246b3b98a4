"""New limits, modes and trusted clients while requests come."""

import pytest

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, a_limiter, a_policy, in_flight_hits, some_settings


def test_denial_ends_with_a_raise_and_begins_with_a_lower_limit(clock: Clock) -> None:
    limiter = a_limiter(None, clock, a_policy(2))
    admitted = []
    for limit in (2, 2, 3, 1000, 20, 1000):
        limiter.reconfigure(some_settings(a_policy(limit)))
        admitted.append([limiter.check(CLIENT).allowed for _ in range(4 if limit < 20 else 20)])
    assert [2, 0, 1, 20, 0, 20] == list(map(sum, admitted))


CHANGES = {
    "fewer frames": (a_policy(100, 60, frames=1), 0),
    "more frames": (a_policy(100, 60, frames=60), 0),
    "wider": (a_policy(100, 120), 0),
    "narrower": (a_policy(100, 10), 0),
    "denied requests count": (a_policy(100, 60)._replace(count_denied=True), 0),
    "equal": (a_policy(100, 60), 30),
    "wider, same frames": (a_policy(100, 120, frames=20), 30),
    "narrower, same frames": (a_policy(100, 30, frames=5), 30),
    "another estimator": (a_policy(100, 60)._replace(estimator=Estimator.PROPORTIONAL), 30),
}


@pytest.mark.parametrize(("policy", "used"), CHANGES.values(), ids=CHANGES)
def test_frames_of_the_same_length_keep_their_counts_and_others_start_at_zero(
    clock: Clock, policy: Policy, used: int
) -> None:
    limiter = a_limiter(None, clock, a_policy(100, 60))
    for _ in range(3):
        limiter.check(CLIENT, cost=10)
        clock.advance(6)
    limiter.reconfigure(some_settings(policy))
    assert 100 - used == limiter.peek(CLIENT).remaining


def test_added_tier_starts_at_zero_and_others_keep_counts(clock: Clock) -> None:
    first, second = a_policy(10, 60), a_policy(7, 600, name="wide")
    limiter = a_limiter(None, clock, first)
    limiter.check(CLIENT, cost=5)
    limiter.reconfigure(some_settings(first, second))
    assert ("client", 5) == (limiter.peek(CLIENT).policy, limiter.peek(CLIENT).remaining)
    limiter.check(CLIENT)
    limiter.reconfigure(some_settings(first))
    assert 4 == limiter.peek(CLIENT).remaining


@pytest.mark.parametrize("user", (None, ()), ids=("users limited", "users not limited"))
def test_total_applies_and_ends_with_the_next_request(clock: Clock, user: tuple[Policy, ...] | None) -> None:
    def settings(*total: Policy) -> Settings:
        return some_settings(a_policy(), user=user, total=total)

    limiter = Limiter(settings(), clock=clock, monotonic=clock)
    assert limiter.check(CLIENT, "kim").allowed
    limiter.reconfigure(settings(a_policy(1, name="total")))
    admitted = [limiter.check(CLIENT, name).allowed for name in ("kim", "lee", "lee")]
    assert [True, False, False] == admitted
    limiter.reconfigure(settings(a_policy(2, name="total")))
    assert [True, False] == [limiter.check(CLIENT, name).allowed for name in ("lee", "kim")]
    limiter.reconfigure(settings())
    decisions = [limiter.check(CLIENT, name) for name in ("lee", "kim")]
    assert [True, True] == [decision.allowed for decision in decisions]
    assert all(decision.remaining >= 0 and decision.policy != "total" for decision in decisions)


def test_counts_go_on_when_the_mode_changes(clock: Clock) -> None:
    policy = a_policy(2)
    limiter = Limiter(some_settings(policy, mode=Mode.DRY_RUN), MemoryStore(clock), clock=clock, monotonic=clock)
    allowed = []
    for mode in (Mode.DRY_RUN, Mode.ENFORCE, Mode.DRY_RUN, Mode.OFF, Mode.ENFORCE):
        limiter.reconfigure(some_settings(policy, mode=mode))
        decisions = [limiter.check(CLIENT) for _ in range(3)]
        allowed.append([decision.allowed for decision in decisions])
        assert {mode} == {decision.mode for decision in decisions}
    assert [[True] * 3, [False] * 3, [True] * 3, [True] * 3, [False] * 3] == allowed
    assert 2 == in_flight_hits(limiter)
