"""
Reads that leave out what is known: of keys of whose limit little is used up.
"""

from collections.abc import Mapping, Sequence

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Change, Snapshot
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync import flusher
from oauth_ratelimit.sync.keys import TELLING_VERSION, Counts
from tests.helpers import Clock
from tests.limiters import CLIENT, KEY, a_limiter, a_policy, some_settings, stored_hits
from tests.sync.faulty_store import Fault, FaultyStore

LIMIT = 100
USED, QUIET = 40, 10  # hits: enough of the limit to be followed, and not enough
OTHER_CLIENT, OTHER_KEY = "other", Key("other", None)


class CountingStore(MemoryStore):
    """
    A store that counts the documents that it has handed out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.document_count = 0

    def read(self, keys: Sequence[Key], known: Sequence[int] = ()) -> Mapping[Key, Snapshot]:
        """
        Read, and count what comes of it.
        """
        snapshots = super().read(keys, known)
        self.document_count += len(snapshots)
        return snapshots


@pytest.fixture
def store() -> CountingStore:
    """
    The store of two instances.
    """
    return CountingStore()


def a_cycle(limiter: Limiter, clock: Clock) -> None:
    """
    Run a cycle a second later.
    """
    clock.advance(1)
    limiter.sync()


def put(store: MemoryStore, key: Key, *, version: int, hits: int, clock: Clock) -> None:
    """
    Have a document as somebody may have made it by hand.
    """
    store.remove(key)
    frames = {"6": {int(clock() // 6) * 6: hits}}
    store.compare_and_set("hand", [Change(key, None, version, 1, frames, clock() + 600)])


@pytest.mark.parametrize(("used", "document_count"), [(QUIET, 0), (USED, 2)])
def test_document_that_has_not_changed(store: CountingStore, clock: Clock, used: int, document_count: int) -> None:
    """
    It is handed out only where it matters whether it is still there.
    """
    limiter = a_limiter(store, clock, a_policy(LIMIT))
    limiter.check(CLIENT, cost=used)
    a_cycle(limiter, clock)
    store.document_count = 0
    for _ in range(2):
        limiter.peek(CLIENT)
        a_cycle(limiter, clock)
    assert document_count == store.document_count
    assert Counts(used, 0) == limiter.counts(CLIENT)


def test_document_that_has_changed(store: CountingStore, clock: Clock) -> None:
    """
    It is learnt as ever.
    """
    here, there = (a_limiter(store, clock, a_policy(LIMIT)) for _ in range(2))
    here.check(CLIENT, cost=QUIET)
    here.sync()
    there.check(CLIENT, cost=QUIET)
    there.sync()
    a_cycle(here, clock)
    assert Counts(2 * QUIET, 0) == here.counts(CLIENT)


def test_document_that_is_gone(store: CountingStore, clock: Clock) -> None:
    """
    Its hits go on counting until the next write, which makes it anew with what came after.
    """
    limiter = a_limiter(store, clock, a_policy(LIMIT))
    limiter.check(CLIENT, cost=QUIET)
    a_cycle(limiter, clock)
    store.remove(KEY)
    limiter.peek(CLIENT)
    a_cycle(limiter, clock)
    assert Counts(QUIET, 0) == limiter.counts(CLIENT)
    limiter.check(CLIENT)
    a_cycle(limiter, clock)
    assert Counts(1, 0) == limiter.counts(CLIENT)
    assert 1 == stored_hits(store)


@pytest.mark.parametrize("lowest", [1, TELLING_VERSION + 1])
def test_documents_made_by_hand(store: CountingStore, clock: Clock, lowest: int) -> None:
    """
    A document that now has the version of another one is not taken for known, if versions are as people give them.
    """
    limiter = a_limiter(store, clock, a_policy(LIMIT))
    put(store, KEY, version=lowest, hits=1, clock=clock)
    put(store, OTHER_KEY, version=7, hits=1, clock=clock)
    for client_id in (CLIENT, OTHER_CLIENT):
        limiter.peek(client_id)
    a_cycle(limiter, clock)
    put(store, OTHER_KEY, version=1, hits=QUIET, clock=clock)
    for client_id in (CLIENT, OTHER_CLIENT):
        limiter.peek(client_id)
    a_cycle(limiter, clock)
    assert Counts(QUIET, 0) == limiter.counts(OTHER_CLIENT)


def test_write_without_an_answer_beside_a_known_document(
    store: CountingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its document is read even if it has moved on to the very version that another one has: else its hits count twice.
    """
    faulty = FaultyStore(store)
    here, there = (a_limiter(which, clock, a_policy(LIMIT)) for which in (faulty, store))
    versions = iter((TELLING_VERSION + 1, TELLING_VERSION))
    monkeypatch.setattr(flusher, "_first_version", lambda: next(versions, 1))
    here.check(CLIENT, cost=USED)
    here.check(OTHER_CLIENT)
    a_cycle(here, clock)
    there.check(OTHER_CLIENT)
    a_cycle(there, clock)
    here.check(OTHER_CLIENT)
    a_cycle(here, clock)  # loses the race and writes after that, so that it reads first the next time
    faulty.faults.append(Fault.LOST_REPLY)
    here.check(CLIENT)
    a_cycle(here, clock)
    assert store.read([KEY])[KEY].version == store.read([OTHER_KEY])[OTHER_KEY].version
    for client_id in (CLIENT, OTHER_CLIENT):
        here.check(client_id)
    a_cycle(here, clock)
    assert (USED + 2, 4) == (stored_hits(store), stored_hits(store, OTHER_KEY))


def test_other_limits(store: CountingStore, clock: Clock) -> None:
    """
    When limits change, what others have counted under the new ones is in the document already, and is learnt.
    """
    old, new = a_policy(LIMIT, 60), a_policy(LIMIT, 3600)
    here, there = (a_limiter(store, clock, policy) for policy in (old, new))
    here.check(CLIENT)
    here.sync()
    there.check(CLIENT, cost=QUIET)
    there.sync()
    a_cycle(here, clock)
    here.reconfigure(some_settings(new))
    for _ in range(2):
        here.peek(CLIENT)
        a_cycle(here, clock)
    assert QUIET <= here.counts(CLIENT).shared_hits
