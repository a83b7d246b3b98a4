"""The limiter of an application: its worker in each process, and what happens when it fails."""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.background import worker as worker_module
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.support.apps import CLIENT, app_limiter_of, protected_app, token_status
from tests.support.helpers import wait_until
from tests.support.sites import config


class CountedScheduler:
    """Replaces the background cycle, and is counted."""

    started: list["CountedScheduler"]
    hold: Callable[[], object] = staticmethod(lambda: None)  # until when a start takes

    def __init__(self, limiter: Any, **_options: Any) -> None:
        self.hold()

    def start(self) -> None:
        """Start."""
        self.started.append(self)

    def stop(self, *, timeout_s: float) -> None:
        """Stop."""
        self.started.remove(self)


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> list[CountedScheduler]:
    """The background cycles that run."""
    started: list[CountedScheduler] = []
    monkeypatch.setattr(CountedScheduler, "started", started, raising=False)
    monkeypatch.setattr(worker_module, "SyncScheduler", CountedScheduler)
    return started


def test_first_request_starts_the_background_cycle_and_close_ends_it(schedulers: list[CountedScheduler]) -> None:
    """An application that issues no token starts nothing."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config()) as app:
        assert 0 == len(schedulers)
        token_status(app)
        token_status(app)
        assert 1 == len(schedulers)

    assert 0 == len(schedulers)


def test_racing_first_requests_start_one_worker(
    schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[None] = []
    hold = staticmethod(lambda: wait_until(lambda: len(begun) == 8, "all requests have begun"))
    monkeypatch.setattr(CountedScheduler, "hold", hold)
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=3)) as app:
        app.before_request(lambda: begun.append(None))
        together = threading.Barrier(8)
        statuses: list[int] = []

        def first_request() -> None:
            together.wait(timeout=60)
            statuses.append(token_status(app))

        threads = [threading.Thread(target=first_request) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert 1 == len(schedulers)
        assert [200] * 3 + [429] * 5 == sorted(statuses)


def test_forked_process_starts_a_worker_of_its_own(
    schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        parents = app_limiter_of(app).limiter
        parent_pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent_pid + 1)

        assert 200 == token_status(app)
        assert parents is not app_limiter_of(app).limiter
        assert 2 == len(schedulers)

        app_limiter_of(app).close()
        assert 1 == len(schedulers)
        schedulers.clear()
        parents.close()
        monkeypatch.undo()


def test_exit_of_a_fork_stops_nothing_of_its_parent(
    schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        token_status(app)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            app_limiter_of(app).at_exit()
        assert 1 == len(schedulers)

        app_limiter_of(app).at_exit()
        assert 0 == len(schedulers)


def test_process_that_cannot_start_its_worker_issues_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker_module, "SyncScheduler", fail)
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        assert [200, 200] == [token_status(app), token_status(app)]

    assert ["check_failed"] == [entry["event"] for entry in logs if entry["log_level"] == "error"]


class Waiting:
    """Holds every other thread that asks MongoDB for something, and remembers who has asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: set[threading.Thread] = set()
        self.is_over = threading.Event()
        self.has_lasted = False  # whether one was held until its patience ended
        monkeypatch.setattr(MongoStore, "_open", self._held(MongoStore._open))
        monkeypatch.setattr(Connection, "client", property(self._held(vars(Connection)["client"].fget)))

    def _held(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def held(owner: object) -> Any:
            self.threads.add(threading.current_thread())
            if threading.current_thread() is not threading.main_thread() and not self.is_over.wait(30.0):
                self.has_lasted = True
            return function(owner)

        return held


@pytest.mark.usefixtures("quick_ending")
def test_request_does_not_wait_for_a_silent_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """MongoDB accepts connections and never answers; the background thread waits for it."""
    waiting = Waiting(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/?serverSelectionTimeoutMS=100&connectTimeoutMS=100"
        with (
            capture_logs(),
            protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=2), OAUTH_RATELIMIT_MONGO_URI=uri) as app,
        ):
            statuses = [token_status(app)]
            wait_until(lambda: waiting.threads, "somebody asks")
            statuses += [token_status(app), token_status(app)]
            threads = set(waiting.threads)
            waiting.is_over.set()

    assert [200, 200, 429] == statuses
    assert threading.main_thread() not in threads
    assert not waiting.has_lasted


def test_decision_and_answer_use_the_same_settings() -> None:
    """A change between the two affects neither."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        token_status(app)
        live = app_limiter_of(app)._live
        live.current = replace(live.current, denial=replace(live.current.denial, headers=()))

        auth = (CLIENT.client_id, CLIENT.client_secret)
        denied = app.test_client().post("/token", data={"grant_type": "client_credentials"}, auth=auth)

    assert 429 == denied.status_code
    assert "RateLimit" not in denied.headers
    assert "Retry-After" in denied.headers
