"""Single events in simulated fleets: those that random histories seldom meet, and the limits of what is promised."""

import random
from collections.abc import Callable, Iterable
from unittest.mock import Mock

import pytest

from oauth_ratelimit.sync import replica
from tests.simulation.configs import PLAIN, WIDE, WITH_TOTAL, Config, Limit
from tests.simulation.fleet import PATIENCE_S, Fleet
from tests.simulation.instance import Instance, key_of
from tests.support.simulated_mongo import Fate

MINUTE_S = 61.0  # after it the server's clock is measured again


class ScriptedFleet(Fleet):
    """A fleet whose commands fail as a test says, one after the other."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.fates: list[Fate] = []  # of the next writes
        self.is_stale = False  # True if a former primary answers the reads
        self.meanwhile: dict[str, Callable[[], object]] = {}  # called once when a command or its answer is on its way

    def fate(self, command: str) -> Fate:
        if command == "find" and self.is_stale:
            return Fate.STALE
        return self.fates.pop(0) if self.fates and command == "update" else Fate.ANSWERED

    def happen_meanwhile(self, _: Instance, command: str) -> None:
        self.meanwhile.pop(command, str)()

    def send(self, instance: Instance, *fates: Fate, hits: int = 0) -> None:
        """Count hits of a user, if any, and run a cycle whose writes meet these fates."""
        if hits:
            instance.ask("shop", "ann", hits)
        self.fates = [*fates]
        instance.sync(urgent=False)

    def assert_frames_since(self, begin_s: float) -> None:
        """Fail if the only document has older frames."""
        (document,) = self.documents()
        frames = document["requestCounters"]["6"]
        assert all(int(start_s) >= begin_s for start_s in frames), frames

    def assert_exact(self) -> None:
        """Let everything settle, and fail if a hit is lost or doubled."""
        self.settle()
        self.check_counts()


@pytest.fixture
def fleet() -> ScriptedFleet:
    return ScriptedFleet()


def started(fleet: Fleet, config: Config = PLAIN, *, count: int = 2) -> list[Instance]:
    """Return running instances. Every other one corrects its clock."""
    return [fleet.start(config) for _ in range(count)]


def ask_each(instances: Iterable[Instance], username: str | None = "ann") -> None:
    for instance in instances:
        instance.ask("shop", username, 1)
        instance.sync(urgent=False)


def test_hits_whose_mark_may_be_gone_are_not_sent_again(fleet: ScriptedFleet) -> None:
    """An instance that cannot read for long finds neither its mark nor a window that holds the hits."""
    here, there = started(fleet)
    fleet.send(here, Fate.UNANSWERED, hits=3)
    for _ in range(6):  # others remove its mark in the meantime
        fleet.true_s += MINUTE_S
        ask_each((there,))
    assert [1] == [len(document["writers"]) for document in fleet.documents()]
    ask_each((here,))
    fleet.assert_frames_since(fleet.server.clock() - 3 * MINUTE_S)

    fleet.assert_exact()


def test_hits_whose_mark_is_removed_by_the_time_of_a_faster_server_are_not_sent_again(fleet: ScriptedFleet) -> None:
    """The clocks of MongoDB's servers may differ by up to a minute, so a mark may go that much sooner."""
    (here,) = started(fleet, count=1)
    fleet.send(here, Fate.UNANSWERED, hits=3)
    fleet.true_s += 80.0
    fleet.server_offset_s = 55.0
    (there,) = started(fleet, count=1)  # it knows no other server's time
    ask_each((there, there))
    assert [1] == [len(document["writers"]) for document in fleet.documents()]
    ask_each((here,))
    fleet.assert_frames_since(fleet.true_s - 6)


def test_limit_of_all_users_that_comes_and_goes_between_lost_replies(fleet: ScriptedFleet) -> None:
    """There is one memory of its document, so each hit is sent once."""
    here, there = started(fleet, WITH_TOTAL)
    for fate in (Fate.UNANSWERED, Fate.HELD, Fate.LOST, Fate.REFUSED_AFTERWARDS):
        fleet.fates = [fate]
        fleet.send(here, hits=2)
        here.reconfigure(PLAIN)
        here.ask("shop", None, 1)
        fleet.send(here, fate)
        here.reconfigure(WITH_TOTAL)
        here.check_memory()
        ask_each((there,))

    fleet.assert_exact()


@pytest.mark.parametrize("ahead_s", (59.0, -59.0))
def test_failover_to_a_server_whose_clock_differs_by_less_than_a_minute_loses_nothing(
    fleet: ScriptedFleet, ahead_s: float
) -> None:
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


@pytest.mark.parametrize("is_wide_last", (False, True))
def test_document_stays_as_long_as_the_widest_window_of_its_writers_needs_it(
    fleet: ScriptedFleet, is_wide_last: bool
) -> None:
    """Hits of an instance with a narrow window count in the wide one, too, whichever instance has written last."""
    wide, narrow = fleet.start(WIDE), fleet.start(PLAIN)
    wide.ask("shop", "ann", 1)
    if not is_wide_last:
        wide.sync(urgent=False)
    fleet.true_s += 300.0
    fleet.send(narrow, hits=20)
    if is_wide_last:
        wide.sync(urgent=False)
    fleet.true_s += 300.0
    fleet.server.expire()
    fleet.send(wide, hits=1)
    assert 200 - 21 == wide.limiter.peek("shop", "ann").remaining


def test_instances_settle_within_two_cycles_after_a_restore(fleet: ScriptedFleet) -> None:
    """Also with hits that were not sent yet, and with a lost reply."""
    instances = started(fleet)
    ask_each(instances)
    backup = fleet.server.committed
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


def test_late_write_does_not_fit_the_document_that_was_made_anew(fleet: ScriptedFleet) -> None:
    """The document was removed, and its next life has had as many writes: versions do not repeat."""
    here, there = started(fleet)
    for _ in range(3):
        ask_each((here,))
    fleet.true_s += 7.0
    fleet.send(here, Fate.HELD, hits=3)
    for document in fleet.documents():
        fleet.remove(document)
    ask_each((there, here, there))  # the write of unknown outcome is resolved, and sent anew
    fleet.server.release(0)

    fleet.assert_exact()


@pytest.mark.parametrize("is_made_meanwhile", (True, False))
@pytest.mark.parametrize("second", (Fate.LOST, Fate.UNREACHED))
def test_first_write_that_failed_twice_can_still_arrive(
    fleet: ScriptedFleet, second: Fate, is_made_meanwhile: bool
) -> None:
    """It can as long as there may be no document, whatever the document was when it was sent again."""
    here, there = started(fleet)
    fleet.send(here, Fate.HELD, hits=4)
    for _ in range(2):
        ask_each((there,) if is_made_meanwhile else ())
        fleet.send(here, second)
    for document in fleet.documents():
        fleet.remove(document)
    fleet.server.release(0)

    fleet.assert_exact()


def test_hits_of_unknown_outcome_count_on_top_of_what_was_read(fleet: ScriptedFleet) -> None:
    """The document was read, does not hold them, and the write has failed again."""
    here, there = started(fleet)
    ask_each((here, there, here))
    here.ask("shop", "ann", 4)
    for _ in range(2):
        fleet.send(here, Fate.HELD)
        assert 50 - 7 == here.limiter.peek("shop", "ann").remaining

    fleet.assert_exact()


def test_write_that_names_a_version_of_a_preload_counts_once(fleet: ScriptedFleet) -> None:
    """The preload is no part of the session, so a read of the session may show less."""
    here, there = started(fleet, Config({"user": (Limit(5000, 60, 6),)}))  # so large that no hit makes it urgent
    for _ in range(3):
        ask_each((there,))
    here.preload()
    fleet.send(here, Fate.HELD, hits=3)
    fleet.server.release(0)
    fleet.server.commit()
    fleet.is_stale = True
    here.sync(urgent=False)
    fleet.is_stale = False

    fleet.assert_exact()


def test_hits_that_come_while_mongodb_is_asked_for_its_time_stay_in_their_frame(fleet: ScriptedFleet) -> None:
    """The server is slow, and the document holds frames that may be over."""
    here, there = started(fleet)
    ask_each((here, there))
    fleet.true_s += 3 * MINUTE_S
    fleet.send(there, hits=1)
    here.ask("shop", "ann", 1)

    def wait_and_ask() -> None:
        fleet.true_s += 30.0
        here.ask("shop", "ann", 1)

    fleet.meanwhile["find"] = lambda: fleet.meanwhile.update(hello=wait_and_ask)
    here.sync(urgent=False)
    assert not fleet.meanwhile

    fleet.assert_exact()


def test_second_try_does_not_prolong_the_time_in_which_hits_are_sent_again(fleet: ScriptedFleet) -> None:
    """The first one was applied, a former primary hid that from the second, and others have removed the mark since."""
    here, there = started(fleet)
    ask_each((here,))
    fleet.send(here, Fate.UNANSWERED, hits=3)
    fleet.true_s += 65.0
    fleet.server.commit()
    fleet.is_stale = True
    fleet.send(here, Fate.LOST)
    fleet.is_stale = False
    fleet.true_s += 63.0
    ask_each((there, there))
    assert [1] == [len(document["writers"]) for document in fleet.documents()]
    here.sync(urgent=False)
    fleet.assert_frames_since(fleet.true_s - 6)

    fleet.assert_exact()


def test_hits_of_unknown_outcome_are_dropped_when_a_short_window_no_longer_needs_them(fleet: ScriptedFleet) -> None:
    """A write may be older than its longest horizon after some seconds, and the mark of it may be gone then."""
    here, there = started(fleet, Config({"user": (Limit(20, 10, 1),), "client": ()}))
    fleet.send(here, Fate.LOST, hits=3)
    ask_each((there,))
    fleet.true_s += 12.0
    report = here.sync(urgent=False)
    assert report is not None and 3 == report.dropped_hits

    fleet.assert_exact()


def test_key_whose_flush_was_interrupted_is_not_evicted(fleet: ScriptedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hits are back in their frame, and still to be sent."""
    instance = fleet.start(PLAIN, max_keys=4)
    instance.ask("shop", None, 4)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(replica, "_next_version", Mock(side_effect=KeyboardInterrupt))  # while they are moved
        instance.limiter.sync()
    for username in ("ann", "bob", None):
        instance.ask("app", username, 25)  # nearer to its limit, so evicted later
        instance.sync(urgent=True)

    fleet.assert_exact()


def test_worker_that_takes_over_reads_nothing_older_than_what_the_former_one_knew(fleet: ScriptedFleet) -> None:
    """A document as it was before a write would say that the write was never applied."""
    host = fleet.start(PLAIN, worker_count=2)
    fleet.send(host, hits=1)
    fleet.send(host, hits=1)
    fleet.send(host, Fate.UNANSWERED, hits=3)
    fleet.true_s += PATIENCE_S
    host.at, fleet.is_stale = 1, True
    fleet.send(host)
    fleet.is_stale = False

    fleet.assert_exact()
