"""
A bare limiter that hashes the names of users.
"""

from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.names import PLAIN
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.keys import Counts
from tests.helpers import Clock
from tests.limiters import CLIENT, a_policy, stored_hits
from tests.privacy.names import ALICE, NEW, OLD, hashing_limiter, stored

TWO = (a_policy(2, name="user"),)


def test_every_method_hashes(clock: Clock) -> None:
    """
    All methods that take a name mean the same user, and only the hash is stored and logged.
    """
    store = MemoryStore()
    limiter = hashing_limiter(store, clock, OLD, user=TWO)
    for _ in range(2):
        limiter.check(CLIENT, ALICE)
    with capture_logs() as logs:
        assert not limiter.check(CLIENT, ALICE).allowed
    limiter.sync()

    assert 0 == limiter.peek(CLIENT, ALICE).remaining
    assert Counts(2, 0) == limiter.counts(CLIENT, ALICE)
    assert stored(ALICE, OLD) == limiter.stored_name(ALICE)
    assert (2, 0) == (stored_hits(store, Key(CLIENT, stored(ALICE, OLD))), stored_hits(store, Key(CLIENT, ALICE)))
    assert [stored(ALICE, OLD)] == [entry["username"] for entry in logs]


def test_grants_without_a_user(clock: Clock) -> None:
    """
    No user stays no user.
    """
    store = MemoryStore()
    limiter = hashing_limiter(store, clock, OLD)
    limiter.check(CLIENT)
    limiter.sync()

    assert None is limiter.stored_name(None)
    assert 1 == stored_hits(store, Key(CLIENT, None))


@pytest.mark.parametrize(
    "forms",
    [(OLD,), (OLD, NEW), (OLD, PLAIN), (PLAIN, OLD)],
    ids=["one key", "two keys", "was plain", "will be hashed"],
)
def test_user_who_is_called_like_a_hash(clock: Clock, forms: tuple[Any, ...]) -> None:
    """
    Nobody spends another's quota by taking their hash, out of a log line, for a name.
    """
    limiter = hashing_limiter(MemoryStore(), clock, *forms, user=TWO)
    for _ in range(3):
        limiter.check(CLIENT, stored(ALICE, OLD))
        limiter.peek(CLIENT, ALICE)
        limiter.sync()

    assert 2 == limiter.peek(CLIENT, ALICE).remaining


def test_name_that_is_no_text(clock: Clock) -> None:
    """
    What is no text is refused as ever.
    """
    limiter = hashing_limiter(None, clock, OLD)
    wrong: Any = 7
    with pytest.raises(TypeError, match="username must be text or None, got 7"):
        limiter.check(CLIENT, wrong)
