"""Single events in simulated fleets: those that random histories seldom meet, and the limits of what is promised."""

import random
from collections.abc import Iterable

import pytest

from tests.simulation.configs import PLAIN, WIDE, WITH_TOTAL, Config
from tests.simulation.fleet import Fleet
from tests.simulation.instance import Instance, key_of
from tests.support.simulated_mongo import Fate

MINUTE_S = 61.0  # after it the server's clock is measured again


class ScriptedFleet(Fleet):
    """A fleet whose writes fail as a test says, one after the other."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.fates: list[Fate] = []

    def fate(self, command: str) -> Fate:
        """Return what happens to the next command."""
        return self.fates.pop(0) if self.fates and command == "update" else Fate.ANSWERED

    def assert_exact(self) -> None:
        """Let everything settle, and fail if a hit is lost or doubled."""
        self.settle()
        self.check_nothing_doubled()
        self.check_nothing_lost()
        self.check_removals()


@pytest.fixture
def fleet() -> ScriptedFleet:
    """A server without instances."""
    return ScriptedFleet()


def started(fleet: Fleet, config: Config = PLAIN, *, count: int = 2) -> list[Instance]:
    """Return running instances. Every other one corrects its clock."""
    return [fleet.start(config) for _ in range(count)]


def ask_each(instances: Iterable[Instance], username: str | None = "ann") -> None:
    """Make a request to each instance, and have it synchronised."""
    for instance in instances:
        instance.ask("shop", username, 1)
        instance.sync(urgent=False)


def test_hits_whose_mark_may_be_gone_are_not_sent_again(fleet: ScriptedFleet) -> None:
    """An instance that cannot read for long finds neither its mark nor a window that holds the hits."""
    here, there = started(fleet)
    here.ask("shop", "ann", 3)
    fleet.fates = [Fate.UNANSWERED]
    here.sync(urgent=False)
    for _ in range(6):  # others remove its mark in the meantime
        fleet.true_s += MINUTE_S
        ask_each((there,))
    (document,) = fleet.documents()
    assert 1 == len(document["writers"])
    ask_each((here,))
    (document,) = fleet.documents()
    frames = document["requestCounters"]["6"]
    assert all(int(start_s) > fleet.server.clock() - 3 * MINUTE_S for start_s in frames), frames

    fleet.assert_exact()


def test_hits_whose_mark_is_removed_by_the_time_of_a_faster_server_are_not_sent_again(fleet: ScriptedFleet) -> None:
    """The clocks of MongoDB's servers may differ by up to a minute, so a mark may go that much sooner."""
    (here,) = started(fleet, count=1)
    here.ask("shop", "ann", 3)
    fleet.fates = [Fate.UNANSWERED]
    here.sync(urgent=False)
    fleet.true_s += 80.0
    fleet.server_offset_s = 55.0
    (there,) = started(fleet, count=1)  # it knows no other server's time
    ask_each((there, there))
    (document,) = fleet.documents()
    assert 1 == len(document["writers"])
    ask_each((here,))
    (document,) = fleet.documents()
    frames = document["requestCounters"]["6"]
    assert all(int(start_s) >= fleet.true_s - 6 for start_s in frames), frames


def test_limit_of_all_users_that_comes_and_goes_between_lost_replies(fleet: ScriptedFleet) -> None:
    """There is one memory of its document, so each hit is sent once."""
    here, there = started(fleet, WITH_TOTAL)
    for fate in (Fate.UNANSWERED, Fate.HELD, Fate.LOST, Fate.REFUSED_AFTERWARDS):
        fleet.fates = [fate]
        here.ask("shop", "ann", 2)
        here.sync(urgent=False)
        here.reconfigure(PLAIN)
        here.ask("shop", None, 1)
        fleet.fates = [fate]
        here.sync(urgent=False)
        here.reconfigure(WITH_TOTAL)
        here.check_one_state()
        ask_each((there,))

    fleet.assert_exact()


def test_limit_of_all_users_that_is_forgotten_leaves_the_other_keys_alone(fleet: ScriptedFleet) -> None:
    """The key of the client itself has no user either."""
    (instance,) = started(fleet, WITH_TOTAL, count=1)
    ask_each((instance,))
    instance.reconfigure(PLAIN)
    for _ in range(60):
        fleet.true_s += 5.0
        ask_each((instance,), None)
        instance.check_one_state()

    fleet.assert_exact()


@pytest.mark.parametrize("ahead_s", (59.0, -59.0))
def test_failover_to_a_server_whose_clock_differs_by_less_than_a_minute_loses_nothing(
    fleet: ScriptedFleet, ahead_s: float
) -> None:
    """The clocks of MongoDB's servers may differ by that much."""
    instances = started(fleet)
    for _ in range(30):
        ask_each(instances)
        fleet.true_s += 5.0
    fleet.server_offset_s = ahead_s
    for _ in range(30):
        ask_each(instances)
        fleet.server.expire()
        fleet.check_removals()
        fleet.true_s += 5.0

    fleet.assert_exact()


def test_failover_to_a_server_ten_minutes_ahead_removes_nothing_until_it_is_confirmed(fleet: ScriptedFleet) -> None:
    """Neither by its time nor by the time carried on. The next measurement, a minute later, confirms it."""
    instances = started(fleet)
    ask_each(instances)
    fleet.server.removals.clear()
    fleet.server_offset_s = 600.0
    for _ in range(5):
        fleet.true_s += 10.0
        ask_each(instances)
    fleet.true_s += 15.0  # the first measurement that is odd
    ask_each(instances)
    fleet.true_s += 30.0
    ask_each(instances)
    assert [] == fleet.server.removals

    fleet.true_s += MINUTE_S
    ask_each(instances)
    ask_each(instances)
    assert fleet.server.removals


def test_bare_limiter_with_a_wrong_clock_removes_nothing_of_others(fleet: ScriptedFleet) -> None:
    """Its clock is not corrected. It goes by the server's time for what it removes."""
    bare, right = started(fleet)
    for _ in range(10):
        ask_each((right,))
        fleet.true_s += 5.0
    for offset_s in (3600.0, -3600.0, 90.0):
        bare.set_clock(offset_s=offset_s)
        ask_each((bare, right))

    fleet.assert_exact()


def assert_kept_for_the_wide_window(fleet: ScriptedFleet, wide: Instance) -> None:
    """Check that 500 s later the 20 hits of the narrow window are still there for a request in the wide one."""
    fleet.true_s += 500.0
    fleet.server.expire()
    wide.ask("shop", "ann", 1)
    wide.sync(urgent=False)
    assert 200 - 21 == wide.limiter.peek("shop", "ann").remaining


def test_document_stays_as_long_as_the_widest_window_of_its_writers_needs_it(fleet: ScriptedFleet) -> None:
    """An instance with a narrow window has written it last, and its hits count in the wide one, too."""
    wide, narrow = fleet.start(WIDE), fleet.start(PLAIN)
    wide.ask("shop", "ann", 1)
    wide.sync(urgent=False)
    fleet.true_s += 500.0
    narrow.ask("shop", "ann", 20)
    narrow.sync(urgent=False)
    assert_kept_for_the_wide_window(fleet, wide)


def test_wider_window_extends_the_life_of_hits_that_are_newer_than_its_own(fleet: ScriptedFleet) -> None:
    """An instance with a wide window sends its hits late, after one with a narrow window has counted."""
    wide, narrow = fleet.start(WIDE), fleet.start(PLAIN)
    wide.ask("shop", "ann", 1)
    fleet.true_s += 500.0
    narrow.ask("shop", "ann", 20)
    narrow.sync(urgent=False)
    wide.sync(urgent=False)
    assert_kept_for_the_wide_window(fleet, wide)


def test_instances_settle_within_two_cycles_after_a_restore(fleet: ScriptedFleet) -> None:
    """Also with hits that were not sent yet, and with a lost reply."""
    instances = started(fleet)
    ask_each(instances)
    backup = fleet.server.backup()
    for _ in range(5):
        ask_each(instances)
    fleet.fates = [Fate.UNANSWERED]
    ask_each(instances[:1])
    fleet.restore(backup)
    for instance in instances:
        instance.ask("shop", "ann", 1)
    for instance in instances * 2:
        instance.sync(urgent=False)

    assert [0, 0] == [instance.limiter.sync().in_flight_hits for instance in instances]
    assert {("shop", "ann", None)} == {key_of(document) for document in fleet.server.documents()}
    fleet.check_agreement()


@pytest.mark.parametrize("client_id", (None, "shop"))
def test_erased_user_is_gone_from_documents_and_memory_and_comes_back_at_zero(
    fleet: ScriptedFleet, client_id: str | None
) -> None:
    """With hits that were not sent, and with a first write that arrives after the erasure. Others keep theirs."""
    instances = started(fleet, count=3)
    for _ in range(20):  # near the limit, where instances follow what others write
        ask_each(instances[:2])
        ask_each(instances, "bob")
    fleet.true_s += 1.0
    instances[2].ask("shop", "ann", 3)
    fleet.fates = [Fate.HELD]
    instances[2].sync(urgent=False)
    instances[0].ask("shop", "ann", 2)
    fleet.erase("ann", client_id)

    fleet.settle()
    fleet.check_erased()
    fleet.assert_exact()


def test_erasure_dated_by_a_server_whose_clock_is_behind_concerns_an_instance_that_had_started(
    fleet: ScriptedFleet,
) -> None:
    """The instance learns of it from the next primary, whose clock is nearly a minute ahead of the former one's."""
    ask_each(started(fleet, count=1))
    (instance,) = started(fleet, count=1)
    instance.preload()
    instance.ask("shop", "ann", 2)
    fleet.true_s += 0.5
    fleet.erase("ann")
    fleet.server_offset_s = 59.0
    ask_each([instance], "bob")

    assert [("shop", "bob", None)] == [key_of(document) for document in fleet.documents()]


@pytest.mark.parametrize("is_known", (True, False))
def test_erased_user_who_comes_back_to_an_idle_instance_loses_the_hits_of_one_interval_at_most(
    fleet: ScriptedFleet, is_known: bool
) -> None:
    """The instance reads of the erasure in its first cycle with traffic, and keeps what comes after it."""
    (instance,) = started(fleet, count=1)
    ask_each([instance], "ann" if is_known else "bob")
    fleet.erase("ann")
    fleet.true_s += 600.0
    for cost in (3, 2, 1):
        instance.ask("shop", "ann", cost)
        instance.sync(urgent=False)
        fleet.true_s += 1.0
    fleet.settle()

    stored = sum(count for cell, count in fleet.stored().items() if cell[1] == "ann")
    assert 3 <= stored <= 6
    assert stored == 50 - instance.limiter.peek("shop", "ann").remaining


def test_hits_of_an_erased_user_that_were_not_sent_are_dropped_at_once(fleet: ScriptedFleet) -> None:
    """No second erasure is needed for them, and no instance has made the document again."""
    instances = started(fleet)
    ask_each(instances)
    for instance in instances:
        instance.ask("shop", "ann", 2)
    fleet.erase("ann")

    fleet.settle()
    assert [("shop", "cid", None)] == [key_of(document) for document in fleet.documents()]
