"""The background thread: the only tests that start it."""

import math
import threading
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.scheduler import (
    LONG_GAP_S,
    SHORT_GAP_S,
    SHORT_GAPS,
    SHORT_GAPS_PER_S,
    Pacing,
    SyncScheduler,
)
from tests.support.helpers import Clock, wait_until
from tests.support.limiters import CLIENT, a_limiter, a_policy, some_settings, stored_hits


class Driven:
    """Counts what the scheduler asks of a limiter."""

    def __init__(self) -> None:
        self.full_count = 0
        self.urgent_count = 0
        self.waited_count = 0
        self.report: CycleReport | None = None  # of the urgent cycles
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self.began_s: list[float] = []  # monotonic
        self.gate = threading.Lock()  # held by a test, it keeps a cycle from going on
        self.is_at_the_gate = False
        self._woken = threading.Event()

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
        """Note an urgent cycle."""
        self.urgent_count += 1
        self._woken.clear()
        return self.report

    def wait_for_urgent(self) -> None:
        """Wait until it is woken."""
        self._woken.wait()
        self.waited_count += 1

    def wait_for_critical(self, timeout_s: float) -> None:
        """Wait for nothing, because no test has a storm."""

    def wake(self) -> None:
        """End the waiting."""
        self._woken.set()


@pytest.fixture
def driven() -> Driven:
    """A limiter with a scheduler."""
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
    assert SyncScheduler(driven, interval_s=1).stop()


def test_instances_started_together_flush_apart() -> None:
    """Instances that start together do not flush together: each draws the moment of its first full cycle."""
    all_driven = [Driven() for _ in range(12)]
    schedulers = [SyncScheduler(driven, interval_s=0.5) for driven in all_driven]
    for scheduler in schedulers:
        scheduler.start()
    wait_until(lambda: all(driven.full_count for driven in all_driven), "the first full cycles")
    for scheduler in schedulers:
        assert scheduler.stop(timeout_s=60.0)
    firsts = [driven.began_s[0] for driven in all_driven]
    assert max(firsts) - min(firsts) > 0.1


def test_owner_is_called_at_the_start_and_after_each_full_cycle(driven: Driven) -> None:
    """The owner's own work is done at once, however long the interval, and after each full cycle with its report."""
    reports: list[CycleReport | None] = []
    scheduler = SyncScheduler(driven, interval_s=3600.0, on_cycle=reports.append)
    scheduler.start()
    wait_until(lambda: reports, "the first call")
    for _ in range(3):
        scheduler.run_once()
    scheduler.stop()
    assert [None] == reports[:1]
    assert (3, 4) == (driven.full_count, len(reports))


def test_urgent_key_wakes_the_thread_and_nothing_else_does(clock: Clock) -> None:
    """A request of a new key is synchronised without a full cycle; a thread without urgent keys sleeps."""
    store = MemoryStore()
    limiter = a_limiter(store, clock, a_policy(10))
    woken: list[CycleReport | None] = []
    synchronise = limiter.sync_urgent
    limiter.sync_urgent = lambda: woken.append(synchronise()) or woken[-1]  # type: ignore[func-returns-value,method-assign]
    scheduler = SyncScheduler(limiter, interval_s=3600.0)
    scheduler.start()
    for client in ("one", "two", "three"):
        limiter.check(client)
        wait_until(lambda client=client: not limiter.counts(client).in_flight_hits, "the flush")  # type: ignore[misc]
    assert scheduler.stop()
    assert all(report is not None for report in woken)
    assert 1 <= len(woken) <= 3


class Sleeping(Limiter):
    """Shows whether the thread for urgent keys sleeps without a time at which it would wake up."""

    is_asleep = False

    def wait_for_urgent(self) -> None:
        """Note it while it lasts."""
        self.is_asleep = self.next_urgent_s == math.inf
        super().wait_for_urgent()
        self.is_asleep = False

    def wake_until_asleep(self) -> None:
        """Have the thread go round once more, and return when it sleeps again."""
        self.is_asleep = False
        self.wake()
        wait_until(lambda: self.is_asleep, "nothing urgent")


def test_key_that_a_full_cycle_finds_filling_up_is_read_again_before_the_next_one() -> None:
    """The thread that sleeps because no key is urgent wakes up for a key that only a full cycle has read."""
    store = MemoryStore()
    here, there = (Sleeping(some_settings(a_policy(100)), store) for _ in range(2))
    scheduler = SyncScheduler(here, interval_s=3600.0)
    scheduler.start()
    for limiter in (here, there):
        limiter.check(CLIENT)
        limiter.sync()
    there.check(CLIENT, cost=60)
    there.sync()
    here.peek(CLIENT)
    here.wake_until_asleep()
    here.sync()
    there.check(CLIENT, cost=38)
    there.sync()
    wait_until(lambda: here.counts(CLIENT).shared_hits == 100, "another look at the key", timeout_s=10.0)
    assert scheduler.stop()


def test_urgent_keys_do_not_wait_for_the_owner(driven: Driven) -> None:
    """Urgent keys are synchronised while the owner's own work takes its time."""
    gate = threading.Lock()
    calls: list[CycleReport | None] = []

    def work(report: CycleReport | None) -> None:
        calls.append(report)
        with gate:
            pass

    scheduler = SyncScheduler(driven, interval_s=3600.0, on_cycle=work)
    with gate:
        scheduler.start()
        wait_until(lambda: calls, "the owner's work")
        driven.wake()
        wait_until(lambda: driven.urgent_count, "an urgent cycle")
    assert scheduler.stop(timeout_s=60.0)


def test_gap_is_short_until_new_keys_come_without_end() -> None:
    """Urgent cycles follow each other closely, but not for long. Then they are evenly spaced, but for critical keys."""
    clock = Clock(0.0)
    pacing = Pacing(1.0, clock=clock)
    assert (0.0, 0.0) == pacing.pauses_s()
    quick = 0
    while True:
        pacing.begin()
        short_s, further_s = pacing.pauses_s()
        assert SHORT_GAP_S == pytest.approx(short_s)
        if further_s:
            break
        clock.advance(short_s)
        quick += 1
    assert SHORT_GAPS <= quick <= 1.5 * SHORT_GAPS
    for _ in range(100):
        assert LONG_GAP_S == pytest.approx(short_s + further_s)
        clock.advance(short_s + further_s)
        pacing.begin()
        short_s, further_s = pacing.pauses_s()
    clock.advance(SHORT_GAPS / SHORT_GAPS_PER_S)
    assert (0.0, 0.0) == pacing.pauses_s()
    pacing.begin()
    assert 0.0 == pacing.pauses_s()[1]


def test_gap_doubles_up_to_the_interval_while_the_store_fails_with_jitter() -> None:
    gaps_s = []
    for _ in range(50):
        pacing = Pacing(1.0, clock=Clock(0.0))
        pacing.begin()
        for _ in range(12):
            pacing.fail()
            gaps_s.append(pacing.pauses_s()[0])
        pacing.succeed()
        assert SHORT_GAP_S == pacing.pauses_s()[0]
    for number in range(12):
        longest_s = min(1.0, SHORT_GAP_S * 2 ** (number + 1))
        assert all(longest_s / 2 <= gap_s <= longest_s for gap_s in gaps_s[number::12])
    assert 50 < len(set(gaps_s))


def test_urgent_keys_wait_while_the_store_fails_and_no_longer_than_until_it_answers(driven: Driven) -> None:
    """The full cycle, which tries once per interval, ends the pause."""
    scheduler = SyncScheduler(driven, interval_s=3600.0)
    driven.report = CycleReport(error=StoreUnavailable("not primary"))
    for _ in range(30):
        scheduler.urgent.run_once()
    driven.wake()
    scheduler.start()
    wait_until(lambda: driven.waited_count, "the pause")
    assert 30 == driven.urgent_count

    driven.report = None
    scheduler.run_once()
    wait_until(lambda: driven.urgent_count > 30, "an urgent cycle")
    assert scheduler.stop(timeout_s=60.0)


def test_exception_of_the_owner_is_logged(driven: Driven) -> None:
    """An exception of the owner's own work is logged, and done with."""

    def fail(_: CycleReport | None) -> None:
        raise OSError("no such file")

    scheduler = SyncScheduler(driven, interval_s=0.02, on_cycle=fail)
    with capture_logs() as events:
        for _ in range(3):
            scheduler.run_once()
    assert (["cycle_failed"] * 3, 3) == ([event["event"] for event in events], driven.full_count)


def test_hits_of_a_limiter_arrive_by_themselves(clock: Clock) -> None:
    """Counted hits arrive in the store without a call."""
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
