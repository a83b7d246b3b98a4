"""A store that does not answer: what is logged, kept, dropped and sent afterwards."""

import os
import signal
from typing import Any
from unittest.mock import Mock

import pytest

from oauth_ratelimit import StoreRejected
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.sync import flusher, replica
from testbed.clock import Clock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, hit, in_flight, some_settings, stored_hits


def names_of(events: list[Any]) -> list[str]:
    return [event["event"] for event in events if event["event"] != "clock_skew"]


def test_outage_is_logged_at_its_start_each_minute_and_at_its_end(
    faulty: FaultyStore, clock: Clock, events: list[Any]
) -> None:
    """So is the next one, at once."""
    limiter = a_limiter(faulty, clock, a_policy(window_s=600))
    faulty.is_down = True
    for _ in range(150):
        hit(limiter)
        clock.advance(1)
    for is_down in (False, False, True, False):
        faulty.is_down = is_down
        hit(limiter)
    events = [event for event in events if event["event"] != "clock_skew"]
    assert ["flush_failed"] * 3 + ["flush_recovered", "flush_failed", "flush_recovered"] == names_of(events)
    assert [0.0, 60.0, 120.0] == [event["failing_for_s"] for event in events[:3]]
    assert ("warning", "down") == (events[0]["log_level"], events[0]["error"])
    assert ("info", 150.0) == (events[3]["log_level"], events[3]["failed_for_s"])
    assert 154 == stored_hits(faulty.inner)


def test_new_key_in_an_outage_is_read_afterwards(faulty: FaultyStore, clock: Clock) -> None:
    here, there = (a_limiter(faulty, clock, a_policy(100)) for _ in range(2))
    hit(there, cost=50)
    here.peek(CLIENT)
    faulty.is_down = True
    for _ in range(3):
        here.sync()
        clock.advance(1)
    faulty.is_down = False
    here.sync()
    assert 50 == here.peek(CLIENT).remaining


def test_urgent_keys_wait_for_the_full_cycle_after_a_failure(faulty: FaultyStore, clock: Clock) -> None:
    """So that a store that fails is not called without end."""
    limiter = a_limiter(faulty, clock, a_policy(100))
    faulty.is_down = True
    hit(limiter, cost=90)
    faulty.taken_calls()
    limiter.check(CLIENT)
    report = limiter.sync_urgent()
    assert report is not None and report.error is not None
    assert [] == faulty.taken_calls()
    faulty.is_down = False
    limiter.sync()
    assert 91 == stored_hits(faulty.inner)


@pytest.mark.parametrize(
    ("error", "logged"),
    [(StoreRejected("not authorized"), []), (ZeroDivisionError("a bug"), ["cycle_failed"])],
    ids=["no rights", "bug"],
)
def test_any_error_of_a_write_costs_a_cycle_and_no_hit(
    faulty: FaultyStore, clock: Clock, events: list[Any], error: Exception, logged: list[str]
) -> None:
    limiter = a_limiter(faulty, clock)
    faulty.faults.append(Fault.LOST_REQUEST)
    faulty.error = error
    limiter.check(CLIENT, cost=5)
    assert limiter.sync().error is not None
    assert {*logged, "flush_failed"} == set(names_of(events))
    limiter.check(CLIENT)
    assert None is limiter.sync().error
    assert (6, {}) == (stored_hits(faulty), in_flight(limiter))


def test_child_forked_below_python_leaves_its_parents_hits_to_the_parent(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's hooks for forks do not run then. The child counts under another name."""
    limiter = a_limiter(faulty, clock)
    faulty.faults.append(Fault.LOST_REPLY)
    hit(limiter)
    monkeypatch.setattr("os.getpid", lambda: 4711)
    for _ in range(2):
        hit(limiter)
    assert 3 == stored_hits(faulty)
    assert 2 == len(faulty.read([KEY])[KEY].writers)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_child_forked_in_a_cycle_of_its_parent_sends_its_own_hits_alone(faulty: FaultyStore, clock: Clock) -> None:
    limiter, children = a_limiter(faulty, clock), list[int]()

    def fork() -> None:
        faulty.before_write = bool
        children.append(os.fork())
        if not children[0]:
            signal.alarm(10)  # ends a child that waits for the end of its parent's cycle
            status = 1
            try:
                hit(limiter)
                status = int(stored_hits(faulty) != 1)
            finally:
                os._exit(status)

    faulty.before_write = fork
    hit(limiter)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    assert 1 == stored_hits(faulty)


def test_writes_after_a_long_outage_send_few_frames_each(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they outlast the timeout, go on in the server, and are in the way of their own repetitions."""
    monkeypatch.setattr(flusher, "MAX_COUNTERS", 1000)
    users, seconds = ("ann", "ben", "kim"), 400
    limiter = a_limiter(faulty, clock, a_policy(window_s=seconds, frames=seconds))
    for second in range(seconds):
        for user in users:
            limiter.check(CLIENT, user)
        if second % 20 == 0:
            limiter.sync(error=StoreUnavailable("down"))
        clock.advance(1)
    limiter.sync()
    assert [("write", 2), ("write", 1)] == [call for call in faulty.taken_calls() if call[0] == "write"]
    assert [seconds] * 3 == [stored_hits(faulty, Key(CLIENT, user)) for user in users]


def test_writes_are_halved_after_a_timeout_and_grow_again(faulty: FaultyStore, clock: Clock) -> None:
    limiter = a_limiter(faulty, clock)
    faulty.faults.append(Fault.LOST_REPLY)
    written = []
    for _ in range(4):
        for number in range(200):
            limiter.check(CLIENT, f"user-{number}")
        limiter.sync()
        clock.advance(1)
        written.append([count for call, count in faulty.taken_calls() if call == "write"])
    assert [[200], [100, 100], [200], [200]] == written


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), KeyError("localTime")])
def test_hits_wait_until_the_clock_of_the_store_is_measured(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The first measurement shows the frames that hits belong in. Without it nothing is sent, and nothing is lost."""
    limiter = a_limiter(faulty, clock)
    for _ in range(2):
        limiter.check(CLIENT)
        with monkeypatch.context() as patch:
            patch.setattr(faulty, "time_s", Mock(side_effect=error))
            assert limiter.sync().error is not None
    assert [] == faulty.calls
    limiter.sync()
    assert 2 == stored_hits(faulty)


def test_refused_document_is_logged_and_holds_up_no_other(faulty: FaultyStore, clock: Clock, events: list[Any]) -> None:
    faulty.refused = frozenset([KEY])
    limiter = a_limiter(faulty, clock)
    limiter.check(CLIENT)
    limiter.check(CLIENT, "kim")
    report = limiter.sync()
    assert (1, None) == (report.flushed_count, report.error)
    assert 1 == stored_hits(faulty, Key(CLIENT, "kim"))
    (event,) = [event for event in events if event["event"] == "document_rejected"]
    assert (CLIENT, "no such field") == (event["client_id"], event["reason"])


def test_refused_document_of_a_limit_that_is_kept_closely_waits_for_the_next_cycle(
    faulty: FaultyStore, clock: Clock
) -> None:
    """Its hits are urgent, and would be read and sent again every few milliseconds."""
    limiter = a_limiter(faulty, clock, a_policy(10))
    limiter.check(CLIENT)
    limiter.sync()
    faulty.refused = frozenset([KEY])
    limiter.check(CLIENT)
    assert limiter.sync_urgent() is not None
    faulty.calls.clear()
    limiter.sync_urgent()
    assert [] == faulty.calls
    assert 1 == limiter.sync().in_flight_hits
    faulty.refused = frozenset()
    limiter.sync()
    assert 2 == stored_hits(faulty)


@pytest.mark.parametrize("step", ["extend_horizons", "merged", "count_writers"])
def test_write_after_an_interrupted_read_keeps_the_document_for_the_wider_window_of_others(
    faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    here, there = (a_limiter(faulty, clock) for _ in range(2))
    for limiter in (here, there, here):
        hit(limiter)
    there.reconfigure(some_settings(a_policy(window_s=600, frames=100)))
    hit(there)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(replica, step, Mock(side_effect=KeyboardInterrupt))
        here.sync()
    clock.advance(6)
    written = Mock(wraps=faulty.inner.compare_and_set)
    monkeypatch.setattr(faulty.inner, "compare_and_set", written)
    hit(here)
    assert faulty.read([KEY])[KEY].newest_s + 606 + 60 == written.call_args.args[1][0].expire_at_s
