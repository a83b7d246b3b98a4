"""Instances without knowledge: a key that is new to it, or everything, after a restart."""

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from testbed.clock import Clock
from tests.chaos.fleet import CLIENT

pytestmark = pytest.mark.chaos

USER = "user-0"
LIMIT = 20


def limiter_on(uri: str, clock: Clock) -> Limiter:
    """Return a fresh instance that allows LIMIT hits per user and minute."""
    limits = {"user": [{"limit": LIMIT, "window": "60s"}]}
    return Limiter(load_config({"mode": "enforce", "limits": limits, "store": {"uri": uri}}), clock=clock)


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
