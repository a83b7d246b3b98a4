"""The limiter of an application: its worker in each process, and what happens when it fails."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from errno import EMFILE
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit.background import live_settings
from oauth_ratelimit.background import worker as worker_module
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.flask_authlib.app_limiter import close_all
from oauth_ratelimit.process.deadline import ENDING_S, Deadline
from oauth_ratelimit.sync import loop
from testbed.clock import Clock, wait_until
from tests.support.apps import app_limiter_of, protected_app, token_status
from tests.support.sites import config


class CountedScheduler:
    """Replaces the background cycle, and is counted."""

    started: list["CountedScheduler"]
    hold: Callable[[], object] = staticmethod(lambda: None)  # until when a start takes

    def __init__(self, limiter: Any, **_options: Any) -> None:
        self._running = self.started  # a thread may stop it after its test
        self.hold()

    def start(self) -> None:
        self._running.append(self)

    def stop(self, *, timeout_s: float) -> None:
        self._running.remove(self)


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> list[CountedScheduler]:
    started: list[CountedScheduler] = []
    monkeypatch.setattr(CountedScheduler, "started", started, raising=False)
    monkeypatch.setattr(worker_module, "SyncLoop", CountedScheduler)
    return started


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which a worker tries again to start what could not."""
    clock = Clock()
    monkeypatch.setattr(loop.Starter.__init__, "__kwdefaults__", {"monotonic": clock})
    return clock


def test_racing_first_requests_start_one_worker(
    schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[None] = []
    hold = staticmethod(lambda: wait_until(lambda: len(begun) == 8, "all requests have begun"))
    monkeypatch.setattr(CountedScheduler, "hold", hold)
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=3)) as app:
        app.before_request(lambda: begun.append(None))
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: token_status(app), range(8)))

        assert 1 == len(schedulers)
        assert [200] * 3 + [429] * 5 == sorted(statuses)


def test_forked_process_starts_and_ends_a_worker_of_its_own(
    schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit before its first request stops nothing of its parent. Each start is logged."""
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        assert [] == schedulers, "an application that issues no token starts nothing"
        assert [200, 429] == [token_status(app), token_status(app)]
        app_limiter = app_limiter_of(app)
        parents = app_limiter._running_worker()
        pid = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: pid + 1)
            close_all()
            assert 1 == len(schedulers)
            assert 200 == token_status(app)
            assert parents is not app_limiter._running_worker()
            assert 2 == len(schedulers)
            close_all()
        assert 1 == len(schedulers)
        parents.stop()  # else it would end by itself later, and log that its scheduler is gone

    assert 2 == [entry["event"] for entry in logs].count("ratelimit_started")


@pytest.mark.usefixtures("schedulers")
def test_applications_of_a_process_share_the_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes all that it gets, as while MongoDB does not answer."""
    clock = Clock()
    monkeypatch.setattr(Deadline.__init__, "__kwdefaults__", {"monotonic": clock})
    with ExitStack() as stack:
        apps = [stack.enter_context(protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1))) for _ in range(6)]
        assert [200] * 6 == list(map(token_status, apps))
        taken: list[float] = []

        def stop(_: Worker, deadline: Deadline) -> None:
            taken.append(deadline.remaining_s)
            clock.advance(deadline.remaining_s)

        with monkeypatch.context() as patch:
            patch.setattr(Worker, "stop", stop)
            close_all()
        close_all()
    assert taken == pytest.approx([ENDING_S / 6] * 6)


@pytest.mark.usefixtures("schedulers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_repeated_signal_waits_for_the_last_flush(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Servers send it to their workers themselves, also if all processes have got it from somebody else."""
    done: list[str] = []
    former = signal.signal(number, lambda *_: done.append("signal"))
    try:
        with ExitStack() as stack:
            apps = [stack.enter_context(protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1))) for _ in range(2)]
            assert [200] * 2 == list(map(token_status, apps))

            def stop(_: Worker, deadline: Deadline) -> None:
                signal.raise_signal(number)  # to this thread: those of the test runner hold none
                done.append("flush")

            with monkeypatch.context() as patch:
                patch.setattr(Worker, "stop", stop)
                close_all()
            assert ["flush", "flush", "signal"] == done
            close_all()
    finally:
        signal.signal(number, former)


def test_threads_leave_signals_to_the_main_one(mongo_uri: str) -> None:
    """A handler below Python, as those of uWSGI, must not end the process in one of them, nor in the driver's."""
    before = {*threading.enumerate()}
    with capture_logs(), protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=3, store={"uri": mongo_uri})) as app:
        assert 200 == token_status(app)
        names = {
            "APScheduler",
            "oauth_ratelimit-file",
            "oauth_ratelimit-mode",
            "oauth_ratelimit-urgent",
            "pymongo_server_monitor_thread",
        }
        wait_until(lambda: names <= {each.name for each in {*threading.enumerate()} - before}, "all threads have begun")
        begun = {each for each in {*threading.enumerate()} - before if each.name in names}
        wait_until(lambda: all(blocks_signals(each) for each in begun), "each has left signals to the main thread")
    assert {signal.SIGINT, signal.SIGTERM}.isdisjoint(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def blocks_signals(thread: threading.Thread) -> bool:
    """Return whether Linux says that a thread that runs blocks the signals that end a process."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except FileNotFoundError:  # it has not begun yet, or has ended
        return not thread.is_alive()
    mask = int(status.partition("SigBlk:")[2].split()[0], 16)
    return all(mask >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))


def names_begun(before: set[threading.Thread]) -> list[str]:
    """Return the names of the threads that workers have begun since."""
    names = [each.name for each in {*threading.enumerate()} - before]
    return sorted(name for name in names if name.startswith(("APScheduler", "oauth_ratelimit")))


@pytest.mark.parametrize("broken", ["limiter.Limiter.hold", "flask_authlib.app_limiter.quota_headers"])
def test_token_is_issued_when_the_limiter_itself_fails(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(f"oauth_ratelimit.{broken}", Mock(side_effect=ZeroDivisionError("a bug")))
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=3)) as app:
        assert 200 == token_status(app)

    (failed,) = (entry for entry in logs if entry["log_level"] == "error")
    assert ("check_failed", "ZeroDivisionError('a bug')") == (failed["event"], failed["error"])


def test_process_without_a_free_thread_limits_and_starts_the_rest_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: Clock
) -> None:
    """One try a second, not one with each request. Meanwhile the file can still switch limits off."""
    path, start = tmp_path / "ratelimit.yaml", Mock(side_effect=RuntimeError("can't start new thread"))
    path.write_text(json.dumps(config(limit=3)))
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", start)
            assert [200] * 3 + [429] * 5 == [token_status(app) for _ in range(8)]
            tries = start.call_count
            assert tries == len(app_limiter_of(app)._running_worker().missing)
            path.write_text("mode: off\n")
            starts.advance(1)
            assert [200] * 5 == [token_status(app) for _ in range(5)]
            assert 2 * tries == start.call_count
        starts.advance(1)
        before = {*threading.enumerate()}
        assert 200 == token_status(app)
        assert {} == app_limiter_of(app)._running_worker().missing
        begun = names_begun(before)
    assert ["APScheduler", "oauth_ratelimit-file", "oauth_ratelimit-mode", "oauth_ratelimit-urgent"] == begun
    about = [entry for entry in logs if entry["event"].startswith("start_")]
    assert ["start_incomplete", "start_completed"] == [entry["event"] for entry in about]
    assert "synchronisation" in about[0]["missing"]


def test_process_without_a_free_descriptor_limits_and_starts_no_thread_twice(
    monkeypatch: pytest.MonkeyPatch, starts: Clock
) -> None:
    with capture_logs(), protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=5)) as app:
        before, begun, statuses = {*threading.enumerate()}, [], []
        with monkeypatch.context() as full:
            full.setattr(loop, "BackgroundScheduler", Mock(side_effect=OSError(EMFILE, "Too many open files")))
            for _ in range(8):
                statuses.append(token_status(app))
                begun.append(len(names_begun(before)))
                starts.advance(1)
        assert ([200] * 5 + [429] * 3, [2] * 8) == (statuses, begun)
        wait_until(lambda: not app_limiter_of(app)._running_worker().missing, "the rest runs")
        wait_until(lambda: app_limiter_of(app).health().last_cycle.synced_ago_s is not None, "a cycle")


def broken_off_in(request: threading.Thread) -> Callable[..., BackgroundScheduler]:
    """Return a scheduler whose construction Ctrl-C ends in a thread."""

    def construct(**options: Any) -> BackgroundScheduler:
        if threading.current_thread() is request:
            raise KeyboardInterrupt
        return BackgroundScheduler(**options)

    return construct


def test_request_that_is_ended_while_the_worker_starts_leaves_one_worker(
    monkeypatch: pytest.MonkeyPatch, starts: Clock
) -> None:
    """As a timeout of gevent ends it. The worker is reported, and closed with the process."""
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        with monkeypatch.context() as ended:
            ended.setattr(loop, "BackgroundScheduler", broken_off_in(threading.current_thread()))
            with pytest.raises(KeyboardInterrupt):
                token_status(app)
        limiter = app_limiter_of(app).open_limiter
        assert limiter is not None
        assert [200, 429] == [token_status(app), token_status(app)]
        assert limiter is app_limiter_of(app).limiter
        close_all()
        assert not app_limiter_of(app).is_running
    assert 1 == [entry["event"] for entry in logs].count("ratelimit_started")


@contextmanager
def worker_that_is_off(path: Path) -> Iterator[tuple[Flask, Worker]]:
    """Return an application with the worker of its first request, which another one may replace."""
    path.write_text(json.dumps(config(mode="off")))
    with capture_logs(), protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
        assert 200 == token_status(app)
        yield app, app_limiter_of(app)._running_worker()


def replace_worker(former: Worker, path: Path) -> None:
    """Have the next request start another worker."""
    path.write_text(json.dumps(config(sync={"interval": "2s"})))
    wait_until(lambda: former.is_outdated, "another worker has to take over")


def test_replaced_worker_ends_although_the_request_that_replaces_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: Clock
) -> None:
    with worker_that_is_off(tmp_path / "ratelimit.yaml") as (app, former):
        with monkeypatch.context() as ended:
            # In the request alone: the threads of the new worker try the same.
            ended.setattr(loop, "BackgroundScheduler", broken_off_in(threading.current_thread()))
            replace_worker(former, tmp_path / "ratelimit.yaml")
            with pytest.raises(KeyboardInterrupt):
                token_status(app)
        assert 200 == token_status(app)
        wait_until(lambda: former._is_closed, "the former worker ends")


def test_replaced_worker_ends_as_soon_as_there_is_a_thread_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: Clock
) -> None:
    """The new one counts at once."""
    with worker_that_is_off(tmp_path / "ratelimit.yaml") as (app, former):
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            replace_worker(former, tmp_path / "ratelimit.yaml")
            assert [200, 429] == [token_status(app), token_status(app)]
        assert not former._is_closed
        starts.advance(1)
        token_status(app)
        wait_until(lambda: former._is_closed, "the former worker ends")


@pytest.mark.usefixtures("quick_ending")
def test_request_does_not_wait_for_a_silent_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """MongoDB accepts connections and never answers; only the background thread waits for it."""
    monkeypatch.setattr(live_settings, "MAX_AWAITED_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        uri = f"mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=60000&connectTimeoutMS=60000"
        with (
            capture_logs(),
            protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=2), OAUTH_RATELIMIT_MONGO_URI=uri) as app,
        ):
            statuses = [token_status(app)]
            with silent.accept()[0]:  # the background thread asks
                begun_s = time.monotonic()
                statuses += [token_status(app), token_status(app)]
                took_s = time.monotonic() - begun_s

    assert [200, 200, 429] == statuses
    assert took_s < 30.0
