"""
What a request has to do does not grow with how many other keys are due for the same.
"""

from collections import Counter
from typing import Any

import pytest

from oauth_ratelimit.sync import describe
from oauth_ratelimit.sync.counters import Bucket
from tests.helpers import Clock
from tests.limiters import a_limiter, a_policy

KEY_COUNT = 100


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Counter[str]:
    """
    Return how often a function is called from now on, under its name.
    """
    calls, function = Counter[str](), getattr(owner, name)

    def counting(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    monkeypatch.setattr(owner, name, counting)
    return calls


def test_of_all_keys_that_cross_a_frame_boundary_only_the_one_asked_for_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A frame ends for every key at the same instant, and each moves on with its own next request.
    """
    clock = Clock()
    limiter = a_limiter(None, clock, a_policy(window_s=60))
    users = [f"user-{number}" for number in range(KEY_COUNT)]
    for user in users:
        limiter.check("app", user)
    clock.advance(6.0)
    turns = counted(monkeypatch, Bucket, "turn")

    limiter.check("app", users[0])
    assert Counter(turn=1) == turns
    limiter.check("app", users[0])
    assert Counter(turn=1) == turns


def test_client_that_stays_at_its_limit_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its second denial repeats the first, so clients at their limits cost less than others.
    """
    limiter = a_limiter(None, Clock(), a_policy(limit=1))
    limiter.check("app")
    estimates = counted(monkeypatch, describe, "over_limit")

    denials = [limiter.check("app").allowed for _ in range(KEY_COUNT)]

    assert [False] * KEY_COUNT == denials
    assert Counter(over_limit=1) == estimates
