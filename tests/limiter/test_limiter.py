"""``Limiter`` as its user sees it: deciding, counting, forgetting."""

from collections.abc import Callable
from cProfile import Profile
from operator import attrgetter

from hypothesis import example, given
from hypothesis import strategies as st

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.decision import whole_seconds
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator, Window
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import (
    CLIENT,
    a_limiter,
    a_policy,
    in_flight,
    in_flight_hits,
    known_keys,
    limiter_of,
    some_settings,
)

TRIPLE = a_policy(3, 60)


figures = attrgetter(
    *("allowed", "would_deny", "mode", "policy", "limit", "window_s", "remaining", "reset_after_s", "retry_after_s")
)


def test_requests_are_admitted_up_to_the_limit_then_denied_with_a_delay(clock: Clock) -> None:
    limiter = a_limiter(None, clock, TRIPLE)
    clock.now_s = 1_200_000_000.0  # where a minute begins
    assert [
        (True, False, Mode.ENFORCE, "client", 3, 60, 2, 66.0, 0.0),
        (True, False, Mode.ENFORCE, "client", 3, 60, 1, 66.0, 0.0),
        (True, False, Mode.ENFORCE, "client", 3, 60, 0, 66.0, 0.0),
        (False, True, Mode.ENFORCE, "client", 3, 60, 0, 66.0, 62.0),
        (False, True, Mode.ENFORCE, "client", 3, 60, 0, 66.0, 62.0),
    ] == [figures(limiter.check(CLIENT)) for _ in range(5)]
    clock.advance(61)
    assert (False, 1.0) == (limiter.check(CLIENT).allowed, limiter.check(CLIENT).retry_after_s)
    clock.advance(1)
    assert limiter.check(CLIENT).allowed
    assert not limiter.check(CLIENT).allowed


@given(
    gaps_s=st.lists(st.integers(0, 40).map(lambda eighths: eighths / 8), min_size=1, max_size=30),
    estimator=st.sampled_from(Estimator),
    frames=st.sampled_from((1, 5, 10)),
)
@example(gaps_s=[0.0, 14.0], estimator=Estimator.SLIDING, frames=1)  # a delay of whole seconds
def test_quota_says_when_one_more_request_fits(gaps_s: list[float], estimator: Estimator, frames: int) -> None:
    """That is when a request of one more than what is left would be admitted."""
    clock = Clock()
    limiter = a_limiter(None, clock, Policy("client", 100, Window(10, frames), estimator))
    for gap_s in gaps_s:
        clock.advance(gap_s)
        quota = limiter.check(CLIENT).enforced_quota()
        assert quota is not None
        _, _, remaining, more_after_s, _ = quota
        assert whole_seconds(more_after_s) == whole_seconds(limiter.peek(CLIENT, cost=remaining + 1).retry_after_s)


def test_peek_decides_and_counts_nothing(clock: Clock) -> None:
    limiter = a_limiter(MemoryStore(clock), clock, TRIPLE)
    assert [3, 3] == [limiter.peek(CLIENT).remaining for _ in range(2)]
    limiter.check(CLIENT, cost=2)
    assert (True, 1) == (limiter.peek(CLIENT).allowed, limiter.peek(CLIENT).remaining)
    denied = limiter.peek(CLIENT, cost=2)
    assert (False, True, 1) == (denied.allowed, denied.would_deny, denied.remaining)
    assert 2 == in_flight_hits(limiter)


def test_dry_run_decides_and_counts_as_enforce_does(clock: Clock) -> None:
    tiers = (a_policy(2, 1), a_policy(5, 10, name="wide"))
    limiters = [Limiter(some_settings(*tiers, mode=mode), clock=clock) for mode in (Mode.ENFORCE, Mode.DRY_RUN)]
    for _ in range(60):
        enforced, dry = (limiter.check(CLIENT) for limiter in limiters)
        assert (not enforced.would_deny, True) == (enforced.allowed, dry.allowed)
        assert figures(enforced)[3:] == figures(dry)[3:]
        assert enforced.would_deny == dry.would_deny
        clock.advance(0.25)
    enforced_hits, dry_hits = map(in_flight, limiters)
    assert enforced_hits == dry_hits


def test_trusted_client_is_never_denied_nor_counted(clock: Clock) -> None:
    store = MemoryStore()
    limiter = Limiter(some_settings(a_policy(1), trusted=("app*",)), store, clock=clock)
    decisions = [limiter.check(CLIENT, username) for username in (None, "kim") for _ in range(100)]
    assert all(decision.allowed and decision.trusted and not decision.would_deny for decision in decisions)
    assert ([], 0) == (known_keys(limiter), limiter.sync().flushed_count)
    assert {} == store.read([Key(CLIENT, None), Key(CLIENT, "kim")])
    assert not limiter.check("other").trusted


def test_denial_is_not_repeated_after_others_have_used_what_a_total_has_left(clock: Clock) -> None:
    """A hit of the total left its window as another came, so that it held as many as before."""
    limits = {"user": [{"limit": 1, "window": 2, "frames": 1}], "client_total": [{"limit": 2, "window": 10}]}
    limiter = limiter_of({"limits": limits}, clock=clock)
    for gap_s, username, expected_s in ((0, "lee", 0), (8, "kim", 0), (1, "kim", 3), (2, "ann", 0), (0, "kim", 8)):
        clock.advance(gap_s)
        assert expected_s == limiter.check(CLIENT, username).retry_after_s


def test_limit_that_denies_wins_over_one_that_reuses_only_while_it_denies(clock: Clock) -> None:
    """A password grant never reuses."""
    daily, burst = {"limit": 2, "window": "1d", "on_limit": "reuse"}, {"limit": 2, "window": 20}
    limiter = limiter_of({"limits": {"client": [daily, burst]}}, clock=clock)
    actions = [limiter.check(CLIENT, grant_type=grant).action for grant in (None, None, "password", None)]
    clock.advance(40)
    assert ["allow", "allow", "deny", "deny", "reuse"] == [*actions, limiter.check(CLIENT).action]


def calls_of(action: Callable[[], object]) -> int:
    profile = Profile(builtins=False)
    profile.runcall(action)
    return sum(entry.callcount for entry in profile.getstats())
