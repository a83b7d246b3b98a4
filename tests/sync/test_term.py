"""Limiters that count in one file: one at a time synchronises it."""

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.term import Term
from oauth_ratelimit.process.deadline import ENDING_S, Deadline
from oauth_ratelimit.store.base import Change, CounterStore, WriteResult
from oauth_ratelimit.sync.clock import MEASURE_EVERY_S
from oauth_ratelimit.sync.cycle import FAILED_CYCLES
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import known_keys, locked, stored_hits

KEY = Key("app", None)
PATIENCE_S = 7.0  # the store's timeout and two intervals

Start = Callable[..., Limiter]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ratelimit.db"


def settings(path: Path) -> Settings:
    limits = {"client": [{"limit": 1000, "window": "600s"}], "user": [{"limit": 10, "window": "600s"}]}
    return load_config({"mode": "enforce", "host": str(path), "limits": limits, "store": {"timeout": "5s"}})


@pytest.fixture
def start(faulty: FaultyStore, clock: Clock, path: Path) -> Iterator[Start]:
    with ExitStack() as ends:

        def start(store: CounterStore = faulty, **options: Any) -> Limiter:
            limiter = Limiter(settings(path), store, **{"clock": clock, "monotonic": clock, **options})
            ends.callback(limiter.close, Deadline(0.0))
            return limiter

        yield start


def stored(faulty: FaultyStore) -> int:
    found = faulty.inner.read([KEY])
    return sum(sum(frames.values()) for snapshot in found.values() for frames in snapshot.hits.values())


def test_process_whose_claim_was_rolled_back_does_not_hold_the_term(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next claim has the same number, so nothing else would tell the two apart."""
    interrupted, other = start(), start()
    claim = Term.claim

    def claim_and_interrupt(*args: Any, only_looks: bool, **options: Any) -> bool:
        is_free = claim(*args, only_looks=only_looks, **options)
        if not only_looks:
            raise KeyboardInterrupt
        return is_free

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Term, "claim", claim_and_interrupt)
        interrupted.sync()
    other.sync()
    interrupted.check("app", "kim")
    assert interrupted.sync_urgent() is None
    report = other.sync_urgent()
    assert report is not None
    assert 1 == report.flushed_count


def request(limiter: Limiter, count: int) -> None:
    for _ in range(count):
        limiter.check("app")


def test_one_synchronises_the_hits_of_all_as_one_writer(start: Start, faulty: FaultyStore) -> None:
    here, there = start(), start()
    assert not here.sync().is_elsewhere
    request(here, 2)
    request(there, 3)

    assert there.sync().is_elsewhere
    assert there.sync_urgent() is None
    assert 0 == stored(faulty)
    here.sync()
    assert 5 == stored(faulty)
    assert 1 == len(faulty.inner.read([KEY])[KEY].writers)


def test_another_takes_over_at_once_from_one_that_resigns(start: Start, faulty: FaultyStore) -> None:
    here, there = start(), start()
    here.sync()
    request(there, 1)
    here.close()

    there.sync()
    assert 1 == stored(faulty)


def test_another_takes_over_from_one_that_shows_no_sign(start: Start, faulty: FaultyStore, clock: Clock) -> None:
    here, there = start(), start()
    here.sync()
    request(there, 1)

    clock.advance(PATIENCE_S)
    assert there.sync().is_elsewhere
    clock.advance(0.1)
    assert not there.sync().is_elsewhere
    assert here.sync().is_elsewhere
    assert 1 == stored(faulty)


@pytest.mark.parametrize("is_applied", [True, False])
def test_one_that_was_stopped_in_a_write_changes_nothing_when_it_comes_back(
    start: Start, faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_applied: bool
) -> None:
    """The other one finds out what became of the write, or repeats it before the late one arrives."""
    here, there = start(), start()
    here.sync()
    request(here, 2)
    write = faulty.compare_and_set

    def stop_meanwhile(writer: str, changes: Sequence[Change]) -> WriteResult:
        monkeypatch.undo()
        result = write(writer, changes) if is_applied else None
        clock.advance(PATIENCE_S + 0.1)
        request(there, 3)
        assert not there.sync().is_elsewhere
        return result or write(writer, changes)

    monkeypatch.setattr(faulty, "compare_and_set", stop_meanwhile)
    assert here.sync().is_elsewhere
    request(here, 1)
    there.sync()
    there.sync()

    assert 6 == stored(faulty)
    assert here.sync().is_elsewhere


def test_process_that_leaves_a_file_has_sent_its_hits(start: Start, faulty: FaultyStore, path: Path) -> None:
    """The path names another file by now, in which others count already. From then on it counts there."""
    here, there = start(), start()
    here.sync()
    request(here, 2)
    request(there, 3)
    path.unlink()
    other = start()
    request(other, 4)
    other.sync()

    there.sync()
    faulty.is_down = True
    here.sync()
    faulty.is_down = False
    here.sync()
    there.sync()
    assert 2 + 3 + 4 == stored(faulty)
    request(here, 1)
    request(there, 1)
    assert 1000 - 4 - 3 == start().check("app").remaining


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
@pytest.mark.parametrize("is_noticed", [True, False])
def test_fork_loses_no_hits_of_a_file_that_was_removed(
    start: Start, faulty: FaultyStore, path: Path, is_noticed: bool
) -> None:
    """The file cannot be opened again after the fork."""
    limiter = start()
    request(limiter, 2)
    path.unlink()
    faulty.is_down = True
    if is_noticed:
        limiter.sync()
    child = os.fork()
    if not child:
        limiter.peek("app")
        limiter.sync()
        os._exit(0)
    os.waitpid(child, 0)
    faulty.is_down = False
    request(limiter, 3)
    limiter.sync()
    limiter.sync()
    assert 5 == stored(faulty)


def test_keys_are_not_loaded_at_start_while_the_file_is_locked(
    start: Start, faulty: FaultyStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application starts all the same."""
    with closing(start()) as limiter:
        request(limiter, 1)
    limiter, latest = start(), faulty.latest
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        monkeypatch.setattr(faulty, "latest", lambda count: other.execute("BEGIN IMMEDIATE") and latest(count))
        limiter.preload()
    assert 1 == len(known_keys(limiter))


def test_process_that_ends_sends_first_what_it_counts_now(
    start: Start, faulty: FaultyStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hits of a file that was removed may be many."""
    limiter = start()
    request(limiter, 1)
    path.unlink()
    faulty.is_down = True
    limiter.sync()
    limiter.check("another")
    faulty.is_down = False
    sent: list[str] = []
    write = faulty.compare_and_set

    def note(writer: str, changes: Sequence[Change]) -> WriteResult:
        sent.extend(change.key.client_id for change in changes)
        return write(writer, changes)

    monkeypatch.setattr(faulty, "compare_and_set", note)
    limiter.close()
    assert ["another", "app"] == sent
    assert 1 == stored(faulty) == stored_hits(faulty.inner, Key("another", None))


def test_request_is_denied_while_another_process_has_the_lock(start: Start, path: Path) -> None:
    limiter = start()
    request(limiter, 1000)
    limiter.sync()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not limiter.check("app").allowed


def test_last_process_that_ends_sends_the_hits_of_all(start: Start, faulty: FaultyStore) -> None:
    here, there = start(), start()
    here.sync()
    request(here, 2)
    request(there, 3)
    faulty.is_down = True
    here.close()
    faulty.is_down = False
    assert 0 == stored(faulty)
    there.close()
    assert 5 == stored(faulty)
    assert not faulty.inner.read([KEY])[KEY].writers


def test_one_that_ends_sends_the_hits_of_all_while_another_may_be_frozen(start: Start, faulty: FaultyStore) -> None:
    here, there = start(), start()
    here.sync()
    request(here, 2)
    request(there, 3)
    here.close()
    assert 5 == stored(faulty)
    assert 1 == len(faulty.inner.read([KEY])[KEY].writers)  # there may be more to send


def test_one_that_ends_tries_a_store_that_hangs_once(start: Start, faulty: FaultyStore, clock: Clock) -> None:
    """Who is left sends them. The last one would try again."""
    here, there = start(), start()
    here.sync()
    request(there, 1)
    faulty.delay_s = 3600.0
    begun_s = clock()
    here.close()
    assert ENDING_S / 2 == pytest.approx(clock() - begun_s)


def test_one_whose_cycles_fail_lets_another_try(start: Start, clock: Clock) -> None:
    """Only its own connection may be broken."""
    store = MemoryStore()
    broken = FaultyStore(store, clock)
    here, there = start(broken), start(store)
    here.sync()
    request(here, 1)
    broken.is_down = True
    for _ in range(FAILED_CYCLES):
        assert there.sync(is_scheduled=True).is_elsewhere
        assert here.sync(is_scheduled=True).error is not None
    assert here.sync_urgent() is None
    assert not there.sync(is_scheduled=True).is_elsewhere
    assert 1 == stored_hits(store)
    reports = [here.sync(is_scheduled=True) for _ in range(2)]
    assert [(True, False), (True, True)] == [(each.is_elsewhere, each.error is None) for each in reports]


def test_one_that_nobody_relieves_in_an_outage_says_what_it_could_not_send(start: Start, faulty: FaultyStore) -> None:
    limiter = start()
    limiter.sync()
    request(limiter, 4)
    faulty.is_down = True
    reports = [limiter.sync(is_scheduled=True) for _ in range(2 * FAILED_CYCLES + 2)]
    assert {(False, 4, True)} == {(each.is_elsewhere, each.in_flight_hits, each.error is not None) for each in reports}


def test_outage_that_another_one_ends_is_over_in_the_log_of_the_first(
    start: Start, faulty: FaultyStore, clock: Clock
) -> None:
    here, there = start(), start()
    request(here, 1)
    faulty.is_down = True
    with capture_logs() as logs:
        for _ in range(FAILED_CYCLES):
            here.sync(is_scheduled=True)
            clock.advance(1)
        faulty.is_down = False
        here.sync(is_scheduled=True)
        assert ["flush_failed"] == [entry["event"] for entry in logs]
        for limiter in (there, there, here):
            assert limiter.sync(is_scheduled=True).error is None
            clock.advance(1)
    assert [("flush_failed", None), ("flush_recovered", 3.0)] == [(e["event"], e.get("failed_for_s")) for e in logs]


def test_outage_lasts_from_the_last_success_of_the_host_in_the_log_of_one_that_takes_over(
    start: Start, faulty: FaultyStore, clock: Clock
) -> None:
    here, there = start(), start()
    request(here, 1)
    here.sync(is_scheduled=True)
    faulty.is_down = True
    with capture_logs() as logs:
        for number, limiter in enumerate((*[here] * FAILED_CYCLES, there, there)):
            limiter.check("app", f"user-{number}")
            clock.advance(1)
            limiter.sync(is_scheduled=True)
        faulty.is_down = False
        clock.advance(1)
        there.sync(is_scheduled=True)
    durations = [
        (e["event"], e.get("failing_for_s", e.get("failed_for_s"))) for e in logs if e["event"] != "clock_skew"
    ]
    taken_over_s = FAILED_CYCLES + 1.0
    assert [("flush_failed", 1.0), ("flush_failed", taken_over_s), ("flush_recovered", taken_over_s + 2)] == durations


def test_time_in_which_nobody_has_tried_is_no_part_of_an_outage(
    start: Start, faulty: FaultyStore, clock: Clock
) -> None:
    former = start()
    for _ in range(2):  # each cycle writes down how the one before has ended
        former.sync(is_scheduled=True)
    clock.advance(3 * PATIENCE_S)
    faulty.is_down = True
    later = start()
    request(later, 1)
    with capture_logs() as logs:
        later.sync(is_scheduled=True)
    assert [0.0] == [entry["failing_for_s"] for entry in logs if entry["event"] == "flush_failed"]


def test_one_whose_cycles_fail_goes_on_if_it_is_alone(start: Start, faulty: FaultyStore) -> None:
    limiter = start()
    request(limiter, 1)
    faulty.is_down = True
    reports = [limiter.sync(is_scheduled=True) for _ in range(FAILED_CYCLES + 1)]
    assert None not in [report.error for report in reports]
    faulty.is_down = False
    assert limiter.sync(is_scheduled=True).error is None
    assert 1 == stored(faulty)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0, 0.49])
def test_process_goes_by_the_clock_of_its_host_from_its_first_request_on(
    start: Start, clock: Clock, ahead_s: float
) -> None:
    """Another time would move the hits of all, and drop those of frames that seem to be over."""
    here = start(clock=lambda: clock() + ahead_s, follows_store_clock=True)
    assert here.cycle.measure_clock() is None
    request(here, 1000)
    here.sync()
    # Corrected by itself, it would be more than half a second apart.
    there = start(clock=lambda: clock() + ahead_s + 0.02, follows_store_clock=True)
    assert not there.check("app").allowed
    assert here.now_s() == there.now_s()
    assert there.cycle.measure_clock() is None
    there.sync()
    assert here.now_s() == there.now_s()
    assert not here.check("app").allowed


def test_process_that_takes_over_goes_on_with_the_measurement_of_the_former(
    start: Start, faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with a wrong clock counts only when it is confirmed."""
    here, there = (start(follows_store_clock=True) for _ in range(2))
    for each in (here, there):  # before the first measurement
        request(each, 1)
    here.sync()
    monkeypatch.setattr(faulty, "time_s", lambda: clock() + 600)
    clock.advance(MEASURE_EVERY_S + 1)
    request(there, 1)
    assert not there.sync().is_elsewhere
    assert clock() == there.now_s()


def test_one_that_takes_over_again_goes_by_the_state_that_the_other_has_seen(
    start: Start, faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not noticed that there was another one. A read of an older state would show a write as not applied."""
    cycles, followed = list[Limiter](), list[int]()
    monkeypatch.setattr(faulty, "progress", lambda: len(cycles))
    monkeypatch.setattr(faulty, "follow", followed.append)
    here, there = start(), start()
    for each in (here, there, here):
        cycles.append(each)
        request(each, 1)
        assert not each.sync().is_elsewhere
        clock.advance(PATIENCE_S + 0.1)

    assert [1, 2] == followed


def test_writes_of_two_processes_are_not_taken_for_each_other(start: Start, faulty: FaultyStore, clock: Clock) -> None:
    """The second one would find the mark of the first one's write, and take it for its own, which was lost."""
    here, there = start(), start()
    here.sync()
    request(here, 2)
    here.sync()
    clock.advance(PATIENCE_S + 0.1)
    request(there, 3)
    faulty.faults.append(Fault.LOST_REQUEST)
    for _ in range(3):
        there.sync()
    assert 5 == stored(faulty)


def test_urgent_key_of_another_process_wakes_the_one_that_synchronises(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = start(), start()
    here.sync()
    here.sync_urgent()
    wait, sees_none = here.host.wait, threading.Event()
    monkeypatch.setattr(here.host, "wait", lambda timeout_s: (sees_none.set(), wait(timeout_s)))
    waiting = threading.Thread(target=here.wait_for_urgent, daemon=True)
    waiting.start()
    assert sees_none.wait(60.0)
    there.check("app", "ann")
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert here.sync_urgent() is not None


def test_process_that_does_not_synchronise_needs_no_lock_to_see_that_another_one_does(
    start: Start, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks with each urgent key."""
    monkeypatch.setattr("oauth_ratelimit.counters.host.CYCLE_WAIT_S", 30.0)
    here, there = start(), start()
    here.sync()
    there.check("app", "ann")
    with locked(path):
        begun_s = time.monotonic()
        assert there.sync_urgent() is None
        assert time.monotonic() - begun_s < 20.0


def test_requests_without_the_lock_are_reported_by_their_own_process(start: Start, path: Path) -> None:
    here, there = start(), start()
    here.sync()
    request(there, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        request(there, 1)
    assert [0, 1] == [here.sync().lock_timeout_count, there.sync().lock_timeout_count]


def _take_over(path: Path, steps: Any) -> None:
    limiter = Limiter(settings(path), MemoryStore())
    limiter.sync()
    steps.wait()
    steps.wait()  # until the lock is to be taken
    limiter.host.connection.execute("BEGIN IMMEDIATE")
    steps.wait()
    threading.Event().wait()


@pytest.fixture
def steps() -> Any:
    """Barrier of a test and the other process: it synchronises at the first step, and has the lock at the third."""
    return multiprocessing.get_context("spawn").Barrier(2, timeout=60)


@pytest.fixture
def other(path: Path, steps: Any) -> Iterator[Any]:
    """A process that synchronises."""
    process = multiprocessing.get_context("spawn").Process(target=_take_over, args=(path, steps))
    process.start()
    steps.wait()
    yield process
    process.kill()
    process.join()


def stop(process: Any) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_another_takes_over_at_once_from_one_that_was_killed(path: Path, other: Any) -> None:
    with closing(Limiter(settings(path), MemoryStore())) as limiter:
        is_elsewhere = limiter.sync().is_elsewhere
        other.kill()
        other.join()
        assert (True, False) == (is_elsewhere, limiter.sync().is_elsewhere)


def test_one_that_ends_sends_the_hits_while_the_one_that_synchronises_is_stopped(path: Path, other: Any) -> None:
    store = MemoryStore()
    limiter = Limiter(settings(path), store)
    request(limiter, 1)
    stop(other)
    assert limiter.sync().is_elsewhere
    limiter.close()
    assert 1 == stored_hits(store)


@pytest.mark.parametrize("is_killed", [False, True])
def test_last_one_that_runs_tries_to_get_the_lock_of_one_that_is_stopped_before_it_logs_the_hits(
    path: Path, other: Any, steps: Any, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """The others that end leave that to it."""
    monkeypatch.setattr("oauth_ratelimit.counters.host.CYCLE_WAIT_S", 0.01)
    store = MemoryStore()
    first, last = (Limiter(settings(path), store) for _ in range(2))
    request(first, 2)
    request(last, 3)
    steps.wait()
    steps.wait()
    stop(other)
    with capture_logs() as logs:
        first.close()
        assert [] == logs
        lead = last.host.lead
        if is_killed:
            monkeypatch.setattr(last.host, "lead", lambda **how: lead(**how) or other.kill() or other.join())
        last.close()
    undelivered = [(entry["event"], entry["hits"]) for entry in logs]
    assert ([] if is_killed else [("hits_undelivered", 5)]) == undelivered
    assert (5 if is_killed else 0) == stored_hits(store)


def test_process_that_left_a_file_leaves_the_hits_in_it_to_the_others(
    start: Start, faulty: FaultyStore, path: Path
) -> None:
    here, there = start(), start()
    here.sync()
    request(here, 2)
    request(there, 3)
    path.unlink()
    faulty.is_down = True
    here.sync()
    with capture_logs() as logs:
        here.close()
    assert [] == [entry["event"] for entry in logs if entry["event"].startswith("hits_")]
    faulty.is_down = False
    there.sync()
    there.sync()
    assert 5 == stored(faulty)
