"""Counts in the store while limits change: each request once in each series that it was counted in."""

from dataclasses import replace

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, send_hits, some_settings
from tests.sync.faulty_store import Fault, FaultyStore

HOUR, TWO_HOURS = a_policy(100, 3600), a_policy(100, 7200)
IN_HOUR, IN_TWO_HOURS = Series(360), Series(720)
TOTAL = Key(CLIENT, None, "client_total")


def stored_by_series(store: CounterStore, key: Key = KEY) -> dict[Series, int]:
    """Return the hits of each series in a document."""
    snapshot = store.read([key]).get(key)
    return {series: sum(frames.values()) for series, frames in (snapshot.hits if snapshot else {}).items()}


@pytest.mark.parametrize("when", ("never", "before", "after", "before and after"))
def test_window_changed_back_and_forth_charges_each_request_once(store: CounterStore, clock: Clock, when: str) -> None:
    """Requests count in the window that applied when they came, whether there is a flush before or after a change."""
    limiter = a_limiter(store, clock, HOUR)
    for policy in (HOUR, TWO_HOURS, HOUR, TWO_HOURS, HOUR):
        if "before" in when:
            limiter.sync()
        limiter.reconfigure(some_settings(policy))
        if "after" in when:
            limiter.peek(CLIENT)
            limiter.sync()
        assert limiter.check(CLIENT, cost=10).allowed
    limiter.sync()
    assert {IN_HOUR: 30, IN_TWO_HOURS: 20} == stored_by_series(store)
    assert 70 == limiter.peek(CLIENT).remaining
    assert [True, False] == [limiter.check(CLIENT, cost=cost).allowed for cost in (70, 1)]


def test_hits_of_a_wider_window_are_kept_after_it_is_narrowed(clock: Clock) -> None:
    """They are sent after the change, to a document that knows the narrow window only, and the change is taken back."""
    store = MemoryStore(clock)
    wide, narrow = a_policy(100, 600, frames=100), a_policy(100, 60, frames=10)
    here, there = a_limiter(store, clock, wide), a_limiter(store, clock, narrow)
    here.check(CLIENT, cost=40)
    here.reconfigure(some_settings(narrow))
    send_hits(there, 1, CLIENT)
    here.peek(CLIENT)
    here.sync()
    for _ in range(4):
        clock.now_s += 70
        for limiter in (here, there):
            send_hits(limiter, 1, CLIENT)

    here.reconfigure(some_settings(wide))
    here.peek(CLIENT)
    here.sync()
    assert 100 - 40 - 1 - 8 == here.peek(CLIENT).remaining


def test_series_is_found_again_before_the_next_cycle(clock: Clock) -> None:
    """The first request after the change marks the key as urgent."""
    limiter = a_limiter(MemoryStore(), clock, HOUR)
    limiter.check(CLIENT, cost=5)
    for policy in (HOUR, TWO_HOURS, HOUR):
        limiter.sync()
        limiter.sync_urgent()
        limiter.reconfigure(some_settings(policy))
        limiter.check(CLIENT)
    limiter.sync_urgent()
    assert 100 - 7 == limiter.peek(CLIENT).remaining


def test_change_that_changes_no_series_reads_nothing(clock: Clock) -> None:
    """Another limit is no reason to read documents."""
    store = FaultyStore(MemoryStore())
    limiter = a_limiter(store, clock, HOUR)
    limiter.check(CLIENT)
    limiter.sync()
    store.calls.clear()
    limiter.reconfigure(some_settings(replace(HOUR, limit=500)))
    limiter.check(CLIENT)
    assert limiter.sync_urgent() is None
    limiter.sync()
    assert [("write", 1)] == store.calls


def test_wider_window_of_the_same_frames_finds_older_frames(store: CounterStore, clock: Clock) -> None:
    """A wider window reads what a narrower one of the same series has let go."""
    narrow, wide = a_policy(100, 60), a_policy(100, 600, frames=100)
    limiter = a_limiter(store, clock, wide)
    limiter.check(CLIENT, cost=30)
    limiter.sync()
    clock.advance(300)
    limiter.reconfigure(some_settings(narrow))
    limiter.check(CLIENT)
    assert 99 == limiter.peek(CLIENT).remaining
    limiter.sync()
    limiter.reconfigure(some_settings(wide))
    limiter.check(CLIENT)
    limiter.sync()
    assert 100 - 32 == limiter.peek(CLIENT).remaining


def test_share_of_what_is_left_stays_after_a_change(clock: Clock) -> None:
    """An instance that has used a small part of a limit sends its hits early, also right after the limit changed."""
    store = MemoryStore()
    limiters = [a_limiter(store, clock, HOUR) for _ in range(2)]
    for limiter in limiters * 2:
        limiter.check(CLIENT)
        limiter.sync()
    limiter.sync_urgent()
    limiter.reconfigure(some_settings(replace(HOUR, limit=2000)))
    limiter.check(CLIENT)
    assert limiter.sync_urgent() is None
    limiter.check(CLIENT, cost=9)
    assert limiter.sync_urgent() is not None


def test_hits_that_cannot_be_sent_are_reported_after_a_change(clock: Clock) -> None:
    """In-flight hits of a former window are still in flight."""
    store = FaultyStore(MemoryStore())
    store.is_down = True
    limiter = a_limiter(store, clock, HOUR)
    limiter.check(CLIENT, cost=5)
    limiter.sync()
    limiter.reconfigure(some_settings(TWO_HOURS))
    limiter.check(CLIENT, cost=2)
    assert 7 == limiter.counts(CLIENT).in_flight_hits


def test_restart_with_another_window_starts_at_zero(store: CounterStore, clock: Clock) -> None:
    """The document keeps the old series, and the next process with the old window finds it."""
    for policy, remaining in ((HOUR, 94), (TWO_HOURS, 94), (HOUR, 88)):
        limiter = a_limiter(store, clock, policy)
        limiter.check(CLIENT, cost=6)
        limiter.sync()
        limiter.sync()
        assert remaining == limiter.peek(CLIENT).remaining
    assert {IN_HOUR: 12, IN_TWO_HOURS: 6} == stored_by_series(store)


def test_limit_on_trial_that_is_enforced_counts_in_a_series_of_its_own(store: CounterStore, clock: Clock) -> None:
    """Counts of the dry run are found again when the limit goes back to dry run."""
    trial = replace(TWO_HOURS, name="wide", mode=Mode.DRY_RUN)
    limiter = a_limiter(store, clock, HOUR, trial)
    for wide in (trial, replace(trial, mode=Mode.ENFORCE), trial):
        limiter.reconfigure(some_settings(HOUR, wide))
        limiter.check(CLIENT, cost=5)
        limiter.sync()
    assert {IN_HOUR: 15, Series(720, on_trial=True): 10, IN_TWO_HOURS: 5} == stored_by_series(store)


@pytest.mark.parametrize("fault", (None, Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.LATE))
def test_total_that_is_removed_and_added_again(clock: Clock, fault: Fault | None) -> None:
    """Each request that came while the total was limited is in its document once, whatever writes have failed."""
    store = FaultyStore(MemoryStore())
    with_total = some_settings(a_policy(), total=(a_policy(name="total"),))
    limiter = Limiter(with_total, store, clock=clock)
    for _ in range(4):
        for settings in (with_total, some_settings(a_policy())):
            limiter.reconfigure(settings)
            limiter.check(CLIENT, "kim", cost=5)
            store.faults.append(fault)
            limiter.sync()
            store.faults.clear()
    for held in list(store.held):
        store.deliver(held)
    for _ in range(3):
        limiter.sync()
        assert {Series(6): 20} == stored_by_series(store, TOTAL)
        assert {Series(6): 40} == stored_by_series(store, Key(CLIENT, "kim"))
