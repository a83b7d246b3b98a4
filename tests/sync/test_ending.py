"""The end of a limiter: its last hits, its marks in documents, and the time that it takes on a store that waits."""

import threading

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.errors import StoreUnreachable
from oauth_ratelimit.process.deadline import ENDING_S, Deadline
from testbed.clock import Clock, wait_until
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, hit, limiter_of, some_settings, stored_hits

WORKERS = 4
Reports = list[tuple[str, dict[str, int]]]


def end(limiter: Limiter, deadline: Deadline | None = None) -> Reports:
    """Close a limiter, and return the hits that it reported, by event and client."""
    with capture_logs() as logs:
        limiter.close(deadline)
    return [(line["event"], line["by_client"]) for line in logs if line["event"].startswith("hits_")]


def writers(faulty: FaultyStore) -> int:
    return len(faulty.inner.read([KEY])[KEY].writers)


def a_busy_limiter(faulty: FaultyStore, clock: Clock) -> Limiter:
    """Return a limiter that has flushed two hits and has three to send."""
    limiter = a_limiter(faulty, clock)
    hit(limiter, cost=2)
    limiter.check(CLIENT, cost=3)
    faulty.taken_calls()
    return limiter


@pytest.mark.parametrize("delay_s", [0.0, 1.0, 2.0])
def test_slow_store_gets_the_last_hits(faulty: FaultyStore, clock: Clock, delay_s: float) -> None:
    """The last flush only writes: it reads nothing, and asks for no time."""
    limiter = a_busy_limiter(faulty, clock)
    faulty.delay_s = delay_s
    begun_s = clock()
    assert [] == end(limiter)
    assert 5 == stored_hits(faulty.inner)
    assert [("write", 1), ("remove_marks", 1)] == faulty.calls
    assert clock() - begun_s <= ENDING_S


@pytest.mark.parametrize(("is_reached", "event"), [(True, "hits_unconfirmed"), (False, "hits_undelivered")])
def test_store_that_never_answers_is_tried_again_until_the_time_is_up(
    faulty: FaultyStore, clock: Clock, is_reached: bool, event: str
) -> None:
    """Hits of a write without an answer are not reported as undelivered: they may be stored."""
    limiter = a_busy_limiter(faulty, clock)
    faulty.delay_s, faulty.is_reached = 3600.0, is_reached
    begun_s = clock()
    assert [(event, {CLIENT: 3})] == end(limiter)
    assert ENDING_S == pytest.approx(clock() - begun_s)
    assert 3 == len(faulty.calls)


def test_last_hits_are_sent_with_a_second_try(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock)
    limiter.check(CLIENT, cost=7)
    outages = iter((True, False))
    faulty.before_write = lambda: setattr(faulty, "is_down", next(outages))
    faulty.before_read = lambda: setattr(faulty, "is_down", False)
    assert ([], 7) == (end(limiter), stored_hits(faulty.inner))


def test_hits_whose_writes_have_reached_no_server_are_undelivered(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_busy_limiter(faulty, clock)
    faulty.error = StoreUnreachable("no server")
    faulty.faults.extend([Fault.LOST_REQUEST] * 2)
    limiter.sync()
    limiter.sync()
    faulty.is_down = True
    assert [("hits_undelivered", {CLIENT: 3})] == end(limiter)


def test_undelivered_hits_are_logged_by_client(faulty: FaultyStore, clock: Clock) -> None:
    """A request of a user is in the hits of the user and in those of all users together, and is reported once."""
    limiter = Limiter(some_settings(total=(a_policy(),)), faulty, clock=clock, monotonic=clock)
    faulty.is_down = True
    limiter.check("one", cost=2)
    limiter.check("one", "kim")
    limiter.check("two")
    assert [("hits_undelivered", {"one": 3, "two": 1})] == end(limiter)


@pytest.mark.parametrize("has_own", [True, False])
def test_undelivered_hits_of_a_user_through_all_clients_are_logged_once(
    faulty: FaultyStore, clock: Clock, has_own: bool
) -> None:
    limits = {"user_total": ["9/minute"], "user": ["9/minute"] if has_own else []}
    limiter = limiter_of({"limits": limits}, faulty, clock=clock)
    faulty.is_down = True
    for client_id in ("one", "one", "two"):
        limiter.check(client_id, "kim")
    assert [("hits_undelivered", {"one": 2, "two": 1} if has_own else {"*": 3})] == end(limiter)


def test_hits_after_a_write_of_unknown_outcome_are_undelivered(faulty: FaultyStore, clock: Clock) -> None:
    """They were in no write, because the document must be read before the next one."""
    limiter = a_busy_limiter(faulty, clock)
    faulty.delay_s = 3600.0
    with faulty.time_limit(1.0):
        limiter.sync()
    limiter.check(CLIENT, cost=4)
    limiter.check("other", "kim")
    assert [("hits_undelivered", {CLIENT: 4, "other": 1}), ("hits_unconfirmed", {CLIENT: 3})] == end(limiter)


def test_time_that_others_have_used_up_leaves_no_try(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_busy_limiter(faulty, clock)
    deadline = Deadline(monotonic=clock)
    clock.advance(ENDING_S)
    assert [("hits_undelivered", {CLIENT: 3})] == end(limiter, deadline)
    assert [] == faulty.calls


def test_cycle_that_hangs_leaves_its_hits_unconfirmed(faulty: FaultyStore, clock: Clock) -> None:
    """The last flush cannot begin, and the write of the cycle may still arrive."""
    limiter = a_busy_limiter(faulty, clock)
    gate, is_writing = threading.Event(), threading.Event()

    def hang() -> None:
        is_writing.set()
        gate.wait()

    faulty.before_write = hang
    cycle = threading.Thread(target=limiter.sync)
    cycle.start()
    wait_until(is_writing.is_set, "the write of the cycle")
    try:
        assert [("hits_unconfirmed", {CLIENT: 3})] == end(limiter, Deadline(0.0))
    finally:
        gate.set()
        cycle.join()


def test_limiter_without_a_store_ends_silently_and_may_end_twice(clock: Clock) -> None:
    limiter = a_limiter(None, clock)
    limiter.check(CLIENT)
    assert [[], []] == [end(limiter), end(limiter)]


def test_marks_wait_for_no_answer_longer_than_half_of_the_time(faulty: FaultyStore, clock: Clock) -> None:
    """Other parts of the process need some, too."""
    limiter = a_limiter(faulty, clock)
    hit(limiter)
    faulty.delay_s = 3600.0
    begun_s = clock()
    assert [] == end(limiter)
    assert ENDING_S / 2 == pytest.approx(clock() - begun_s)
    assert 1 == writers(faulty)


def test_rolling_restart_leaves_as_many_marks_as_workers_run(faulty: FaultyStore, clock: Clock) -> None:
    workers = [a_limiter(faulty, clock) for _ in range(WORKERS)]
    for _ in range(10 * WORKERS):
        for worker in workers:
            hit(worker)
        workers.pop(0).close()
        workers.append(a_limiter(faulty, clock))
        clock.advance(1)
    for worker in workers:
        hit(worker)
    assert WORKERS == writers(faulty) == len(faulty.inner.read([KEY])[KEY].seen)


def test_killed_workers_leave_marks_that_the_next_writer_removes(faulty: FaultyStore, clock: Clock) -> None:
    """After the longest horizon and the slack, by the store's time."""
    for _ in range(20):
        hit(a_limiter(faulty, clock))
    assert 20 == writers(faulty)
    clock.advance(66 + 61)
    workers = [a_limiter(faulty, clock) for _ in range(2)]
    for worker in workers * 2:
        hit(worker)
    assert 2 == writers(faulty)


def test_mark_stays_while_an_outcome_is_unknown(faulty: FaultyStore, clock: Clock) -> None:
    """It would tell whether the write has arrived."""
    limiter = a_busy_limiter(faulty, clock)
    faulty.faults.extend([Fault.LOST_REQUEST] * 3)
    limiter.close()
    assert 1 == writers(faulty)
