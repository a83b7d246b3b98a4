"""A bare limiter that hashes usernames."""

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.config import PrivacySettings
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.key_state import Counts
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_policy, stored_hits
from tests.support.pseudonyms import ALICE, NEW, OLD, PLAIN, hashed, limiter_with

LIMIT = 7
TWO = (a_policy(2, name="user"),)
SEVEN = (a_policy(LIMIT, 600, name="user"),)


@pytest.fixture
def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore()


def test_every_method_takes_the_name_and_only_the_hash_is_stored_and_logged(clock: Clock) -> None:
    """``check``, ``peek`` and ``counts`` mean the same user by the same name."""
    store = MemoryStore()
    limiter = limiter_with(hashed(OLD), store, clock, user=TWO)
    for _ in range(2):
        limiter.check(CLIENT, ALICE)
    with capture_logs() as logs:
        assert not limiter.check(CLIENT, ALICE).allowed
    limiter.sync()

    assert 0 == limiter.peek(CLIENT, ALICE).remaining
    assert Counts(2, 0) == limiter.counts(CLIENT, ALICE)
    assert OLD(ALICE) == limiter.pseudonym_of(ALICE)
    assert (2, 0) == (stored_hits(store, Key(CLIENT, OLD(ALICE))), stored_hits(store, Key(CLIENT, ALICE)))
    assert [OLD(ALICE)] == [entry["username"] for entry in logs]


@pytest.mark.parametrize(
    ("before", "after"),
    [(hashed(OLD), hashed(NEW, OLD)), (PLAIN, hashed(OLD)), (hashed(OLD), PrivacySettings("plain", (OLD,)))],
    ids=["new key", "hashed from now on", "plain again"],
)
def test_new_pseudonym_starts_new_counts(
    store: MemoryStore, clock: Clock, before: PrivacySettings, after: PrivacySettings
) -> None:
    """The counts under the former pseudonym stay in the store, untouched, and nothing reads them."""
    former = limiter_with(before, store, clock, user=SEVEN)
    for _ in range(LIMIT):
        former.check(CLIENT, ALICE)
    former.sync()
    limiter = limiter_with(after, store, clock, user=SEVEN)
    limiter.check(CLIENT, ALICE)
    limiter.sync()

    assert LIMIT - 1 == limiter.peek(CLIENT, ALICE).remaining
    assert [LIMIT, 1] == [stored_hits(store, Key(CLIENT, each.pseudonym_of(ALICE))) for each in (former, limiter)]


@pytest.mark.parametrize(
    ("before", "after"),
    [(hashed(NEW, OLD), hashed(NEW)), (hashed(NEW), hashed(NEW, OLD)), (PLAIN, PrivacySettings("plain", (OLD,)))],
    ids=["former key dropped", "former key listed", "key listed beside plain names"],
)
def test_former_keys_make_no_difference_to_counts(
    store: MemoryStore, clock: Clock, before: PrivacySettings, after: PrivacySettings
) -> None:
    """Counts under the current pseudonym go on when former keys come and go."""
    earlier = limiter_with(before, store, clock, user=SEVEN)
    for _ in range(4):
        earlier.check(CLIENT, ALICE)
    earlier.sync()
    limiter = limiter_with(after, store, clock, user=SEVEN)
    limiter.peek(CLIENT, ALICE)
    limiter.sync_urgent()

    assert LIMIT - 4 == limiter.peek(CLIENT, ALICE).remaining


def test_preload_knows_hashed_users(store: MemoryStore, clock: Clock) -> None:
    """A new instance starts with the users that were busy last, as with plain names."""
    earlier = limiter_with(hashed(OLD), store, clock, user=SEVEN)
    for _ in range(4):
        earlier.check(CLIENT, ALICE)
    earlier.sync()
    limiter = limiter_with(hashed(OLD), store, clock, user=SEVEN)
    limiter.preload()

    assert LIMIT - 4 == limiter.peek(CLIENT, ALICE).remaining
