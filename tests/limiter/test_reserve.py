"""``near_limit: reserve``: MongoDB is asked before the last requests of a quota."""

import threading
from collections.abc import Mapping, Sequence

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.sync.faulty_store import FaultyStore

LIMIT = 25
CLIENT = "client"


def settings(near_limit: str, *, limit: int = LIMIT, window: str = "60s", **sync: object) -> Settings:
    """Return settings with one limit per client."""
    limits = {"client": [{"limit": limit, "window": window}]}
    return load_config({"mode": "enforce", "limits": limits, "sync": {"near_limit": near_limit, **sync}})


class StuckStore(MemoryStore):
    """A store that does not answer until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        self.may_answer.wait(30)
        return super().read(keys)


def admitted_of_burst(near_limit: str, clock: Clock) -> int:
    """Return how many of 60 requests in one instant ten instances admit, which know of each other by another client."""
    store = MemoryStore()
    limiters = [Limiter(settings(near_limit, deadline="5s"), store, clock=clock) for _ in range(10)]
    for _ in range(2):
        for limiter in limiters:
            limiter.check("another client")
            limiter.sync()
    admitted = sum(limiters[number % len(limiters)].check(CLIENT).allowed for number in range(60))
    for limiter in limiters:
        limiter.close()
    return admitted


def test_burst_over_ten_instances_is_held_to_the_limit(clock: Clock) -> None:
    """
    Ten instances admit hardly more than the limit together, in one instant; without asking, as much as they please.
    """
    assert LIMIT <= admitted_of_burst("reserve", clock) <= LIMIT + 1
    assert 60 == admitted_of_burst("flush", clock)


def test_first_request_after_a_change_of_the_window_asks_the_store(clock: Clock) -> None:
    """Hits of others in a series that is new here are known before the first decision."""
    store = MemoryStore()
    hour, minute = (settings("reserve", deadline="5s", limit=4, window=window) for window in ("1h", "60s"))
    here, there = (Limiter(each, store, clock=clock) for each in (hour, minute))
    assert [True] * 4 == [there.check(CLIENT).allowed for _ in range(4)]
    assert here.check(CLIENT).allowed
    here.reconfigure(minute)
    assert not here.check(CLIENT).allowed
    for limiter in (here, there):
        limiter.close()


def test_store_that_misses_the_deadline_leaves_the_decision_here(clock: Clock) -> None:
    """A store that does not answer in time leaves the decision to what is known here."""
    store = StuckStore()
    limiter = Limiter(settings("reserve", deadline="1ms"), store, clock=clock)
    admitted = [limiter.check(CLIENT).allowed for _ in range(LIMIT + 5)]
    assert not store.may_answer.is_set()
    assert [*[True] * LIMIT, *[False] * 5] == admitted
    store.may_answer.set()
    limiter.close()
    snapshot = store.read([Key(CLIENT, None)])[Key(CLIENT, None)]
    assert LIMIT == sum(snapshot.hits[Series(6)].values())


class EvictingStore(MemoryStore):
    """A store that evicts every key of a limiter while a request waits for the answer."""

    limiter: Limiter | None = None
    evicted_count = 0

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        assert self.limiter is not None
        for client in self.limiter._clients:
            for state in [*client.keys.values()]:
                self.evicted_count += self.limiter._clients.forget(state)
        return super().read(keys)


def test_request_whose_key_is_evicted_while_it_waits_is_counted(clock: Clock) -> None:
    """The hits of every admitted request reach the store."""
    store = EvictingStore()
    limiter = store.limiter = Limiter(settings("reserve", deadline="5s"), store, clock=clock)
    admitted = sum(limiter.check(CLIENT).allowed for _ in range(LIMIT - 5))
    limiter.close()
    snapshot = store.read([Key(CLIENT, None)])[Key(CLIENT, None)]
    assert store.evicted_count > 0
    assert LIMIT - 5 == admitted == sum(sum(frames.values()) for frames in snapshot.hits.values())


def test_repeated_denial_does_not_wait_for_the_store(clock: Clock) -> None:
    """A client that is denied again and again costs no reservation."""
    store = FaultyStore(MemoryStore())
    limiter = Limiter(settings("reserve", limit=1, deadline="5s"), store, clock=clock)
    assert [True, False] == [limiter.check(CLIENT).allowed for _ in range(2)]
    store.calls.clear()
    assert not any(limiter.check(CLIENT).allowed for _ in range(100))
    assert [] == store.calls
    limiter.close()
