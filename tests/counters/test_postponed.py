"""Requests that do not get the lock of the host's file: each counts once, here and in the store."""

import threading
import time
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.counter import DROPPED, LOST
from oauth_ratelimit.counters.host import Host
from oauth_ratelimit.counters.host_file import HostFile
from oauth_ratelimit.counters.table import HostTable
from testbed.clock import Clock, wait_until
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, KEY, limiter_of, locked, stored_hits, used_hits

COUNT = 50
LIMITS = {"user": [{"limit": 1000, "window": "10m"}], "client_total": [{"limit": 1000, "window": "60s"}]}
NAME = "alice"
KEYS = (Key(CLIENT, NAME), Key(CLIENT, None, "client_total"))


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.counters.host.LOCK_WAIT_S", 0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ratelimit.db"


def a_worker(path: Path, clock: Clock, store: MemoryStore | None = None, **limits: Any) -> Limiter:
    limiter = limiter_of({"host": str(path), "limits": limits or LIMITS}, store, clock=clock)
    limiter.peek("another")  # which opens the file
    return limiter


def stored(store: MemoryStore) -> list[int]:
    return [stored_hits(store, key) for key in KEYS]


@pytest.mark.parametrize("is_locked_before", [False, True])
@pytest.mark.parametrize("is_locked_after", [False, True])
@pytest.mark.parametrize("way", ["check", "confirm", "take back"])
def test_each_request_counts_once_whenever_the_file_is_locked(
    path: Path, clock: Clock, way: str, is_locked_before: bool, is_locked_after: bool
) -> None:
    """Before it is decided and after its response is known."""
    store = MemoryStore(clock)
    with closing(a_worker(path, clock, store)) as worker, closing(a_worker(path, clock, store)) as other:
        with ExitStack() as stack:
            if is_locked_before:
                stack.enter_context(locked(path))
            held = [worker.hold(CLIENT, NAME)[1] for _ in range(COUNT)] if way != "check" else []
            for _ in range(COUNT) if way == "check" else ():
                worker.check(CLIENT, NAME)
            assert COUNT == used_hits(worker, CLIENT, NAME)
        expected = COUNT
        with ExitStack() as stack:
            if is_locked_after:
                stack.enter_context(locked(path))
            for each in held:
                if way == "take back" and worker.take_back(each):
                    expected -= 1
                else:
                    worker.confirm(each)
            assert way == "take back" or expected == used_hits(worker, CLIENT, NAME)
        assert (way == "take back") is (expected == 0)
        for _ in range(2):
            worker.sync()
            other.sync()
        assert [expected] * 2 == [used_hits(each, CLIENT, NAME) for each in (worker, other)]
        assert [expected] * 2 == stored(store)


def test_no_more_requests_than_the_limit_are_taken_back_although_the_file_was_locked(path: Path, clock: Clock) -> None:
    store, limits = MemoryStore(clock), {"client": ["3 per 1 hour"]}
    with closing(a_worker(path, clock, store, **limits)) as worker:
        for is_locked, count, used in ((False, 2, 0), (True, 3, 2)):
            held = [worker.hold(CLIENT)[1] for _ in range(count)]
            with locked(path) if is_locked else nullcontext():
                assert all(map(worker.take_back, held))
            worker.sync()
            assert used == used_hits(worker, CLIENT) == stored_hits(store, Key(CLIENT, None))


def test_request_that_has_waited_for_the_lock_does_not_wait_again_when_its_response_is_known(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.counters.host.LOCK_WAIT_S", 0.3)
    with closing(a_worker(path, clock, MemoryStore(clock))) as worker:
        begun_s = time.monotonic()
        with locked(path):
            _, held = worker.hold(CLIENT, NAME)
        worker.check("another")
        with locked(path):
            worker.confirm(held)
            worker.take_back(held)
        assert 0.3 <= time.monotonic() - begun_s < 0.6


def test_first_request_opens_the_file_without_waiting_for_its_lock(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.counters.host_file.OPENING_S", 60.0)
    with (
        closing(a_worker(path, clock)) as other,
        closing(limiter_of({"host": str(path), "limits": LIMITS}, clock=clock)) as worker,
    ):
        other.check(CLIENT, NAME)
        with locked(path):
            worker.check(CLIENT, NAME)
        assert worker.host.problem is None
        worker.sync()
        assert 2 == used_hits(other, CLIENT, NAME)


def test_first_request_waits_for_the_lock_however_long_it_has_waited_to_open_the_file(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file, wait_s, lock = HostFile.open, 0.3, ExitStack()

    def open_slowly(file: HostFile) -> Any:
        begun_s = time.monotonic()
        wait_until(lambda: time.monotonic() > begun_s + wait_s, "the request has waited for long")
        return open_file(file)

    monkeypatch.setattr("oauth_ratelimit.counters.host.LOCK_WAIT_S", wait_s)
    monkeypatch.setattr(HostFile, "open", open_slowly)
    monkeypatch.setattr("oauth_ratelimit.counters.host.nap", lock.close)
    with closing(a_worker(path, clock)), closing(limiter_of({"host": str(path)}, clock=clock)) as worker, lock:
        lock.enter_context(locked(path))
        worker.check(CLIENT, NAME)
        assert 0 == worker.sync().lock_timeout_count


def test_next_request_that_gets_the_lock_writes_what_was_postponed(path: Path, clock: Clock) -> None:
    with closing(a_worker(path, clock)) as worker, closing(a_worker(path, clock)) as other:
        with locked(path):
            worker.check(CLIENT, NAME, cost=3)
        assert 0 == used_hits(other, CLIENT, NAME)
        worker.check(CLIENT, NAME)
        assert 4 == used_hits(other, CLIENT, NAME)


def test_guess_of_a_process_that_could_not_open_the_file_at_first_counts_once_if_it_was_wrong(
    path: Path, clock: Clock
) -> None:
    settings, key = load_config({"mode": "enforce", "host": f"{path}.d/it", "limits": LIMITS}), KEYS[0]
    with closing(Limiter(settings, clock=clock, monotonic=clock, keeps_held=True)) as guard:
        (_, right), (_, wrong) = guard.hold_guess([key]), guard.hold_guess([key])
        Path(f"{path}.d").mkdir()
        guard.sync()
        assert guard.host.problem is None
        guard.release(right)
        guard.confirm(wrong)
        assert 1 == used_hits(guard, CLIENT, NAME)


@pytest.mark.parametrize(("way", "expected"), [("confirm", 1), ("take_back", 0), ("release", 0)])
def test_response_that_is_known_while_another_thread_writes_its_request_counts_it_once_or_not_at_all(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, way: str, expected: int
) -> None:
    store, waits, read, own_lock = MemoryStore(clock), threading.Event(), HostTable.read, Host.own_lock
    with closing(a_worker(path, clock, store)) as worker:
        with locked(path):
            _, held = worker.hold(CLIENT, NAME)
        settling = threading.Thread(target=getattr(worker, way), args=(held,))

        def read_and_settle(table: HostTable, statement: str, name: str) -> Any:
            if settling.ident is None:
                settling.start()
                assert waits.wait(30)
            return read(table, statement, name)

        def wait_for_lock(host: Host) -> threading.Lock:
            if threading.current_thread() is settling:
                waits.set()
            return own_lock(host)

        monkeypatch.setattr(HostTable, "read", read_and_settle)
        monkeypatch.setattr(Host, "own_lock", wait_for_lock)
        worker.sync()
        settling.join()
        assert expected == used_hits(worker, CLIENT, NAME)
        worker.sync()
        assert [expected] * 2 == stored(store)


def test_guess_that_was_right_vanishes_although_the_file_was_locked(path: Path, clock: Clock) -> None:
    """Also if it stays locked; the other one was wrong."""
    limits = {"client": [{"limit": 3, "window": "10m"}]}
    with closing(a_worker(path, clock, MemoryStore(clock), **limits)) as worker:
        with locked(path):
            right, wrong = (worker.hold_guess([KEY])[1] for _ in range(2))
            worker.release(right)
            worker.confirm(wrong)
            assert 1 == used_hits(worker)
        worker.sync()
        assert 1 == used_hits(worker)


@pytest.mark.parametrize("is_locked_before", [False, True])
def test_guesses_under_a_locked_file_are_told_from_those_that_were_wrong(
    path: Path, clock: Clock, is_locked_before: bool
) -> None:
    limits = {"client": [{"limit": 3, "window": "10m"}]}
    with closing(a_worker(path, clock, MemoryStore(clock), **limits)) as worker, ExitStack() as stack:
        worker.confirm(worker.hold_guess([KEY])[1])
        if is_locked_before:
            stack.enter_context(locked(path))
        guesses = [worker.hold_guess([KEY])[1] for _ in range(2)]
        assert [False, True] == [worker.peek_known(KEY, ignores_held=ignored).allowed for ignored in (False, True)]
        if not is_locked_before:
            stack.enter_context(locked(path))
        for held in guesses:
            worker.confirm(held)
        assert [False, False] == [worker.peek_known(KEY, ignores_held=ignored).allowed for ignored in (False, True)]


@pytest.mark.parametrize("is_free", [True, False])
def test_process_that_ends_counts_what_was_postponed_unless_the_file_stays_locked(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    monkeypatch.setattr("oauth_ratelimit.counters.counter.CYCLE_WAIT_S", 0.01)
    store = MemoryStore(clock)
    worker = a_worker(path, clock, store)
    with ExitStack() as stack, capture_logs() as logs:
        with locked(path):
            worker.check(CLIENT, NAME)
        if not is_free:
            stack.enter_context(locked(path))
        worker.close()
    assert [int(is_free)] * 2 == stored(store)
    assert is_free is not any(entry.get("effect") == LOST for entry in logs)


def test_no_more_requests_are_postponed_than_memory_is_allowed(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further ones count nowhere, which is logged."""
    monkeypatch.setattr("oauth_ratelimit.counters.counter.MAX_POSTPONED", 2)
    store = MemoryStore(clock)
    with closing(a_worker(path, clock, store)) as worker:
        with locked(path), capture_logs() as logs:
            held = [worker.hold(CLIENT, NAME)[1] for _ in range(4)]
            assert [2, 2, None, None] == [each and len(each.rows) for each in held]
            assert 2 == used_hits(worker, CLIENT, NAME)
            for each in held:
                worker.confirm(each)
        assert DROPPED in [entry["effect"] for entry in logs]
        assert (4, 2) == (worker.sync().lock_timeout_count, used_hits(worker, CLIENT, NAME))
        assert [2, 2] == stored(store)
