"""New limits, modes and trusted clients while requests come."""

import threading
from dataclasses import replace

import pytest

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.counters.key_state import Counts
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_limiter, a_policy, some_settings, stored_hits


def used(limiter: Limiter, policy: Policy) -> int:
    """Return how much of a policy's limit is used up, after taking the policy over."""
    limiter.reconfigure(some_settings(policy))
    decision = limiter.peek(CLIENT)
    assert decision.limit is not None
    return decision.limit - decision.remaining


@pytest.mark.parametrize("limit", (4, 5, 6, 1000), ids=("below", "equal", "above", "far above"))
def test_changed_limit_applies_at_once(clock: Clock, limit: int) -> None:
    """Another amount holds at once, for what was counted before it, too."""
    limiter = a_limiter(None, clock, a_policy(10, 60))
    for seconds in range(5):
        limiter.check(CLIENT)
        clock.advance(seconds)
    limiter.reconfigure(some_settings(a_policy(limit, 60)))
    decision = limiter.check(CLIENT)
    assert (limit > 5, max(0, limit - 6)) == (decision.allowed, decision.remaining)
    assert Counts(0, 5 + decision.allowed) == limiter.counts(CLIENT)


def test_denied_client_is_admitted_after_a_raise(clock: Clock) -> None:
    """A denied client is admitted with the first request under a higher limit."""
    limiter = a_limiter(None, clock, a_policy(1))
    assert [True, False, False] == [limiter.check(CLIENT).allowed for _ in range(3)]
    limiter.reconfigure(some_settings(a_policy(2)))
    assert [True, False] == [limiter.check(CLIENT).allowed for _ in range(2)]


def test_client_over_a_lowered_limit_is_denied(clock: Clock) -> None:
    """A client far from a limit is denied with the first request over a lower one."""
    limiter = a_limiter(None, clock, a_policy(1000))
    for _ in range(20):
        limiter.check(CLIENT)
    limiter.reconfigure(some_settings(a_policy(20)))
    assert not limiter.check(CLIENT).allowed


OTHER_SERIES = {
    "fewer frames": a_policy(100, 60, frames=1),
    "more frames": a_policy(100, 60, frames=60),
    "wider": a_policy(100, 120),
    "narrower": a_policy(100, 10),
    "denied requests count": replace(a_policy(100, 60), count_denied=True),
}
SAME_SERIES = {
    "equal": a_policy(100, 60),
    "wider": a_policy(100, 120, frames=20),
    "narrower": a_policy(100, 30, frames=5),
    "another estimator": replace(a_policy(100, 60), estimator=Estimator.PROPORTIONAL),
}


@pytest.mark.parametrize("policy", OTHER_SERIES.values(), ids=OTHER_SERIES)
def test_other_frame_length_starts_at_zero(clock: Clock, policy: Policy) -> None:
    """Hits in frames of another length do not count."""
    limiter = a_limiter(None, clock, a_policy(100, 60))
    limiter.check(CLIENT, cost=30)
    assert 0 == used(limiter, policy)


@pytest.mark.parametrize("policy", SAME_SERIES.values(), ids=SAME_SERIES)
def test_same_frame_length_keeps_its_counts(clock: Clock, policy: Policy) -> None:
    """A window with the same frames starts from what is known."""
    limiter = a_limiter(None, clock, a_policy(100, 60))
    for _ in range(3):
        limiter.check(CLIENT, cost=10)
        clock.advance(6)
    assert 30 == used(limiter, policy)


def test_limit_on_trial_that_is_enforced_starts_at_zero(clock: Clock) -> None:
    """Beside enforced limits a dry run counts other requests than they do, so its counts are not theirs."""
    first, trial = a_policy(100, 60), a_policy(100, 600, name="wide")
    limiter = a_limiter(None, clock, first, replace(trial, mode=Mode.DRY_RUN))
    limiter.check(CLIENT, cost=30)
    limiter.reconfigure(some_settings(first, replace(trial, limit=40)))
    assert [True, False] == [limiter.check(CLIENT, cost=cost).allowed for cost in (40, 1)]


def test_added_tier_starts_at_zero_and_others_keep_counts(clock: Clock) -> None:
    """A further tier starts at zero; the others keep their counts."""
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
    """A limit on all users together takes effect and loses it with the next request."""

    def settings(*total: Policy) -> Settings:
        return some_settings(a_policy(), user=user, total=total)

    limiter = Limiter(settings(), clock=clock)
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


def test_counts_of_a_user_survive_two_changes_without_a_request(clock: Clock) -> None:
    """Counts of users who did not ask between two changes of a limit are still found after the second."""
    limiter = a_limiter(None, clock, a_policy(2))
    for user in ("alice", "bob"):
        limiter.check(CLIENT, user)
    for amount in (5, 7):
        limiter.reconfigure(some_settings(a_policy(amount)))
        limiter.check(CLIENT, "alice")

    assert (7 - 3 - 1, 7 - 1 - 1) == tuple(limiter.check(CLIENT, user).remaining for user in ("alice", "bob"))


def test_counts_go_on_when_the_mode_changes(clock: Clock) -> None:
    """From dry run to enforce and back, the counters go on."""
    policy = a_policy(2)
    limiter = Limiter(some_settings(policy, mode=Mode.DRY_RUN), clock=clock)
    allowed = []
    for mode in (Mode.DRY_RUN, Mode.ENFORCE, Mode.DRY_RUN, Mode.OFF, Mode.ENFORCE):
        limiter.reconfigure(some_settings(policy, mode=mode))
        decisions = [limiter.check(CLIENT) for _ in range(3)]
        allowed.append([decision.allowed for decision in decisions])
        assert {mode} == {decision.mode for decision in decisions}
    assert [[True] * 3, [False] * 3, [True] * 3, [True] * 3, [False] * 3] == allowed
    assert Counts(0, 2) == limiter.counts(CLIENT)


def test_trust_starts_and_ends_with_the_next_request(clock: Clock) -> None:
    """Trust holds from the next request on, and so does its end."""
    limiter = a_limiter(None, clock, a_policy(1))
    assert [True, False] == [limiter.check(CLIENT).allowed for _ in range(2)]
    limiter.reconfigure(some_settings(a_policy(1), trusted=(CLIENT,)))
    assert all(limiter.check(CLIENT).trusted for _ in range(5))
    limiter.reconfigure(some_settings(a_policy(1)))
    assert not limiter.check(CLIENT).allowed


def test_equal_settings_change_nothing(clock: Clock) -> None:
    """Settings that say the same change nothing, however often they are taken over."""
    limiter = a_limiter(None, clock, a_policy(10))
    for _ in range(10):
        assert limiter.check(CLIENT).allowed
        limiter.reconfigure(some_settings(a_policy(10)))
        clock.advance(1)
    assert not limiter.check(CLIENT).allowed


def test_reload_under_load_loses_no_hit(clock: Clock) -> None:
    """No hit is lost or doubled while limits change and cycles run."""
    store = MemoryStore()
    limiter = a_limiter(store, clock, a_policy(window_s=60))
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for window_s in (60, 600):
                limiter.reconfigure(some_settings(a_policy(window_s=window_s)))
                limiter.sync()

    changing = threading.Thread(target=change)
    changing.start()
    requests = [threading.Thread(target=lambda: [limiter.check(CLIENT) for _ in range(3000)]) for _ in range(2)]
    for thread in requests:
        thread.start()
    for thread in requests:
        thread.join()
    done.set()
    changing.join()
    limiter.sync()
    assert 6000 == stored_hits(store)
    limiter.close()
