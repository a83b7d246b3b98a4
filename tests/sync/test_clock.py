"""The store's clock: when it is measured, and which changes count."""

from contextlib import suppress
from itertools import count

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.sync.clock import MEASURE_EVERY_S, SAMPLE_COUNT, ServerClock
from testbed.memory_store import MemoryStore
from tests.support.interruption import Interruption
from tests.support.limiters import CLIENT, KEY, hit, some_settings

NOW_S = 1_800_000_000.0


class Machine(MemoryStore):
    """A store with a clock, and the clocks of the machine that asks it."""

    def __init__(self) -> None:
        self.monotonic_s = 0.0
        self.wall_s = 0.0  # how far the wall clock is ahead of the true time
        self.store_s = 0.0  # the same of the store's clock
        self.stopped_s = 0.0  # how long the process is stopped before a question is sent
        self.delays_s: list[float] = []  # of the next questions
        self.asked_count = 0
        self.is_down = False
        self.followed_s: list[float] = []  # times at which its monotonic clock was at zero
        super().__init__(self.store_time)
        self.clock = ServerClock(self, wall=self.wall, monotonic=self.monotonic, on_change=self.followed_s.append)

    def time_s(self) -> float:
        if self.is_down:
            raise StoreUnavailable("down")
        self.asked_count += 1
        self.monotonic_s += self.stopped_s
        asked_s = self.store_time()
        self.monotonic_s += self.delays_s.pop(0) if self.delays_s else 0.0
        return asked_s

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return NOW_S + self.monotonic_s + self.wall_s

    def store_time(self) -> float:
        return NOW_S + self.monotonic_s + self.store_s

    def cycle_later(self, duration_s: float) -> None:
        """Let time pass, and begin a cycle."""
        self.monotonic_s += duration_s
        self.clock.begin_cycle()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_clock_is_measured_once_a_minute(machine: Machine) -> None:
    for _ in range(int(2 * MEASURE_EVERY_S)):
        machine.cycle_later(1.0)
    assert 2 * SAMPLE_COUNT == machine.asked_count
    assert [NOW_S] == machine.followed_s


@pytest.mark.parametrize("is_first", [True, False], ids=["first cycle", "after a step"])
def test_wrong_wall_clock_is_corrected_with_the_first_cycle_and_changes_nothing_after_it(
    machine: Machine, is_first: bool
) -> None:
    if not is_first:
        machine.cycle_later(0.0)
    machine.wall_s = 600.0
    with capture_logs() as logs:
        machine.cycle_later(1.0)
    assert ([NOW_S], -600.0) == (machine.followed_s, machine.clock.offset_s)
    assert [("clock_skew", -600.0)] == [(entry["event"], entry["offset_s"]) for entry in logs]


def test_sample_with_the_shortest_round_trip_counts(machine: Machine) -> None:
    machine.delays_s = [3.0, 0.01, 2.0]
    machine.cycle_later(0.0)
    assert 0.0 == machine.clock.offset_s


def test_server_with_a_wrong_clock_counts_when_it_is_confirmed(machine: Machine) -> None:
    """Until then the time is carried on, and is not known well enough to remove anything."""
    machine.cycle_later(0.0)
    machine.store_s = 600.0
    machine.cycle_later(1.0)
    assert machine.clock.time_s() is None
    machine.cycle_later(MEASURE_EVERY_S)
    assert ([NOW_S], None) == (machine.followed_s, machine.clock.time_s())

    machine.cycle_later(MEASURE_EVERY_S)
    assert [NOW_S, NOW_S + 600] == machine.followed_s
    assert machine.store_time() == machine.clock.time_s()


def test_odd_measurement_is_forgotten_when_the_next_one_is_right(machine: Machine) -> None:
    """A server with a wrong clock was the primary for a short time."""
    machine.cycle_later(0.0)
    machine.store_s = -600.0
    machine.cycle_later(MEASURE_EVERY_S)
    machine.store_s = 0.0
    machine.cycle_later(MEASURE_EVERY_S)
    assert [NOW_S] == machine.followed_s
    assert machine.store_time() == machine.clock.time_s()


def test_suspended_machine_is_no_change_of_the_store(machine: Machine) -> None:
    """Its monotonic clock has stood still, and its wall clock agrees with the store."""
    machine.cycle_later(0.0)
    machine.store_s = machine.wall_s = 3600.0
    machine.cycle_later(1.0)
    assert [NOW_S, NOW_S + 3600] == machine.followed_s
    assert machine.store_time() == machine.clock.time_s()


def test_time_is_asked_once_in_a_cycle(machine: Machine) -> None:
    machine.cycle_later(0.0)
    machine.asked_count = 0
    assert machine.clock.time_s() == machine.clock.time_s()
    assert 1 == machine.asked_count


def test_store_that_does_not_answer_has_no_time(machine: Machine) -> None:
    """Before it was measured, and afterwards; the first failure ends the cycle."""
    machine.is_down = True
    with pytest.raises(StoreUnavailable):
        machine.clock.begin_cycle()
    assert machine.clock.time_s() is None
    machine.is_down = False
    machine.cycle_later(0.0)
    machine.is_down = True
    assert machine.clock.time_s() is None


@pytest.mark.parametrize("follows", [True, False])
def test_limiter_follows_the_clock_of_the_store_if_it_is_to(machine: Machine, follows: bool) -> None:
    """From its first flush on, whatever is set later. Otherwise an injected clock is neither corrected nor reported."""
    machine.wall_s = 600.0
    limiter = Limiter(
        some_settings(), machine, clock=machine.wall, monotonic=machine.monotonic, follows_store_clock=follows
    )
    limiter.peek(CLIENT)
    with capture_logs() as logs:
        limiter.sync()
    assert follows == ("clock_skew" in {entry["event"] for entry in logs})
    hit(limiter)
    ((start_s, _),) = [item for frames in machine.read([KEY])[KEY].hits.values() for item in frames.items()]
    assert (NOW_S if follows else NOW_S + 600) == start_s
    machine.wall_s = -3600.0
    assert (machine.store_time() if follows else machine.wall()) == limiter.now_s()
    limiter.close()


def test_time_for_removals_is_not_ahead_after_the_process_was_stopped_while_it_asked(machine: Machine) -> None:
    """Two minutes pass before the store reads its clock."""
    machine.cycle_later(0)
    machine.stopped_s = 120.0
    assert NOW_S + 120 == machine.clock.time_s()


@pytest.mark.parametrize("is_adopted", [False, True], ids=["own measurement", "measurement of another worker"])
def test_clock_that_counts_as_measured_is_followed_wherever_a_cycle_was_interrupted(is_adopted: bool) -> None:
    other = Machine()
    other.cycle_later(0.0)
    measurement = other.clock.measurement
    assert measurement is not None
    for at in count(1):
        machine, interruption = Machine(), Interruption(at)
        with suppress(KeyboardInterrupt), interruption:
            if is_adopted:
                machine.clock.adopt(measurement)
            else:
                machine.clock.begin_cycle()
        assert machine.followed_s or not machine.clock.is_measured, f"interrupted at instruction {at}"
        if interruption.count < at:
            break
    assert [NOW_S] == machine.followed_s
