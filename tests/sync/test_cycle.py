"""Which keys are synchronised when, with how many calls, and what a limiter knows afterwards."""

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.rules import row_name
from oauth_ratelimit.counters.table import READ_HITS
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.sync.cycle import MAX_BATCH
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import FaultyStore
from tests.support.limiters import (
    CLIENT,
    KEY,
    a_limiter,
    a_policy,
    hit,
    known_keys,
    limiter_of,
    some_settings,
    stored_hits,
)

USERS = [f"user-{number}" for number in range(300)]


def read_count(faulty: FaultyStore) -> int:
    """Return how many documents were asked for since the last time."""
    return sum(keys for kind, keys in faulty.taken_calls() if kind == "read")


def cycles(limiter: Limiter, clock: Clock, count: int) -> None:
    for _ in range(count):
        clock.advance(1)
        limiter.sync()


def test_instance_that_writes_alone_reads_each_document_once_after_a_restart(faulty: FaultyStore, clock: Clock) -> None:
    """Each cycle sends many requests in one write."""
    expected = [("write", 100)] * 10
    for first in ([], [("write", 100), ("read", 100)]):
        limiter = a_limiter(faulty, clock)
        faulty.calls.clear()
        for _ in range(10):
            for user in USERS[:100]:
                limiter.check(CLIENT, user)
            cycles(limiter, clock, 1)
        assert first + expected == faulty.calls
        limiter.close()


def test_writes_lose_no_race_where_instances_know_of_each_other(faulty: FaultyStore, clock: Clock) -> None:
    """They read first, even if one of three writes twice in a row. Far from its limit, a key is written by its mark."""
    one, two, three = (a_limiter(faulty, clock, a_policy(3000)) for _ in range(3))
    conflicts = []
    for _ in range(10):
        for limiter in (one, two, three, three):
            limiter.check(CLIENT, cost=10)
            clock.advance(1)
            conflicts.append(limiter.sync().conflict_count)
    assert 0 < sum(conflicts) <= 3
    assert not sum(conflicts[8:])


def test_cost_of_a_hot_key_does_not_grow_with_the_number_of_instances(clock: Clock) -> None:
    """Each of them reads and writes it about once in a cycle, one after the other."""
    costs = []
    for count in (3, 30):
        faulty = FaultyStore()
        limiters = [a_limiter(faulty, clock) for _ in range(count)]
        for limiter in limiters * 5:
            clock.advance(1 / count)
            hit(limiter)
        costs.append(len(faulty.calls) / count)
    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.parametrize(("limit", "known"), [(3, 3), (5, 5), (6, 1)])
def test_key_is_read_once_more_unless_it_is_far_below_its_limit(
    faulty: FaultyStore, clock: Clock, limit: int, known: int
) -> None:
    """One cycle after another instance has used up a limit, it is used up here, too."""
    here, there = (a_limiter(faulty, clock, a_policy(limit)) for _ in range(2))
    hit(here)
    there.sync()
    for _ in range(limit - 1):
        there.check(CLIENT)
    there.sync()
    cycles(here, clock, 1)
    assert limit - known == here.peek(CLIENT).remaining


def test_idle_keys_far_from_their_limit_are_neither_written_nor_read_again(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock)
    for user in USERS:
        limiter.check(CLIENT, user)
    limiter.sync()
    faulty.taken_calls()
    cycles(limiter, clock, 300)
    assert {"read"} >= {name for name, _ in faulty.calls}
    assert read_count(faulty) <= len(USERS)
    assert 0 == limiter.sync().key_count


@pytest.mark.slow
@pytest.mark.parametrize(("writers", "used", "most"), [(1, 1, 1), (1, 3, 1), (2, 2, 32), (2, 4, 7)])
def test_idle_keys_near_their_limit_are_read_seldom_and_only_where_others_write_them(
    faulty: FaultyStore, clock: Clock, writers: int, used: int, most: int
) -> None:
    """Once after the requests; then only while a read may change a decision, and never after two windows."""
    fleet = [a_limiter(faulty, clock, a_policy(4)) for _ in range(writers)]
    for limiter in fleet:
        for user in USERS:
            limiter.check(CLIENT, user, cost=used // writers)
        limiter.sync()
    faulty.taken_calls()
    for _ in range(120):
        clock.advance(1)
        for limiter in fleet:
            limiter.sync(is_scheduled=True)
    assert len(USERS) <= read_count(faulty) <= most * writers * len(USERS)
    cycles(fleet[0], clock, 60)
    assert 0 == read_count(faulty)
    assert 0 == fleet[0].sync().key_count


@pytest.mark.parametrize(("later_s", "is_scheduled", "left"), [(0.0, False, 98), (0.4, False, 98), (0.4, True, 99)])
def test_sync_between_two_cycles_reads_idle_keys(
    faulty: FaultyStore, clock: Clock, later_s: float, is_scheduled: bool, left: int
) -> None:
    """A caller who does not wait for the next cycle learns what others have counted meanwhile.

    A scheduled cycle soon after a late one does not: it would be long, too, and the next one late.
    """
    here, there = (a_limiter(faulty, clock, a_policy(100)) for _ in range(2))
    here.check(CLIENT)
    cycles(here, clock, 3)
    hit(there)
    clock.advance(later_s)
    here.sync(is_scheduled=is_scheduled)
    assert left == here.peek(CLIENT).remaining


@pytest.mark.parametrize(
    ("limit", "used", "expected"), [(10, 0, 1), (1000, 0, 50), (1000, 500, 5), (1000, 996, 2), (10_000, 0, 50)]
)
def test_unsent_hits_of_a_small_part_of_a_limit_are_urgent(
    faulty: FaultyStore, clock: Clock, limit: int, used: int, expected: int
) -> None:
    """From 0.5 % of the limit on, or from this instance's share of what is left; 5 % of one that is far."""
    limiters = [a_limiter(faulty, clock, a_policy(limit)) for _ in range(2 if used else 1)]
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


def test_new_key_with_a_small_limit_is_read_at_once_and_before_its_first_write(
    faulty: FaultyStore, clock: Clock
) -> None:
    """A write that loses the race would take the time of a write, and show nothing."""
    here, there = (a_limiter(faulty, clock, a_policy(10)) for _ in range(2))
    hit(there, cost=10)
    assert None is here.sync_urgent()
    here.check(CLIENT)
    faulty.taken_calls()
    here.sync_urgent()
    assert [("read", 1), ("write", 1)] == faulty.calls
    assert not here.check(CLIENT).allowed
    assert None is here.sync_urgent()


def test_new_key_is_urgent_sooner_in_a_large_fleet(faulty: FaultyStore, clock: Clock) -> None:
    """All instances together admit 5 % of the limit before any of them has read the key."""
    fleet = [a_limiter(faulty, clock, a_policy(10_000)) for _ in range(40)]
    for limiter in (*fleet, fleet[0]):
        hit(limiter, "busy")
    for _ in range(12):
        fleet[0].check(CLIENT)
    assert fleet[0].sync_urgent() is not None


def test_hits_that_come_while_a_key_is_synchronised_make_it_urgent_again(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock, a_policy(10))
    limiter.check(CLIENT)
    faulty.before_write = lambda: limiter.check(CLIENT)
    limiter.sync_urgent()
    faulty.before_write = lambda: None
    assert 1 == stored_hits(faulty)
    assert limiter.sync_urgent() is not None
    assert 2 == stored_hits(faulty)
    assert limiter.sync_urgent() is None


def test_hits_that_come_while_a_key_is_read_make_it_urgent_again(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock, a_policy(3))
    limiter.peek(CLIENT)
    faulty.before_read = lambda: limiter.check(CLIENT, cost=2)
    limiter.sync_urgent()
    faulty.before_read = bool
    assert limiter.sync_urgent() is not None
    assert 2 == stored_hits(faulty)


def test_frames_that_no_limit_can_have_are_not_kept_in_memory(faulty: FaultyStore, clock: Clock) -> None:
    """A planted document has any number of them, and each decision would look through them."""
    series, start_s = Series(1), int(clock())
    frames = {start_s - number: 1 for number in range(5000)}
    faulty.inner._documents[KEY] = Snapshot(1, {series: frames}, {}, horizons={series: 5000})
    limiter = a_limiter(faulty, clock, a_policy(1000, 10))
    hit(limiter)
    assert 1000 - 12 <= limiter.peek(CLIENT).remaining <= 1000 - 11
    with limiter.host.locked():
        (hits, *_) = limiter._table.read(READ_HITS, row_name(KEY))
    assert len(hits) < 2000


def test_urgent_keys_overtake_the_parts_of_a_large_cycle(faulty: FaultyStore, clock: Clock) -> None:
    """Also one of a later part, which is synchronised once."""
    limiter = a_limiter(faulty, clock, a_policy(10_000))
    for number in range(3 * MAX_BATCH):
        limiter.check(CLIENT, str(number))
    asked = iter(["new", str(3 * MAX_BATCH - 1)])

    def ask() -> None:
        user = next(asked, None)
        if user is not None:
            limiter.check(CLIENT, user, cost=100)

    faulty.before_write = ask
    report = limiter.sync()
    writes = [keys for kind, keys in faulty.calls if kind == "write"]
    assert [MAX_BATCH, 1, MAX_BATCH, 1, MAX_BATCH - 1] == writes
    assert 3 * MAX_BATCH + 1 == report.flushed_count


def test_key_that_only_this_instance_has_written_is_not_read_first(faulty: FaultyStore, clock: Clock) -> None:
    """Nobody else had written this key when it was last seen. The write that then fails costs a read more."""
    here, there = (a_limiter(faulty, clock, a_policy(10)) for _ in range(2))
    for limiter in (here, there, here):
        hit(limiter, "another")
    for limiter, cost in ((here, 3), (there, 6)):
        limiter.check(CLIENT, cost=cost)
        limiter.sync_urgent()
    faulty.taken_calls()
    here.check(CLIENT)
    here.sync_urgent()
    assert [("write", 1), ("read", 1), ("write", 1)] == faulty.calls


@pytest.mark.parametrize(("limit", "interval_s"), [(40, 1.0), (400, 0.2)])
def test_key_that_others_fill_up_is_followed(faulty: FaultyStore, clock: Clock, limit: int, interval_s: float) -> None:
    """An instance that was asked twice follows the key with a few reads, and denies in time."""
    here, there = (a_limiter(faulty, clock, a_policy(limit), interval_s=interval_s) for _ in range(2))
    for limiter in (here, there, here):
        limiter.check(CLIENT, cost=limit // 8)
        limiter.sync_urgent()
    reads_before = faulty.calls.count(("read", 1))
    for count in range(limit - 3 * (limit // 8)):
        clock.advance(0.01)
        there.check(CLIENT)
        there.sync_urgent()
        here.sync_urgent()
        if count % round(100 * interval_s) == 0:
            here.sync(is_scheduled=True)
    clock.advance(0.01)
    here.sync_urgent()
    assert not here.check(CLIENT).allowed
    assert faulty.calls.count(("read", 1)) - reads_before < count + 14


def test_key_with_a_small_limit_is_read_again_soon_where_other_instances_exist(
    faulty: FaultyStore, clock: Clock
) -> None:
    here, there = (a_limiter(faulty, clock, a_policy(3)) for _ in range(2))
    for limiter in (here, there, here):
        hit(limiter, "another")
    here.check(CLIENT)
    here.sync_urgent()
    for _ in range(2):
        there.check(CLIENT)
        there.sync_urgent()
    clock.advance(0.02)
    assert here.next_urgent_s <= clock()
    here.sync_urgent()
    assert not here.check(CLIENT).allowed


def test_hits_above_a_limit_are_counted_once_over_all_instances(faulty: FaultyStore, clock: Clock) -> None:
    """Each of three instances admits six of ten before it knows of the others: eight are above the limit."""
    limiters = [a_limiter(faulty, clock, a_policy(10, name="few")) for _ in range(3)]
    for limiter in limiters:
        assert all(limiter.check(CLIENT).allowed for _ in range(6))
    over = [limiter.sync().over_admitted for _ in range(2) for limiter in limiters]
    assert [{}, {"few": 2}, {"few": 6}, {}, {}, {}] == over


def test_instance_that_counts_alone_admits_nothing_above_a_limit(faulty: FaultyStore, clock: Clock) -> None:
    """Also if it is asked while it writes."""
    limiter = a_limiter(faulty, clock, a_policy(10))
    faulty.before_write = lambda: limiter.check(CLIENT)
    for _ in range(15):
        limiter.check(CLIENT)
        assert not limiter.sync().over_admitted


def test_preload_reads_the_busiest_keys(faulty: FaultyStore, clock: Clock) -> None:
    old, new = (a_limiter(faulty, clock, a_policy(10)) for _ in range(2))
    for user in ("kim", "lee"):
        hit(old, CLIENT, user, cost=4)
        clock.advance(6)
    assert 1 == new.preload(1)
    assert [6, 10] == [new.peek(CLIENT, user).remaining for user in ("lee", "kim")]
    assert 2 == new.preload()
    assert [6, 6] == [new.peek(CLIENT, user).remaining for user in ("lee", "kim")]


@pytest.mark.parametrize("is_preloaded", [False, True], ids=["no preload", "preload"])
def test_rolling_restart_admits_one_more_each_and_with_preload_none(
    faulty: FaultyStore, clock: Clock, is_preloaded: bool
) -> None:
    fleet = [a_limiter(faulty, clock, a_policy(20)) for _ in range(5)]
    admitted = sum(limiter.check(CLIENT, "kim").allowed for limiter in fleet * 4)
    for limiter in fleet * 2:
        limiter.sync()
    assert 20 == admitted
    for old in fleet:
        old.close()
        fresh = a_limiter(faulty, clock, a_policy(20))
        if is_preloaded:
            fresh.preload()
        for _ in range(3):
            admitted += fresh.check(CLIENT, "kim").allowed
            fresh.sync_urgent()
    assert (0 if is_preloaded else 5) == admitted - 20


def test_preload_measures_the_clock_of_the_store(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is open when the first request comes, and its key waits for nothing."""
    limiter = a_limiter(faulty, clock)
    limiter.preload()
    monkeypatch.setattr(faulty, "time_s", None)
    limiter.check(CLIENT)
    assert None is limiter.sync().error
    assert 1 == stored_hits(faulty)


@pytest.mark.parametrize("step_s", [-20.0, -3600.0, -30 * 86_400.0])
def test_key_is_forgotten_in_time_although_the_clock_was_set_back(clock: Clock, step_s: float) -> None:
    never_set = Clock()
    limiter = Limiter(some_settings(a_policy(10)), MemoryStore(), clock=clock, monotonic=never_set)
    hit(limiter)
    limiter.sync(is_scheduled=True)  # it has noted the time of the request
    clock.advance(step_s)
    for _ in range(3):
        limiter.sync(is_scheduled=True)
        clock.advance(70)
        never_set.advance(70)
    assert [] == known_keys(limiter)


def test_key_that_is_asked_for_while_its_hits_are_written_is_read_with_the_next_cycle(
    faulty: FaultyStore, clock: Clock
) -> None:
    here, there = (a_limiter(faulty, clock, a_policy(40)) for _ in range(2))
    here.check(CLIENT)
    faulty.before_write = lambda: here.peek(CLIENT)
    here.sync(is_scheduled=True)
    faulty.before_write = bool
    hit(there, cost=10)
    clock.advance(1)
    here.peek(CLIENT)
    here.sync(is_scheduled=True)
    assert 40 - 11 == here.peek(CLIENT).remaining


def test_room_is_made_by_keys_that_are_admitted_rather_than_by_those_that_are_denied(clock: Clock) -> None:
    """Although the one that is denied was quiet longest."""
    settings = {"limits": {"client": ["3 per 1 hour"]}, "max_keys": 10}
    limiter = limiter_of(settings, clock=clock)
    for client_id in ("denied",) * 3 + tuple(f"admitted-{number}" for number in range(9)):
        limiter.check(client_id)
    limiter.sync()
    assert 9 == len(known_keys(limiter))
    assert not limiter.peek("denied").allowed
    limiter.close()


def test_key_that_was_read_in_vain_is_read_again_after_its_next_request(faulty: FaultyStore, clock: Clock) -> None:
    here, there = (a_limiter(faulty, clock, a_policy(8)) for _ in range(2))
    for limiter in (here, there):
        limiter.check(CLIENT, cost=3)
        limiter.sync()
    cycles(here, clock, 30)  # long enough for reads to become rare
    hit(here)
    here.sync()
    faulty.taken_calls()
    cycles(here, clock, 6)
    assert 6 == read_count(faulty)
