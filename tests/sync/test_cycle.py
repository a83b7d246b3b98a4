"""Which keys a cycle looks at, what it forgets, and what it says."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.key_state import SPARE_FRAMES, Counts
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.base import Change, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.cycle import PART_SIZE
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, some_settings, stored_hits
from tests.sync.faulty_store import FaultyStore

USERS = [f"user-{number}" for number in range(300)]


@pytest.fixture
def faulty() -> FaultyStore:
    """A store that can go down, and that counts calls."""
    return FaultyStore(MemoryStore())


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """Logged events."""
    with capture_logs() as captured:
        yield captured


def read_count(faulty: FaultyStore) -> int:
    """Return how many documents were asked for, and forget it."""
    count = sum(keys for kind, keys in faulty.calls if kind == "read")
    faulty.calls.clear()
    return count


def test_outage_is_logged_at_its_start_each_minute_and_at_its_end(
    faulty: FaultyStore, clock: Clock, events: list[Any]
) -> None:
    """A failure is said when it begins, once a minute while it lasts, and when it is over."""
    limiter = a_limiter(faulty, clock, a_policy(window_s=600))
    faulty.is_down = True
    for _ in range(150):
        limiter.check(CLIENT)
        limiter.sync()
        clock.advance(1)
    faulty.is_down = False
    for _ in range(3):
        limiter.check(CLIENT)
        limiter.sync()
    assert ["flush_failed"] * 3 + ["flush_recovered"] == [event["event"] for event in events]
    assert [0.0, 60.0, 120.0] == [event["failing_for_s"] for event in events[:3]]
    assert ("warning", "down") == (events[0]["log_level"], events[0]["error"])
    assert ("info", 150.0) == (events[3]["log_level"], events[3]["failed_for_s"])
    assert 153 == stored_hits(faulty.inner)


def test_second_outage_is_logged_at_once(faulty: FaultyStore, clock: Clock, events: list[Any]) -> None:
    """After a recovery the next failure is said at once."""
    limiter = a_limiter(faulty, clock)
    for is_down in (True, False, True, False):
        faulty.is_down = is_down
        limiter.check(CLIENT)
        limiter.sync()
    assert ["flush_failed", "flush_recovered"] * 2 == [event["event"] for event in events]


def test_outage_longer_than_the_window_drops_hits_that_no_longer_matter(
    faulty: FaultyStore, clock: Clock, events: list[Any]
) -> None:
    """The oldest hits are dropped and logged with their number; the newest arrive, and those of unknown outcome."""
    limiter = a_limiter(faulty, clock, a_policy(window_s=60, frames=10))
    faulty.is_down = True
    for _ in range(100):
        limiter.check(CLIENT)
        limiter.sync()
        clock.advance(6)
    faulty.is_down = False
    limiter.sync()
    dropped = sum(event["hits"] for event in events if event["event"] == "hits_dropped")
    assert 100 == dropped + stored_hits(faulty.inner)
    assert 11 + SPARE_FRAMES + 1 == stored_hits(faulty.inner)
    assert 0 == limiter.counts(CLIENT).in_flight_hits


def test_clock_that_steps_ahead_in_an_outage(faulty: FaultyStore, clock: Clock, events: list[Any]) -> None:
    """Hits that wait for the store are sent, however old a wrong clock takes them for."""
    limiter = a_limiter(faulty, clock, a_policy(window_s=60, frames=10))
    faulty.is_down = True
    limiter.check(CLIENT)
    limiter.sync()
    limiter.check(CLIENT)
    clock.advance(86_400)
    limiter.sync()
    faulty.is_down = False
    limiter.sync()
    assert 2 == stored_hits(faulty.inner)
    assert "hits_dropped" not in {event["event"] for event in events}


@pytest.mark.parametrize("is_known", [True, False])
def test_unsent_hits_do_not_grow_with_an_outage(
    faulty: FaultyStore, clock: Clock, events: list[Any], is_known: bool
) -> None:
    """The store is called or, if the owner knows of the outage, is not."""
    limiter = a_limiter(faulty, clock, a_policy(window_s=60, frames=10))
    faulty.is_down = True
    in_flight = []
    for _ in range(300):
        limiter.check(CLIENT)
        limiter.sync(is_reachable=not is_known)
        clock.advance(6)
        in_flight.append(limiter.counts(CLIENT).in_flight_hits)
    assert max(in_flight) <= 11 + SPARE_FRAMES + 1
    assert is_known == (not faulty.calls)
    limiter.close()
    assert "hits_undelivered" == events[-1]["event"]


def test_idle_cycle_calls_no_store(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock)
    for _ in range(5):
        limiter.sync()
        clock.advance(1)
    assert [] == faulty.calls


def test_cycle_sends_many_requests_in_one_write(faulty: FaultyStore, clock: Clock) -> None:
    """However many requests came, a cycle costs one round trip, and no reading while nobody else writes."""
    limiter = a_limiter(faulty, clock)
    for _ in range(10):
        for user in USERS[:100]:
            limiter.check(CLIENT, user)
        limiter.sync()
        clock.advance(1)
    assert [("write", 100)] * 10 == faulty.calls


@pytest.mark.parametrize(("limit", "known"), [(3, 3), (5, 5), (6, 1)])
def test_key_is_read_once_more_unless_it_is_far_below_its_limit(
    faulty: FaultyStore, clock: Clock, limit: int, known: int
) -> None:
    """So one cycle after another instance has used up a limit, it is used up here, too."""
    here, there = (a_limiter(faulty, clock, a_policy(limit, 60)) for _ in range(2))
    here.check(CLIENT)
    here.sync()
    there.sync()
    for _ in range(limit - 1):
        there.check(CLIENT)
    there.sync()
    clock.advance(1)
    here.sync()
    assert known == here.counts(CLIENT).shared_hits


def test_idle_key_far_from_its_limit_is_not_read_again(faulty: FaultyStore, clock: Clock) -> None:
    """
    Keys far from their limit are not read again unless they are asked for, then forgotten: no call is made for them.
    """
    limiter = a_limiter(faulty, clock, a_policy(window_s=60))
    for user in USERS:
        limiter.check(CLIENT, user)
    limiter.sync()
    read_count(faulty)
    for _ in range(300):
        clock.advance(1)
        limiter.sync()
    assert read_count(faulty) <= len(USERS)
    assert 0 == limiter.sync().key_count


def test_key_that_is_forgotten_is_not_read_before(faulty: FaultyStore, clock: Clock) -> None:
    """It was requested twice, so it is due for the second time when its last read was long ago."""
    limiter = a_limiter(faulty, clock, a_policy(100, 10))
    limiter.check(CLIENT)
    limiter.sync()
    clock.advance(1.5)
    limiter.check(CLIENT)
    limiter.sync_urgent()
    read_count(faulty)
    for _ in range(24):
        clock.advance(1)
        limiter.sync()
    assert 0 == read_count(faulty)
    assert 0 == limiter.sync().key_count


@pytest.mark.parametrize(("used", "reads"), [(4, 0), (5, 1)])
def test_key_of_a_window_of_one_cycle_is_read_again_from_half_of_its_limit_on(
    faulty: FaultyStore, clock: Clock, used: int, reads: int
) -> None:
    limiter = a_limiter(faulty, clock, a_policy(10, 1))
    limiter.check(CLIENT, cost=used)
    limiter.sync()
    read_count(faulty)
    clock.advance(1)
    limiter.sync()
    assert reads == read_count(faulty)


@pytest.mark.no_cover
@pytest.mark.parametrize(("used", "fewest", "most"), [(1, 25, 35), (2, 50, 65), (3, 50, 65)])
def test_idle_key_near_its_limit_is_pulled(
    faulty: FaultyStore, clock: Clock, used: int, fewest: int, most: int
) -> None:
    """They are pulled until their window is over: thirty-odd reads each, from half of the limit on twice as many."""
    limiter = a_limiter(faulty, clock, a_policy(4, 60))
    for user in USERS:
        limiter.check(CLIENT, user, cost=used)
    limiter.sync()
    read_count(faulty)
    for _ in range(60):
        clock.advance(1)
        limiter.sync()
    assert fewest * len(USERS) <= read_count(faulty) <= most * len(USERS)
    for _ in range(120):
        clock.advance(1)
        limiter.sync()
    read_count(faulty)
    assert 0 == limiter.sync().key_count


def test_idle_key_that_others_use_up_is_denied(faulty: FaultyStore, clock: Clock) -> None:
    """An instance that has denied or nearly denied a key learns of what others do within the key's window."""
    here, there = (a_limiter(faulty, clock, a_policy(10, 60)) for _ in range(2))
    here.check(CLIENT, cost=6)
    here.sync()
    there.check(CLIENT, cost=4)
    there.sync()
    for _ in range(20):
        clock.advance(1)
        here.sync()
    assert Counts(10, 0) == here.counts(CLIENT)
    assert not here.check(CLIENT).allowed


def test_key_asked_for_again_is_read_with_the_next_cycle(faulty: FaultyStore, clock: Clock) -> None:
    """A key that was left alone is read with the first cycle after it is asked for again."""
    here, there = (a_limiter(faulty, clock, a_policy(100, 60)) for _ in range(2))
    here.check(CLIENT)
    here.sync()
    for _ in range(20):
        clock.advance(1)
        here.sync()
    there.check(CLIENT, cost=50)
    there.sync()
    here.peek(CLIENT)
    here.sync()
    assert Counts(51, 0) == here.counts(CLIENT)


def test_new_key_with_a_small_limit_is_urgent(faulty: FaultyStore, clock: Clock) -> None:
    """The next short cycle learns what the others have counted."""
    here, there = (a_limiter(faulty, clock, a_policy(1000)) for _ in range(2))
    there.check(CLIENT, cost=50)
    there.sync()
    assert None is here.sync_urgent()
    here.check(CLIENT)
    report = here.sync_urgent()
    assert report is not None
    assert Counts(51, 0) == here.counts(CLIENT)
    assert None is here.sync_urgent()
    here.check(CLIENT)
    assert None is here.sync_urgent()


def test_urgent_key_does_not_wait_for_the_rest_of_a_full_cycle(faulty: FaultyStore, clock: Clock) -> None:
    """A cycle of many keys takes long. A request that comes meanwhile is synchronised between two parts of it."""
    limiter = a_limiter(faulty, clock, a_policy(10_000))
    for number in range(3 * PART_SIZE):
        limiter.check(CLIENT, str(number))
    faulty.before_write = lambda: limiter.check("new", cost=100)
    report = limiter.sync()
    assert [PART_SIZE, 1, PART_SIZE, 1, PART_SIZE] == [keys for kind, keys in faulty.calls if kind == "write"]
    assert 3 * PART_SIZE + 2 == report.flushed_count


def test_key_of_a_later_part_that_is_urgent_meanwhile_is_synchronised_once(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock, a_policy(10_000))
    for number in range(2 * PART_SIZE):
        limiter.check(CLIENT, str(number))

    def ask() -> None:
        faulty.before_write = lambda: None
        limiter.check(CLIENT, str(2 * PART_SIZE - 1), cost=100)

    faulty.before_write = ask
    limiter.sync()
    assert [("write", PART_SIZE), ("write", 1), ("write", PART_SIZE - 1)] == faulty.calls


def test_new_key_with_a_small_limit_is_read_before_its_first_write(faulty: FaultyStore, clock: Clock) -> None:
    """A write that loses the race would take the time of a write, and show nothing."""
    here, there = (a_limiter(faulty, clock, a_policy(10)) for _ in range(2))
    there.check(CLIENT, cost=10)
    there.sync()
    here.check(CLIENT)
    faulty.calls.clear()
    here.sync_urgent()
    assert [("read", 1), ("write", 1)] == faulty.calls
    assert not here.check(CLIENT).allowed


def test_key_that_fills_up_is_read_first_where_other_instances_exist(faulty: FaultyStore, clock: Clock) -> None:
    """Nobody else has written this key when it was last seen, but others are at work."""
    here, there = (a_limiter(faulty, clock, a_policy(10)) for _ in range(2))
    for limiter in (here, there, here):
        limiter.check("another")
        limiter.sync()
    here.check(CLIENT, cost=3)
    here.sync_urgent()
    there.check(CLIENT, cost=6)
    there.sync_urgent()
    faulty.calls.clear()
    here.check(CLIENT)
    here.sync_urgent()
    assert [("read", 1), ("write", 1)] == faulty.calls


def test_new_key_is_written_at_once_where_new_keys_mostly_have_no_document(faulty: FaultyStore, clock: Clock) -> None:
    """Reads of documents that do not exist are left out once an instance has found that."""
    limiter = a_limiter(faulty, clock, a_policy(10))
    for user in USERS[:50]:
        limiter.check(CLIENT, user)
        limiter.sync_urgent()
    faulty.calls.clear()
    limiter.check(CLIENT)
    limiter.sync_urgent()
    assert [("write", 1)] == faulty.calls


def test_new_key_far_below_its_limit_waits_for_the_next_cycle(faulty: FaultyStore, clock: Clock) -> None:
    """It is urgent from 0.5 % of the limit on, before it was read: so a used up limit admits little more."""
    here, there = (a_limiter(faulty, clock, a_policy(10_000)) for _ in range(2))
    there.check(CLIENT, cost=10_000)
    there.sync()
    assert all(here.check(CLIENT).allowed for _ in range(49))
    assert None is here.sync_urgent()
    assert here.check(CLIENT).allowed
    assert here.sync_urgent() is not None
    assert not here.check(CLIENT).allowed


def test_new_key_is_urgent_sooner_in_a_large_fleet(faulty: FaultyStore, clock: Clock) -> None:
    """The hits that instances admit before they have read a key are 5 % of the limit for all that are known."""
    fleet = [a_limiter(faulty, clock, a_policy(10_000)) for _ in range(40)]
    for limiter in (*fleet, fleet[0]):
        limiter.check("busy")
        limiter.sync()
    for _ in range(12):
        fleet[0].check(CLIENT)
    assert fleet[0].sync_urgent() is not None


def test_first_look_at_a_key_is_its_only_read_where_nobody_else_writes(faulty: FaultyStore, clock: Clock) -> None:
    """An instance that was restarted finds the documents of its former process, and reads each once."""
    users = [str(number) for number in range(100)]
    for _ in range(2):
        limiter = a_limiter(faulty, clock)
        read_count(faulty)
        for _ in range(4):
            for user in users:
                limiter.check(CLIENT, user)
            clock.advance(1)
            limiter.sync()
        limiter.close()
    assert len(users) == read_count(faulty)


def test_write_reads_first_where_others_mostly_write_in_between(faulty: FaultyStore, clock: Clock) -> None:
    """No write of three instances loses the race once they know each other, even if one of them writes twice."""
    one, two, three = (a_limiter(faulty, clock) for _ in range(3))
    conflicts = []
    for _ in range(10):
        for limiter in (one, two, three, three):
            limiter.check(CLIENT)
            clock.advance(1)
            conflicts.append(limiter.sync().conflict_count)
    assert 0 < sum(conflicts) <= 3
    assert not sum(conflicts[8:])


def test_limit_of_all_users_is_urgent_with_the_first_request_of_a_client(faulty: FaultyStore, clock: Clock) -> None:
    """Hits of the other users elsewhere count from the next short cycle on."""
    settings = some_settings(total=(a_policy(1000),))  # of which one hit is too few to be urgent by itself
    here, there = (Limiter(settings, faulty, clock=clock, monotonic=clock) for _ in range(2))
    there.check(CLIENT, "ann", cost=500)
    there.sync()
    here.check(CLIENT, "bob")
    here.sync_urgent()
    assert 499 == here.peek(CLIENT, "bob").remaining


def test_new_key_in_an_outage_is_read_afterwards(faulty: FaultyStore, clock: Clock) -> None:
    """Keys that could not be read are read with the first cycle that can."""
    here, there = (a_limiter(faulty, clock) for _ in range(2))
    there.check(CLIENT, cost=50)
    there.sync()
    here.peek(CLIENT)
    faulty.is_down = True
    for _ in range(3):
        here.sync()
        clock.advance(1)
    faulty.is_down = False
    here.sync()
    assert Counts(50, 0) == here.counts(CLIENT)


@pytest.mark.parametrize(("limit", "used", "expected"), [(10, 0, 1), (1000, 0, 5), (1000, 996, 2)])
def test_unsent_hits_of_a_small_part_of_a_limit_are_urgent(
    faulty: FaultyStore, clock: Clock, limit: int, used: int, expected: int
) -> None:
    """
    Hits are sent at once when they are 0.5 % of the limit, or this instance's share of what is left: also if no other
    instance is known, because it may have come a moment ago.
    """
    limiters = [a_limiter(faulty, clock, a_policy(limit, 60)) for _ in range(2 if used else 1)]
    here, count = limiters[0], 0
    here.peek(CLIENT)
    for limiter in limiters[1:]:
        limiter.check(CLIENT, cost=used)
    for limiter in reversed(limiters * 2):
        limiter.sync_urgent()
    while here.sync_urgent() is None:
        here.check(CLIENT)
        count += 1
    assert expected == count


def test_hits_that_come_while_a_key_is_synchronised_make_it_urgent_again(faulty: FaultyStore, clock: Clock) -> None:
    """A request that comes while the key is written does not wait for the next full cycle."""
    limiter = a_limiter(faulty, clock, a_policy(10))
    limiter.check(CLIENT)
    faulty.before_write = lambda: limiter.check(CLIENT)
    limiter.sync_urgent()
    faulty.before_write = lambda: None
    assert 1 == stored_hits(faulty.inner)
    assert limiter.sync_urgent() is not None
    assert 2 == stored_hits(faulty.inner)
    assert limiter.sync_urgent() is None


def test_key_that_others_fill_up_is_read_until_it_is_full(faulty: FaultyStore, clock: Clock) -> None:
    """An instance that was asked once follows a key that others fill up, with a few reads, and denies in time."""
    here, there = (a_limiter(faulty, clock, a_policy(40)) for _ in range(2))
    for limiter in (here, there):
        limiter.check(CLIENT, cost=5)
        limiter.sync_urgent()
    reads_before = faulty.calls.count(("read", 1))
    here.check(CLIENT)
    here.sync_urgent()
    for _ in range(29):
        clock.advance(0.01)
        there.check(CLIENT)
        there.sync_urgent()
        if here.next_urgent_s <= clock():
            here.sync_urgent()
    assert not here.check(CLIENT).allowed
    assert faulty.calls.count(("read", 1)) - reads_before < 29 + 12


def test_key_with_a_small_limit_is_read_again_soon_where_other_instances_exist(
    faulty: FaultyStore, clock: Clock
) -> None:
    """Nobody else had written it when it was read, but others are at work and may use it up at any time."""
    here, there = (a_limiter(faulty, clock, a_policy(3)) for _ in range(2))
    for limiter in (here, there, here):
        limiter.check("another")
        limiter.sync()
    here.check(CLIENT)
    here.sync_urgent()
    for _ in range(2):
        there.check(CLIENT)
        there.sync_urgent()
    clock.advance(0.02)
    assert here.next_urgent_s <= clock()
    here.sync_urgent()
    assert not here.check(CLIENT).allowed


def test_early_reads_go_by_the_hits_that_the_window_still_holds(faulty: FaultyStore, clock: Clock) -> None:
    """Three hits of a limit of 10 per second, of which one and a little count after 0.9 seconds."""
    here, there = (a_limiter(faulty, clock, a_policy(10, 1)) for _ in range(2))
    clock.advance(-clock() % 1)
    there.check(CLIENT, cost=2)
    there.sync_urgent()
    clock.advance(1.9)
    here.check(CLIENT)
    here.sync_urgent()
    assert math.inf == here.next_urgent_s


def test_removed_document_admits_again_after_the_next_cycle(faulty: FaultyStore, clock: Clock) -> None:
    """
    A client that is denied and whose document is removed is admitted again after the next cycle, on every instance.
    """
    limiters = [a_limiter(faulty, clock, a_policy(2)) for _ in range(2)]
    for limiter in limiters:
        limiter.check(CLIENT)
        limiter.sync()
    for limiter in limiters:
        limiter.peek(CLIENT)
        limiter.sync()
        assert not limiter.check(CLIENT).allowed
    assert isinstance(faulty.inner, MemoryStore)
    faulty.inner.remove(KEY)
    for limiter in limiters:
        assert not limiter.check(CLIENT).allowed
        limiter.sync()
        assert limiter.check(CLIENT).allowed


def test_unexpected_error_costs_a_cycle_and_no_hit(faulty: FaultyStore, clock: Clock, events: list[Any]) -> None:
    """An exception that no store should raise costs a cycle and no hit, and is logged as the bug it is."""
    limiter = a_limiter(faulty, clock)

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    faulty.before_write = fail
    limiter.check(CLIENT)
    assert limiter.sync().error is not None
    assert {"cycle_failed", "flush_failed"} == {event["event"] for event in events}
    faulty.before_write = lambda: None
    limiter.check(CLIENT)
    assert None is limiter.sync().error
    assert 2 == stored_hits(faulty.inner)


@pytest.mark.parametrize("is_applied", [True, False], ids=["applied", "not applied"])
def test_interrupted_cycle_loses_and_doubles_nothing(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_applied: bool
) -> None:
    """Ctrl-C in the thread that calls ``sync`` ends the write, and maybe not before the store has applied it."""
    limiter = a_limiter(faulty, clock)

    def interrupt(writer: str, changes: Sequence[Change]) -> WriteResult:
        if is_applied:
            faulty.inner.compare_and_set(writer, changes)
        raise KeyboardInterrupt

    for user in (None, "kim"):
        limiter.check(CLIENT, user, cost=3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(faulty, "compare_and_set", interrupt)
        limiter.sync()
    limiter.check(CLIENT)
    limiter.close()
    assert [4, 3] == [stored_hits(faulty.inner, Key(CLIENT, user)) for user in (None, "kim")]


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), KeyError("localTime")])
def test_hits_wait_until_the_clock_of_the_store_is_measured(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The first measurement shows the frames that hits belong in. Without it nothing is sent, and nothing is lost."""
    limiter = a_limiter(faulty, clock)

    def fail() -> float:
        raise error

    for _ in range(2):
        limiter.check(CLIENT)
        with monkeypatch.context() as patch, capture_logs():
            patch.setattr(faulty, "time_s", fail)
            assert limiter.sync().error is not None
    assert ([], 2) == (faulty.calls, limiter.counts(CLIENT).in_flight_hits)
    limiter.sync()
    assert 2 == stored_hits(faulty.inner)


def test_close_sends_last_hits_with_a_second_try(faulty: FaultyStore, clock: Clock, events: list[Any]) -> None:
    """Closing sends what is left, trying again if the first answers are lost."""
    limiter = a_limiter(faulty, clock)
    limiter.check(CLIENT, cost=7)
    outages = iter((True, False))
    faulty.before_write = lambda: setattr(faulty, "is_down", next(outages))
    faulty.before_read = lambda: setattr(faulty, "is_down", False)
    limiter.close()
    assert 7 == stored_hits(faulty.inner)
    assert "hits_undelivered" not in {event["event"] for event in events}


def test_close_during_an_outage_logs_undelivered_hits_by_client(
    faulty: FaultyStore, clock: Clock, events: list[Any]
) -> None:
    """Unsent hits are logged by client, after a few tries."""
    limiter = a_limiter(faulty, clock)
    faulty.is_down = True
    limiter.check("one", cost=2)
    limiter.check("one", "kim")
    limiter.check("two")
    limiter.close()
    event = events[-1]
    assert ("hits_undelivered", 4, {"one": 3, "two": 1}) == (event["event"], event["hits"], event["by_client"])
    assert 3 == len(faulty.calls)


def test_close_without_a_store_logs_nothing(clock: Clock) -> None:
    """There is nothing to send, and nothing to say."""
    limiter = a_limiter(None, clock)
    limiter.check(CLIENT)
    with capture_logs() as logged:
        limiter.close()
        limiter.close()
    assert [] == logged


def test_preload_reads_the_busiest_keys(faulty: FaultyStore, clock: Clock) -> None:
    """A new instance can learn what was busy last before its first request, the busiest first."""
    old, new = (a_limiter(faulty, clock, a_policy(10)) for _ in range(2))
    for user in ("kim", "lee"):
        old.check(CLIENT, user, cost=4)
        old.sync()
        clock.advance(6)
    assert 1 == new.preload(1)
    assert [6, 10] == [new.peek(CLIENT, user).remaining for user in ("lee", "kim")]
    assert 2 == new.preload()
    assert [6, 6] == [new.peek(CLIENT, user).remaining for user in ("lee", "kim")]


def test_preload_measures_the_clock_of_the_store(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the connection is open when the first request comes, and its key waits for nothing."""
    limiter = a_limiter(faulty, clock)
    limiter.preload()
    monkeypatch.setattr(faulty, "time_s", None)
    limiter.check(CLIENT)
    assert None is limiter.sync().error
    assert 1 == stored_hits(faulty.inner)


def test_preloaded_key_is_read_before_its_first_write(faulty: FaultyStore, clock: Clock) -> None:
    """Another server may have answered the preload. Reads of the cycle are never older than its writes."""
    old, new = (a_limiter(faulty, clock) for _ in range(2))
    old.check(CLIENT)
    old.sync()
    new.preload()
    new.check(CLIENT)
    faulty.calls.clear()
    new.sync()
    assert [("read", 1), ("write", 1)] == faulty.calls


def test_total_has_a_document_of_its_own(faulty: FaultyStore, clock: Clock) -> None:
    """The total of all users has a document of its own, beside the users'."""
    settings = some_settings(a_policy(), total=(a_policy(10, name="total"),))
    here, there = (Limiter(settings, faulty, clock=clock) for _ in range(2))
    for user in ("kim", "lee"):
        here.check(CLIENT, user, cost=4)
    here.sync()
    there.peek(CLIENT, "max")
    there.sync()
    assert [8, 4, 4] == [
        stored_hits(faulty.inner, key)
        for key in (Key(CLIENT, None, "client_total"), Key(CLIENT, "kim"), Key(CLIENT, "lee"))
    ]
    assert ("total", 2) == (there.peek(CLIENT, "max").policy, there.peek(CLIENT, "max").remaining)


@pytest.mark.parametrize("later_s", [0.0, 0.4])
def test_sync_between_two_cycles_reads_idle_keys(faulty: FaultyStore, clock: Clock, later_s: float) -> None:
    """A caller who does not wait for the next cycle learns what others have counted meanwhile."""
    here, there = (a_limiter(faulty, clock, a_policy(100, 60)) for _ in range(2))
    here.check(CLIENT)
    for _ in range(3):
        clock.advance(1)
        here.sync()
    there.check(CLIENT)
    there.sync()
    clock.advance(later_s)
    here.sync()
    assert Counts(2, 0) == here.counts(CLIENT)


def test_scheduled_cycle_soon_after_a_late_one_reads_no_idle_keys(faulty: FaultyStore, clock: Clock) -> None:
    """Reading all would make that cycle long, too, and the next one late."""
    limiter = a_limiter(faulty, clock, a_policy(100, 60))
    limiter.check(CLIENT)
    for _ in range(3):
        clock.advance(1)
        limiter.sync(is_scheduled=True)
    faulty.calls.clear()
    clock.advance(0.3)
    limiter.sync(is_scheduled=True)
    assert [] == faulty.calls


def test_hits_above_a_limit_are_counted_once_over_all_instances(faulty: FaultyStore, clock: Clock) -> None:
    """Each of three instances admits six of ten before it knows of the others: eight are above the limit."""
    limiters = [a_limiter(faulty, clock, a_policy(10, name="few")) for _ in range(3)]
    for limiter in limiters:
        for _ in range(6):
            assert limiter.check(CLIENT).allowed
    over = [limiter.sync().over_admitted for _ in range(2) for limiter in limiters]
    assert [{}, {"few": 2}, {"few": 6}, {}, {}, {}] == over


def test_instance_that_counts_alone_admits_nothing_above_a_limit(faulty: FaultyStore, clock: Clock) -> None:
    """One instance decides on all hits, so no hit is above the limit, also if it is asked while it writes."""
    limiter = a_limiter(faulty, clock, a_policy(10))
    faulty.before_write = lambda: limiter.check(CLIENT)
    for _ in range(15):
        limiter.check(CLIENT)
        assert not limiter.sync().over_admitted
