"""A bare limiter that hashes usernames."""

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.config import PrivacySettings
from oauth_ratelimit.core.key import Key
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, a_policy, hit, known_keys, send_hits, stored_hits
from tests.support.pseudonyms import ALICE, NEW, OLD, PLAIN, hashed, limiter_with

LIMIT = 7
TWO = (a_policy(2, name="user"),)
SEVEN = (a_policy(LIMIT, 600, name="user"),)
PLAIN_BESIDE_A_KEY = PrivacySettings("plain", (OLD,))


def test_every_method_takes_the_name_and_only_the_hash_is_stored_and_logged(clock: Clock) -> None:
    """``check`` and ``peek`` mean the same user by the same name."""
    store = MemoryStore()
    limiter = limiter_with(hashed(OLD), store, clock, user=TWO)
    for _ in range(2):
        limiter.check(CLIENT, ALICE)
    with capture_logs() as logs:
        assert not limiter.check(CLIENT, ALICE).allowed
    limiter.sync()

    assert 0 == limiter.peek(CLIENT, ALICE).remaining
    assert [Key(CLIENT, OLD(ALICE))] == known_keys(limiter)
    assert OLD(ALICE) == limiter.pseudonym_of(ALICE)
    assert (2, 0) == (stored_hits(store, Key(CLIENT, OLD(ALICE))), stored_hits(store, Key(CLIENT, ALICE)))
    assert [OLD(ALICE)] == [entry["username"] for entry in logs]


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (hashed(OLD), hashed(NEW, OLD), False),
        (PLAIN, hashed(OLD), False),
        (hashed(OLD), PLAIN_BESIDE_A_KEY, False),
        (hashed(NEW, OLD), hashed(NEW), True),
        (hashed(NEW), hashed(NEW, OLD), True),
        (PLAIN, PLAIN_BESIDE_A_KEY, True),
    ],
    ids=["new key", "hashed now", "plain again", "former key dropped", "former key listed", "key beside plain names"],
)
def test_counts_go_on_under_the_same_pseudonym_and_start_anew_under_another(
    clock: Clock, before: PrivacySettings, after: PrivacySettings, is_same: bool
) -> None:
    """What was counted under the former pseudonym stays in the store, untouched, and nothing reads it."""
    store = MemoryStore()
    former = limiter_with(before, store, clock, user=SEVEN)
    send_hits(former, 4, CLIENT, ALICE)
    limiter = limiter_with(after, store, clock, user=SEVEN)
    limiter.preload()
    hit(limiter, CLIENT, ALICE)

    assert LIMIT - 1 - 4 * is_same == limiter.peek(CLIENT, ALICE).remaining
    stored = [stored_hits(store, Key(CLIENT, each.pseudonym_of(ALICE))) for each in (former, limiter)]
    assert ([5, 5] if is_same else [4, 1]) == stored
