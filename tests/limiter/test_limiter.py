"""``Limiter`` as its user sees it: deciding, counting, forgetting."""

import gc
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters import client_state
from oauth_ratelimit.counters.key_state import Counts, KeyState
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_limiter, a_policy, some_settings, stored_hits

TRIPLE = a_policy(3, 60)


def figures(decision: Decision) -> tuple[Any, ...]:
    """Return all figures of a decision."""
    return (
        decision.allowed,
        decision.would_deny,
        decision.mode,
        decision.policy,
        decision.limit,
        decision.window_s,
        decision.remaining,
        decision.reset_after_s,
        decision.retry_after_s,
    )


def test_requests_are_admitted_up_to_the_limit_then_denied_with_a_delay(clock: Clock) -> None:
    """Requests are admitted while there is something left, then denied with the time that it takes."""
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
    assert not limiter.check(CLIENT).allowed
    clock.advance(1)
    assert limiter.check(CLIENT).allowed
    assert not limiter.check(CLIENT).allowed


def test_peek_decides_and_counts_nothing(clock: Clock) -> None:
    """A look decides as a request would, tells what is left now, and counts nothing."""
    limiter = a_limiter(None, clock, TRIPLE)
    assert [3, 3] == [limiter.peek(CLIENT).remaining for _ in range(2)]
    limiter.check(CLIENT, cost=2)
    assert (True, 1) == (limiter.peek(CLIENT).allowed, limiter.peek(CLIENT).remaining)
    denied = limiter.peek(CLIENT, cost=2)
    assert (False, True, 1) == (denied.allowed, denied.would_deny, denied.remaining)
    assert Counts(0, 2) == limiter.counts(CLIENT)


def test_request_without_a_policy_is_admitted(clock: Clock) -> None:
    """Without a policy, everything is admitted and no policy is named."""
    limiter = Limiter(some_settings(TRIPLE, user=()), clock=clock)
    decision = limiter.check(CLIENT, "kim")
    assert (True, False, None, None, None) == (
        decision.allowed,
        decision.would_deny,
        decision.policy,
        decision.limit,
        decision.window_s,
    )
    assert limiter.check(CLIENT, endpoint="nobody configured this").allowed
    assert Counts(0, 0) == limiter.counts(CLIENT, "kim")


def test_denied_request_counts_in_no_tier(clock: Clock) -> None:
    """A request that one tier denies is counted in no other."""
    limiter = a_limiter(None, clock, a_policy(1, 1, name="second"), a_policy(3, 60, name="minute"))
    seconds = []
    for _ in range(4):
        seconds.append([limiter.check(CLIENT) for _ in range(5)])
        clock.advance(2)
    assert [1, 1, 1, 0] == [sum(decision.allowed for decision in second) for second in seconds]
    assert ["second", "second", "minute", "minute"] == [second[-1].policy for second in seconds]
    assert Counts(0, 3) == limiter.counts(CLIENT)


def test_total_is_used_up_by_all_users_together(clock: Clock) -> None:
    """A total is used up by all users and by grants without one, and each of them learns of it at once."""
    limiter = Limiter(
        some_settings(a_policy(2, 1, frames=1, name="own"), total=(a_policy(4, 60, frames=1, name="total"),)),
        clock=clock,
    )
    for username in ("kim", "kim", "kim", "lee"):
        decision = limiter.check(CLIENT, username)
    assert 1 == decision.remaining
    assert (False, "own") == (limiter.check(CLIENT, "kim").allowed, limiter.check(CLIENT, "kim").policy)
    assert limiter.check(CLIENT).allowed
    assert ["total"] * 3 == [limiter.check(CLIENT, username).policy for username in ("kim", "lee", None)]
    assert limiter.check("another app", "kim").allowed


def test_total_applies_where_users_are_not_limited(clock: Clock) -> None:
    """A total alone limits all users together."""
    limiter = Limiter(some_settings(TRIPLE, user=(), total=(a_policy(2, name="total"),)), clock=clock)
    admitted = [limiter.check(CLIENT, username).allowed for username in ("kim", "lee", "max", "kim")]
    assert [True, True, False, False] == admitted


def test_dry_run_decides_and_counts_as_enforce_does(clock: Clock) -> None:
    """A dry run admits everything, says what enforcing would say, and counts what enforcing would count."""
    tiers = (a_policy(2, 1), a_policy(5, 10, name="wide"))
    limiters = [Limiter(some_settings(*tiers, mode=mode), clock=clock) for mode in (Mode.ENFORCE, Mode.DRY_RUN)]
    for _ in range(60):
        enforced, dry = (limiter.check(CLIENT) for limiter in limiters)
        assert (not enforced.would_deny, True) == (enforced.allowed, dry.allowed)
        assert figures(enforced)[3:] == figures(dry)[3:]
        assert enforced.would_deny == dry.would_deny
        clock.advance(0.25)
    counts = [limiter.counts(CLIENT) for limiter in limiters]
    assert counts[0] == counts[1]


def test_policy_on_trial_denies_nothing_beside_enforced_ones(clock: Clock) -> None:
    """
    A policy that is only tried out denies nothing, and what it would deny still counts for those that are enforced.
    """
    trial = replace(a_policy(1, 60, name="trial"), mode=Mode.DRY_RUN)
    limiter = a_limiter(None, clock, a_policy(3, 60), trial)
    decisions = [limiter.check(CLIENT) for _ in range(4)]
    assert [True, True, True, False] == [decision.allowed for decision in decisions]
    assert [False, True, True, True] == [decision.would_deny for decision in decisions]
    assert [Mode.DRY_RUN, Mode.DRY_RUN, Mode.ENFORCE] == [decision.mode for decision in decisions[1:]]


def test_would_deny_describes_this_request_not_the_next(clock: Clock) -> None:
    """The decision names the policy that would deny this request, not the one that denies the next."""
    trial = replace(a_policy(1, 60, name="trial"), mode=Mode.DRY_RUN)
    limiter = a_limiter(None, clock, a_policy(2, 3600), trial)
    limiter.check(CLIENT)
    foreseen = limiter.peek(CLIENT)
    decision = limiter.check(CLIENT)
    assert (True, True, Mode.DRY_RUN, "trial") == (
        decision.allowed,
        decision.would_deny,
        decision.mode,
        decision.policy,
    )
    assert foreseen == decision
    assert not limiter.check(CLIENT).allowed


def test_trusted_client_is_never_denied_nor_counted(clock: Clock) -> None:
    """A trusted client is never denied, and nothing of it is counted or stored."""
    store = MemoryStore()
    limiter = Limiter(some_settings(a_policy(1), trusted=("app*",)), store, clock=clock)
    decisions = [limiter.check(CLIENT, username) for username in (None, "kim") for _ in range(100)]
    assert all(decision.allowed and decision.trusted and not decision.would_deny for decision in decisions)
    assert (Counts(0, 0), 0) == (limiter.counts(CLIENT), limiter.sync().flushed_count)
    assert {} == store.read([Key(CLIENT, None), Key(CLIENT, "kim")])
    assert not limiter.check("other").trusted


def test_mode_off_counts_nothing(clock: Clock) -> None:
    """Switched off, everything is admitted and nothing is counted."""
    limiter = Limiter(some_settings(a_policy(1), mode=Mode.OFF), clock=clock)
    assert all(limiter.check(CLIENT).allowed for _ in range(10))
    assert (Counts(0, 0), Mode.OFF) == (limiter.counts(CLIENT), limiter.check(CLIENT).mode)


def test_idle_key_is_forgotten_and_its_memory_freed(clock: Clock) -> None:
    """A key that nobody asks for is forgotten when its window is over, and its memory is free at once."""
    limiter = a_limiter(MemoryStore(), clock, a_policy(window_s=10))
    limiter.check(CLIENT, "user-0")
    gc.collect()
    gc.disable()
    try:
        with_one_key = count_keys()
        for number in range(200):
            limiter.check(CLIENT, f"user-{number}")
        assert with_one_key + 199 == count_keys()
        for _ in range(15):
            limiter.check(CLIENT, "user-7")
            limiter.sync()
            clock.advance(1)
        assert with_one_key == count_keys()
    finally:
        gc.enable()
    limiter.close()


def count_keys() -> int:
    """Return how many keys this process knows."""
    return sum(type(thing) is KeyState for thing in gc.get_objects())  # isinstance() would wake dead weak references


def test_idle_key_without_a_store_starts_at_zero(clock: Clock) -> None:
    limiter = a_limiter(None, clock, a_policy(2, 10))
    limiter.check(CLIENT, cost=2)
    for _ in range(15):
        limiter.sync()
        clock.advance(1)
    assert (Counts(0, 0), 2) == (limiter.counts(CLIENT), limiter.peek(CLIENT).remaining)


def test_client_user_and_none_with_equal_names_stay_apart(clock: Clock) -> None:
    """Grants without a user, a user named "None" and a client named like a user are three."""
    limiter = a_limiter(None, clock, a_policy(1))
    asked = [(CLIENT, None), (CLIENT, "None"), ("None", None), (CLIENT, CLIENT)]
    assert [True] * 4 == [limiter.check(*names).allowed for names in asked]
    assert [False] * 4 == [limiter.check(*names).allowed for names in asked]


def test_tiers_of_equal_frames_that_count_other_requests_stay_apart(clock: Clock) -> None:
    """Tiers with equal frames that do not count the same requests stay apart, on other instances, too."""
    tiers = (
        a_policy(2, 6, frames=1),
        replace(a_policy(9, 12, frames=2, name="angry"), count_denied=True),
        replace(a_policy(1, 12, frames=2, name="trial"), mode=Mode.DRY_RUN),
    )
    store = MemoryStore()
    here, there = (a_limiter(store, clock, *tiers) for _ in range(2))
    for _ in range(4):
        here.check(CLIENT)
    here.sync()
    there.peek(CLIENT)
    there.sync()
    series = (Series(6), Series(6, count_denied=True), Series(6, on_trial=True))
    assert [2, 4, 1] == [stored_hits(store, series=one) for one in series]
    assert figures(here.peek(CLIENT)) == figures(there.peek(CLIENT))
    clock.advance(12)
    assert figures(here.peek(CLIENT)) == figures(there.peek(CLIENT))


def test_repeated_denial_is_not_estimated_again(clock: Clock) -> None:
    """A client that stays at its limit gets its last denial again, so it costs less than others."""
    limiter = a_limiter(None, clock, a_policy(1))
    limiter.check(CLIENT)
    with patch.object(client_state, "over_limit", wraps=client_state.over_limit) as estimated:
        assert [False] * 100 == [limiter.check(CLIENT).allowed for _ in range(100)]
    assert 1 == estimated.call_count
