"""
A client with very many users.
"""

import sys

import pytest

from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync import place
from oauth_ratelimit.sync.crowd import Crowd
from tests.helpers import Clock
from tests.limiters import CLIENT, a_limiter, a_policy

USERS = [None, *(f"user.{number}" for number in range(300))]


@pytest.fixture(autouse=True)
def small_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Ten users are very many.
    """
    monkeypatch.setattr(place, "CROWDED", 10)


def test_counts_of_a_crowd(clock: Clock) -> None:
    """
    Each user is counted apart, who came before it was a crowd and who came after, and denied at the limit.
    """
    limiter = a_limiter(MemoryStore(), clock, a_policy(2, 60))
    decisions = [[limiter.check(CLIENT, user).allowed for user in USERS[1:]] for _ in range(3)]
    limiter.sync()

    assert [True, True, False] == [set(round_) == {True} for round_ in decisions]
    assert {2} == {limiter.counts(CLIENT, user).shared_hits for user in USERS[1:]}
    limiter.close()


def test_crowd_after_a_reload(clock: Clock) -> None:
    """
    A changed limit finds all counts of a crowd, also of users who have not asked since the change before.
    """
    limiter = a_limiter(MemoryStore(), clock, a_policy(2, 60))
    for user in USERS[1:]:
        limiter.check(CLIENT, user)
    for amount in (5, 7):
        other = a_limiter(MemoryStore(), clock, a_policy(amount, 60))
        limiter.reconfigure(other.settings)
        other.close()
        limiter.check(CLIENT, USERS[1])

    assert [7 - 3 - 1, 7 - 1 - 1] == [limiter.check(CLIENT, user).remaining for user in (USERS[1], USERS[-1])]
    limiter.close()


def test_crowd_that_goes(clock: Clock) -> None:
    """
    Idle users of a crowd are forgotten as any others are.
    """
    limiter = a_limiter(MemoryStore(), clock, a_policy(2, 60))
    for user in USERS[1:]:
        limiter.check(CLIENT, user)
    for _ in range(4):
        clock.advance(70)
        limiter.sync()

    assert 0 == limiter.sync().key_count
    limiter.close()


def test_no_copy_of_a_crowd() -> None:
    """
    A crowd grows without any of its dictionaries becoming as large as all of them.
    """
    crowd = Crowd(dict.fromkeys(USERS[:10], 0))
    for user in USERS:
        crowd[user] = 1
    largest = max(map(sys.getsizeof, (crowd._first, *crowd._parts)))

    assert largest * 4 < sys.getsizeof(dict(crowd))
    assert (len(USERS), set(USERS), {1}) == (len(crowd), set(crowd), set(crowd.values()))
    del crowd[None], crowd["user.299"]
    assert (None, None, 299) == (crowd.get(None), crowd.get("user.299"), len(crowd))
