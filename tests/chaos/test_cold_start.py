"""Instances without knowledge: a key that is new to it, or everything, after a restart."""

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.sync.scheduler import SyncScheduler
from tests.chaos.fleet import CLIENT, Books
from tests.support.helpers import Clock, wait_until

pytestmark = pytest.mark.chaos

USER = "user-0"
LIMIT = 20


def limiter_on(uri: str, clock: Clock) -> Limiter:
    """Return a fresh instance that allows LIMIT hits per user and minute."""
    limits = {"user": [{"limit": LIMIT, "window": "60s"}]}
    return Limiter(load_config({"mode": "enforce", "limits": limits, "store": {"uri": uri}}), clock=clock)


def test_key_new_to_an_instance(mongo_uri: str, clock: Clock, record: list[Books]) -> None:
    """The first request makes the key urgent, so an urgent cycle learns the global count."""
    first, second = limiter_on(mongo_uri, clock), limiter_on(mongo_uri, clock)
    for _ in range(LIMIT):
        assert first.check(CLIENT, USER).allowed
    first.sync()
    assert second.check(CLIENT, USER).allowed  # nothing is known yet
    assert second.sync_urgent() is not None
    assert not second.check(CLIENT, USER).allowed
    for limiter in (first, second):
        limiter.close()
    record.append(Books(requests=LIMIT + 2, notes={"over": 1}))


def test_scheduler_learns_a_new_key_in_the_background(mongo_uri: str, clock: Clock, record: list[Books]) -> None:
    """A running instance learns it without being asked to, long before its next full cycle."""
    first, second = limiter_on(mongo_uri, clock), limiter_on(mongo_uri, clock)
    for _ in range(LIMIT):
        first.check(CLIENT, USER)
    first.sync()
    scheduler = SyncScheduler(second, interval_s=600.0)
    scheduler.start()
    assert second.check(CLIENT, USER).allowed
    wait_until(lambda: not second.peek(CLIENT, USER).allowed, "the count of the first instance")
    assert scheduler.stop()
    for limiter in (first, second):
        limiter.close()
    record.append(Books(requests=LIMIT + 2))


def test_preloading_instance_denies_from_its_first_request(mongo_uri: str, clock: Clock, record: list[Books]) -> None:
    """An instance that preloads denies from its first request on."""
    first, second = limiter_on(mongo_uri, clock), limiter_on(mongo_uri, clock)
    for _ in range(LIMIT):
        first.check(CLIENT, USER)
    first.sync()
    assert 1 == second.preload(100)
    assert not second.check(CLIENT, USER).allowed
    for limiter in (first, second):
        limiter.close()
    record.append(Books(requests=LIMIT + 1))


@pytest.mark.parametrize("is_preloaded", [False, True], ids=["no preload", "preload"])
def test_rolling_restart_admits_one_more_each_and_with_preload_none(
    mongo_uri: str, clock: Clock, is_preloaded: bool, record: list[Books]
) -> None:
    """Five instances at their limit are replaced one after another: each may admit one more, with preload none."""
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
    record.append(Books(requests=LIMIT + 15, notes={"over": admitted - LIMIT}))
