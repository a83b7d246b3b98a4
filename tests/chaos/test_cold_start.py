"""Instances without knowledge: a key that is new to it, or everything, after a restart."""

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from testbed.clock import Clock, wait_until
from tests.chaos.fleet import CLIENT
from tests.support.limiters import in_background

pytestmark = pytest.mark.chaos

USER = "user-0"
LIMIT = 20


def limiter_on(uri: str, clock: Clock) -> Limiter:
    """Return a fresh instance that allows LIMIT hits per user and minute."""
    limits = {"user": [{"limit": LIMIT, "window": "60s"}]}
    return Limiter(load_config({"mode": "enforce", "limits": limits, "store": {"uri": uri}}), clock=clock)


def test_key_new_to_an_instance_is_learnt_in_the_background(mongo_uri: str, clock: Clock) -> None:
    first, second = limiter_on(mongo_uri, clock), limiter_on(mongo_uri, clock)
    for _ in range(LIMIT):
        assert first.check(CLIENT, USER).allowed
    first.sync()
    with in_background(second, interval_s=600.0):
        assert second.check(CLIENT, USER).allowed  # nothing is known yet
        wait_until(lambda: not second.peek(CLIENT, USER).allowed, "the count of the first instance")
    for limiter in (first, second):
        limiter.close()


@pytest.mark.parametrize("is_preloaded", [False, True], ids=["no preload", "preload"])
def test_rolling_restart_admits_one_more_each_and_with_preload_none(
    mongo_uri: str, clock: Clock, is_preloaded: bool
) -> None:
    fleet = [limiter_on(mongo_uri, clock) for _ in range(5)]
    admitted = sum(limiter.check(CLIENT, USER).allowed for limiter in fleet for _ in range(LIMIT // 5))
    for _ in range(2):
        for limiter in fleet:
            limiter.sync()
    assert LIMIT == admitted
    for position, old in enumerate(fleet):
        old.close()
        fresh = fleet[position] = limiter_on(mongo_uri, clock)
        if is_preloaded:
            fresh.preload()
        for _ in range(3):
            admitted += fresh.check(CLIENT, USER).allowed
            fresh.sync_urgent()
    assert (0 if is_preloaded else 5) == admitted - LIMIT
    for limiter in fleet:
        limiter.close()
