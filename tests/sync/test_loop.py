"""The background threads: cycles begin by themselves, apart from each other, and none is stopped by an error."""

import math
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.loop import SyncLoop
from testbed.clock import Clock, wait_until
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import FaultyStore
from tests.support.limiters import (
    CLIENT,
    a_limiter,
    a_policy,
    hit,
    in_background,
    in_flight,
    known_keys,
    some_settings,
)


class Driven:
    """Counts what the scheduler asks of a limiter."""

    def __init__(self) -> None:
        self.full_count = 0
        self.urgent_count = 0
        self.report: CycleReport | None = None  # of the urgent cycles
        self.errors: list[Exception] = []
        self.began_s: list[float] = []  # monotonic
        self.gate = threading.Lock()  # held by a test, it keeps a cycle from going on
        self.is_at_the_gate = False
        self._woken = threading.Event()

    def sync(self) -> CycleReport:
        self.began_s.append(time.monotonic())
        self.full_count += 1
        self.is_at_the_gate = True
        with self.gate:
            self.is_at_the_gate = False
        if self.errors:
            raise self.errors.pop()
        return CycleReport()

    def sync_urgent(self) -> CycleReport | None:
        self.urgent_count += 1
        self._woken.clear()
        return self.report

    def wait_for_urgent(self) -> None:
        if self.report is None:  # else there is always one
            self._woken.wait()

    def wake(self) -> None:
        self._woken.set()


@pytest.fixture
def driven() -> Driven:
    return Driven()


@pytest.fixture
def scheduler(driven: Driven) -> Iterator[SyncLoop]:
    running = SyncLoop(driven, interval_s=0.02)
    running.start()
    yield running
    assert running.stop(timeout_s=60.0)


def test_exceptions_of_a_cycle_and_of_the_owner_are_logged_and_end_nothing(driven: Driven) -> None:
    scheduler = SyncLoop(driven, interval_s=3600.0, on_cycle=Mock(side_effect=OSError("no such file")))
    driven.errors += [ZeroDivisionError("a bug")]
    with capture_logs() as events:
        for _ in range(3):
            scheduler.run_once()
    assert (["cycle_failed"] * 3, 3) == ([event["event"] for event in events], driven.full_count)


def test_long_cycle_is_not_overlapped_or_caught_up_with(scheduler: SyncLoop, driven: Driven) -> None:
    with driven.gate:
        wait_until(lambda: driven.is_at_the_gate, "a cycle that cannot go on")
        held = driven.full_count
        with in_background(other := Driven(), interval_s=0.02):
            wait_until(lambda: other.full_count >= 10, "ten cycles of another scheduler")
        assert held == driven.full_count
    wait_until(lambda: driven.full_count >= held + 10, "ten further cycles")
    # Those that are caught up with follow each other at once. The first may come late, and the second soon after it.
    assert driven.began_s[held + 9] - driven.began_s[held] > 4 * 0.02


def test_stop_waits_for_the_running_cycle(scheduler: SyncLoop, driven: Driven) -> None:
    with driven.gate:
        wait_until(lambda: driven.is_at_the_gate, "a cycle that cannot go on")
        assert not scheduler.stop(timeout_s=0.05)
    assert scheduler.stop(timeout_s=60.0)
    count = driven.full_count
    scheduler.run_once()
    assert count == driven.full_count


def test_instances_started_together_flush_apart() -> None:
    all_driven = [Driven() for _ in range(12)]
    schedulers = [SyncLoop(driven, interval_s=0.5) for driven in all_driven]
    for scheduler in schedulers:
        scheduler.start()
    wait_until(lambda: all(driven.full_count for driven in all_driven), "the first full cycles")
    for scheduler in schedulers:
        assert scheduler.stop(timeout_s=60.0)
    firsts = [driven.began_s[0] for driven in all_driven]
    assert max(firsts) - min(firsts) > 0.1


def test_owner_is_called_at_the_start_and_after_each_full_cycle(driven: Driven) -> None:
    reports: list[CycleReport | None] = []
    scheduler = SyncLoop(driven, interval_s=3600.0, on_cycle=reports.append)
    scheduler.start()
    wait_until(lambda: reports, "the first call")
    for _ in range(3):
        scheduler.run_once()
    scheduler.stop()
    assert [None] == reports[:1]
    assert (3, 4) == (driven.full_count, len(reports))


def test_urgent_key_wakes_the_thread_and_nothing_else_does(clock: Clock) -> None:
    faulty = FaultyStore()
    limiter = a_limiter(faulty, clock, a_policy(10))
    with in_background(limiter, interval_s=3600.0):
        for client in ("one", "two", "three"):
            limiter.check(client)
            wait_until(lambda: not any(in_flight(limiter, key) for key in known_keys(limiter)), "the flush")
    assert 3 == faulty.calls.count(("write", 1))


class Sleeping(Limiter):
    """Shows whether the thread for urgent keys sleeps without a time at which it would wake up."""

    is_asleep = False

    def wait_for_urgent(self) -> None:
        self.is_asleep = self.next_urgent_s == math.inf
        super().wait_for_urgent()
        self.is_asleep = False


def test_key_that_a_full_cycle_finds_filling_up_is_read_again_before_the_next_one() -> None:
    """The thread that sleeps because no key is urgent wakes up for it."""
    store = FaultyStore()
    here, there = (Sleeping(some_settings(a_policy(100)), each) for each in (store, store.inner))
    with in_background(here, interval_s=3600.0):
        for limiter in (here, there):
            hit(limiter)
        hit(there, cost=60)
        here.peek(CLIENT)
        here.is_asleep = False
        here.wake()
        wait_until(lambda: here.is_asleep, "nothing urgent")
        here.sync()
        assert [("read", 1)] == store.taken_calls()[-1:]
        wait_until(lambda: ("read", 1) in store.calls, "another look at the key")


class Late(Limiter):
    """Its thread for urgent keys has decided to sleep for ever, and is held up before it does."""

    def __init__(self, settings: Settings, store: CounterStore, clock: Clock) -> None:
        super().__init__(settings, store, clock=clock, monotonic=clock)
        self.is_deciding, self.goes_on, self.is_awake = (threading.Event() for _ in range(3))

    @property
    def next_urgent_s(self) -> float:
        next_s = super().next_urgent_s
        self.is_deciding.set()
        assert self.goes_on.wait(60.0)
        return next_s

    def wait_for_urgent(self) -> None:
        super().wait_for_urgent()
        self.is_awake.set()


def test_full_cycle_does_not_take_back_the_call_of_the_last_one_for_the_urgent_thread(clock: Clock) -> None:
    """Else a key that is to be read within milliseconds waits for the cycle after."""
    store = MemoryStore()
    here, there = Late(some_settings(a_policy(100)), store, clock), a_limiter(store, clock, a_policy(100))
    for limiter in (here, there):
        hit(limiter)
    here.sync_urgent()
    thread = threading.Thread(target=here.wait_for_urgent, daemon=True)
    thread.start()
    assert here.is_deciding.wait(60.0)
    hit(there, cost=60)
    here.peek(CLIENT)
    clock.advance(1.0)
    here.sync()
    here.sync(is_scheduled=True)
    here.goes_on.set()
    assert here.is_awake.wait(60.0)


def test_error_of_a_clock_does_not_end_the_thread_for_urgent_keys() -> None:
    class Failing(Driven):
        failures = 3

        def wait_for_urgent(self) -> None:
            if self.failures:
                self.failures -= 1
                raise TypeError("no number")
            super().wait_for_urgent()

    failing = Failing()
    with in_background(failing, interval_s=0.01):
        wait_until(lambda: not failing.failures, "another try")


def test_urgent_keys_do_not_wait_for_the_owner(driven: Driven) -> None:
    gate = threading.Lock()
    calls: list[CycleReport | None] = []

    def work(report: CycleReport | None) -> None:
        calls.append(report)
        with gate:
            pass

    scheduler = SyncLoop(driven, interval_s=3600.0, on_cycle=work)
    with gate:
        scheduler.start()
        wait_until(lambda: calls, "the owner's work")
        driven.wake()
        wait_until(lambda: driven.urgent_count, "an urgent cycle")
    assert scheduler.stop(timeout_s=60.0)


def test_urgent_keys_wait_while_the_store_fails_and_no_longer_than_until_it_answers(driven: Driven) -> None:
    """The full cycle, which tries once per interval, ends the pause."""
    scheduler = SyncLoop(driven, interval_s=3600.0)
    driven.report = CycleReport(error=StoreUnavailable("not primary"))
    scheduler.start()
    with in_background(other := Driven(), interval_s=0.02):
        wait_until(lambda: other.full_count >= 25, "time enough for more than a hundred urgent cycles")
    assert driven.urgent_count < 20
    driven.report = None
    scheduler.run_once()
    seen = driven.urgent_count
    driven.wake()
    wait_until(lambda: driven.urgent_count > seen, "an urgent cycle")
    assert scheduler.stop(timeout_s=60.0)
