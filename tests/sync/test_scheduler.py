"""The background thread: the only tests that start it."""

import threading
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL, SyncScheduler
from tests.support.helpers import Clock, wait_until
from tests.support.limiters import CLIENT, a_limiter, stored_hits


class Driven:
    """Counts what the scheduler asks of a limiter."""

    def __init__(self) -> None:
        self.full_count = 0
        self.urgent_count = 0
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self.began_s: list[float] = []  # monotonic
        self.gate = threading.Lock()  # held by a test, it keeps a cycle from going on
        self.is_at_the_gate = False

    def sync(self) -> CycleReport:
        """Note a full cycle; raise what is to be raised, wait where it is to be waited."""
        self.began_s.append(time.monotonic())
        self.full_count += 1
        self.threads.add(threading.current_thread().name)
        self.is_at_the_gate = True
        with self.gate:
            self.is_at_the_gate = False
        if self.errors:
            raise self.errors.pop()
        return CycleReport()

    def sync_urgent(self) -> CycleReport | None:
        """Note a short cycle."""
        self.urgent_count += 1
        return None


@pytest.fixture
def driven() -> Driven:
    """What is driven."""
    return Driven()


@pytest.fixture
def scheduler(driven: Driven) -> Iterator[SyncScheduler]:
    """A scheduler with the shortest interval that there is, started."""
    running = SyncScheduler(driven, interval_s=0.02)
    running.start()
    yield running
    assert running.stop(timeout_s=60.0)


def test_cycles_run_in_one_thread(scheduler: SyncScheduler, driven: Driven) -> None:
    """Cycles run again and again in one thread that is not the caller's."""
    wait_until(lambda: driven.full_count >= 5, "five cycles")
    assert 1 == len(driven.threads - {threading.current_thread().name})


def test_exception_ends_a_cycle_not_the_thread(scheduler: SyncScheduler, driven: Driven) -> None:
    """An exception ends a cycle, not the thread."""
    wait_until(lambda: driven.full_count, "the first cycle")
    with capture_logs() as events:
        driven.errors += [ZeroDivisionError("a bug"), KeyError("another")]
        wait_until(lambda: not driven.errors, "both errors")
        seen = driven.full_count
        wait_until(lambda: driven.full_count >= seen + 3, "further cycles")
    assert ["cycle_failed"] * 2 == [event["event"] for event in events]


def test_long_cycle_is_not_overlapped_or_caught_up_with(scheduler: SyncScheduler, driven: Driven) -> None:
    """Cycles never overlap: those that would have begun meanwhile are left out, not caught up with."""
    with driven.gate:
        wait_until(lambda: driven.is_at_the_gate, "a cycle that cannot go on")
        held = driven.full_count
        other = Driven()
        beside = SyncScheduler(other, interval_s=0.02)
        beside.start()
        wait_until(lambda: other.full_count >= 10, "ten cycles of another scheduler")
        beside.stop()
        assert held == driven.full_count
    wait_until(lambda: driven.full_count >= held + 10, "ten further cycles")
    # Those that are caught up with follow each other at once. The first may come late, and the second soon after it.
    assert driven.began_s[held + 9] - driven.began_s[held] > 4 * 0.02


def test_stop_waits_for_the_running_cycle(scheduler: SyncScheduler, driven: Driven) -> None:
    """Stopping lets the running cycle end, and none begins after it."""
    with driven.gate:
        wait_until(lambda: driven.is_at_the_gate, "a cycle that cannot go on")
        assert not scheduler.stop(timeout_s=0.05)
    assert scheduler.stop(timeout_s=60.0)
    count = driven.full_count
    scheduler.run_once()
    assert count == driven.full_count


def test_stop_before_start_returns_at_once(driven: Driven) -> None:
    """There is nothing to wait for."""
    assert SyncScheduler(driven, interval_s=1).stop()


def test_one_tick_per_interval_is_a_full_cycle(driven: Driven) -> None:
    """Of all ticks in an interval one is a full cycle; the others look at urgent keys."""
    scheduler = SyncScheduler(driven, interval_s=1)
    for _ in range(5 * TICKS_PER_INTERVAL):
        scheduler.run_once()
    assert (5, 5 * (TICKS_PER_INTERVAL - 1)) == (driven.full_count, driven.urgent_count)


def test_instances_started_together_flush_apart(driven: Driven) -> None:
    """Instances that start together do not flush together."""
    firsts = set()
    for _ in range(200):
        scheduler, before, ticks = SyncScheduler(driven, interval_s=1), driven.full_count, 0
        while before == driven.full_count:
            scheduler.run_once()
            ticks += 1
        firsts.add(ticks)
    assert set(range(1, TICKS_PER_INTERVAL + 1)) == firsts


def test_owner_is_called_with_the_first_tick_and_each_full_cycle(driven: Driven) -> None:
    """The owner's own work is done with the first tick and after each full cycle, with the cycle's report."""
    reports: list[CycleReport | None] = []
    scheduler = SyncScheduler(driven, interval_s=1, on_tick=reports.append)
    scheduler.run_once()
    assert 1 == len(reports)
    for _ in range(3 * TICKS_PER_INTERVAL):
        scheduler.run_once()
    assert 3 <= sum(report is not None for report in reports) == driven.full_count
    assert len(reports) <= 4


def test_exception_of_the_owner_is_logged(driven: Driven) -> None:
    """An exception of the owner's own work is logged, and done with."""

    def fail(_: CycleReport | None) -> None:
        raise OSError("no such file")

    scheduler = SyncScheduler(driven, interval_s=0.02, on_tick=fail)
    with capture_logs() as events:
        for _ in range(3):
            scheduler.run_once()
    assert (["cycle_failed"] * 3, 3) == ([event["event"] for event in events], driven.full_count)


def test_hits_of_a_limiter_arrive_by_themselves(clock: Clock) -> None:
    """What a limiter counts arrives in the store by itself."""
    store = MemoryStore()
    limiter = a_limiter(store, clock)
    scheduler = SyncScheduler(limiter, interval_s=0.02)
    scheduler.start()
    for expected in (3, 6):
        limiter.check(CLIENT, cost=3)
        wait_until(lambda: not limiter.counts(CLIENT).in_flight_hits, "the flush")
        assert expected == stored_hits(store)
    assert scheduler.stop()
    limiter.check(CLIENT, cost=3)
    limiter.close()
    assert 9 == stored_hits(store)


def test_first_tick_comes_at_once(driven: Driven) -> None:
    """
    The first tick comes at once, however long the interval: a process that ends before it has connected to MongoDB can
    not any more, from Python 3.12 on.
    """
    ticks: list[CycleReport | None] = []
    scheduler = SyncScheduler(driven, interval_s=3600.0, on_tick=ticks.append)
    scheduler.start()
    try:
        wait_until(lambda: ticks, "the first tick")
    finally:
        scheduler.stop()
