"""Workers of one server count together on their host, without a database and without being told to."""

import base64
import http.client
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.counters import host_place
from testbed.clock import Clock, wait_until
from testbed.gunicorn import Gunicorn
from testbed.sequence import LIMITS, SECRET, WORKER_HEADER, client_name
from tests.support.apps import CLIENT, app_limiter_of, make_app, make_server, token_status

APP = "testbed.sequence_app:app"
START_BEFORE_TRAFFIC = """
from oauth_ratelimit import OAuthRateLimit

say_ready = post_worker_init

def post_worker_init(worker):
    OAuthRateLimit.start(worker.wsgi)
    say_ready(worker)
"""


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /dev/shm for this process."""
    monkeypatch.setattr(host_place, "_IN_MEMORY", str(tmp_path))
    return tmp_path


@pytest.fixture
def shared() -> Iterator[Any]:
    """Return a function that makes an application with a limit of 3, and close what it has made."""
    apps: list[Flask] = []

    def make(name: str = "shop", host: str = "auto", limit: int = 3) -> Flask:
        limits = {"client": [{"limit": limit, "window": "10m"}]}
        app = make_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "host": host, "limits": limits})
        app.import_name = name
        OAuthRateLimit(app, make_server(app), clock=Clock())
        apps.append(app)
        return app

    yield make
    for app in apps:
        app_limiter_of(app).close()


def served(app: Flask, count: int = 10, *, is_multiprocess: bool = True) -> int:
    """Return how many requests a server with several processes would admit."""
    environ = {"wsgi.multiprocess": is_multiprocess}
    auth, form = (CLIENT.client_id, CLIENT.client_secret or ""), {"grant_type": "client_credentials"}
    client = app.test_client()
    return sum(
        client.post("/token", data=form, auth=auth, environ_overrides=environ).status_code == 200 for _ in range(count)
    )


def test_processes_of_any_server_with_several_count_together(shared: Any) -> None:
    """By the request's own word, ``wsgi.multiprocess``. Two configurations may differ for a while."""
    assert [2, 1] == [served(shared(), 2), served(shared())]
    assert [2, 2] == [served(shared("other"), 2), served(shared("other", limit=4))]


def test_services_with_the_same_parent_count_apart(shared: Any) -> None:
    assert [3, 3, 3] == [served(shared("shop")), served(shared("bank")), served(shared(host="off"))]


def test_single_process_and_tests_of_users_share_with_nobody(shared: Any, memory: Path) -> None:
    with capture_logs() as logs:
        assert [3, 3] == [served(shared(), is_multiprocess=False), served(shared(), is_multiprocess=False)]
        assert 200 == token_status(shared())
    assert not list(memory.iterdir())
    started = [entry for entry in logs if entry["event"] == "ratelimit_started"]
    assert ["none: this process shares no file"] * 3 == [entry["host"] for entry in started]
    assert "counters_not_shared" not in {entry["event"] for entry in logs}


def test_start_line_names_the_file(shared: Any, memory: Path) -> None:
    with capture_logs() as logs:
        served(shared(), 1)
    [entry] = [entry for entry in logs if entry["event"] == "ratelimit_started"]
    assert entry["host"] in map(str, memory.glob("*/*"))


def test_worker_that_is_started_before_its_first_request_shares(shared: Any) -> None:
    first, second = shared(), shared()
    for app in (first, second):
        OAuthRateLimit.start(app)
    assert [2, 1] == [served(first, 2, is_multiprocess=False), served(second, is_multiprocess=False)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_child_process_shares_with_nobody_and_does_not_disturb_its_parent(shared: Any) -> None:
    app = shared()
    assert 1 == served(app, 1)
    child = os.fork()
    if not child:
        os._exit(served(app, is_multiprocess=False))
    _, status = os.waitpid(child, 0)
    assert (3, 2) == (os.waitstatus_to_exitcode(status), served(app))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_workers_count_together_although_their_master_is_killed_before_one_has_a_request(shared: Any) -> None:
    first, second = shared(), shared()
    found, told = os.pipe()
    master = os.fork()
    if not master:
        if os.fork():
            signal.pause()
        try:
            os.write(told, bytes([served(first, 2)]))
            os.kill(parent := os.getppid(), signal.SIGKILL)
            wait_until(lambda: os.getppid() != parent, "the master is gone")
            os.write(told, bytes([served(second)]))
        finally:
            os._exit(0)
    os.waitpid(master, 0)
    os.close(told)
    with os.fdopen(found, "rb") as file:
        assert [2, 1] == list(file.read())


def ask(port: int, client_id: str) -> tuple[bool, str]:
    """Return whether a request is admitted, and the worker that has answered it."""
    credentials = base64.b64encode(f"{client_id}:{SECRET}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/token", "grant_type=client_credentials", headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status == 200, response.headers[WORKER_HEADER]


def admitted(server: Gunicorn, limit: int = 10, number: int = 0, *, count: int | None = None) -> int:
    """Send a client's requests, six at a time and each over a new connection, and return how many are admitted."""
    with ThreadPoolExecutor(6) as pool:
        client_ids = [client_name(limit, number)] * (count or 2 * limit + 20)
        return sum(is_admitted for is_admitted, _ in pool.map(lambda each: ask(server.port, each), client_ids))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"workers": 4, "worker_class": "gthread", "threads": 4, "preload": True},
        {"workers": 4, "worker_class": "gevent", "config": START_BEFORE_TRAFFIC},
        {"workers": 8, "worker_class": "gevent", "preload": True},
    ],
    ids=str,
)
def test_workers_of_gunicorn_together_admit_exactly_the_limit(options: dict[str, Any]) -> None:
    with Gunicorn(APP, **options) as server:
        assert list(LIMITS) == [admitted(server, limit) for limit in LIMITS], server.log


def _replaced(server: Gunicorn, number: signal.Signals, workers: list[int], count: int) -> list[int]:
    """Send a signal to the master, and return its workers when none of the former ones is left."""
    server.signal(number)
    return wait_until(lambda: _new_workers(server, workers, count), f"{count} new workers run")


def _new_workers(server: Gunicorn, former: list[int], count: int) -> list[int]:
    found = server.pids()
    return found if len(found) == count and not set(former) & set(found) else []


@pytest.mark.slow
def test_counts_survive_a_reload_more_workers_and_killed_ones() -> None:
    with Gunicorn(APP, workers=2) as server:
        assert 3 == admitted(server, count=3)
        workers = _replaced(server, signal.SIGHUP, server.pids(), 2)
        assert 3 == admitted(server, count=3)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _new_workers(server, workers, 2), "new workers run")
        assert 3 == admitted(server, count=3)
        server.signal(signal.SIGTTIN)
        wait_until(lambda: len(server.pids()) == 3, "a third worker runs")
        assert 1 == admitted(server), server.log


@pytest.mark.slow
def test_counts_survive_a_worker_that_ends_after_so_many_requests() -> None:
    """And is the only one."""
    with Gunicorn(APP, extra=["--max-requests=2"]) as server:
        first = server.pids()
        assert 3 == admitted(server, 3, count=6), server.log
        assert first != server.pids()


@pytest.mark.slow
def test_stopped_worker_holds_nobody_up_and_knows_the_counts_later() -> None:
    with Gunicorn(APP, workers=2) as server:
        assert 5 == admitted(server, count=5)
        stopped, running = server.pids()
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert 5 == admitted(server)
        finally:
            os.kill(stopped, signal.SIGCONT)
        os.kill(running, signal.SIGSTOP)
        try:
            assert 0 == admitted(server), server.log
        finally:
            os.kill(running, signal.SIGCONT)


@pytest.mark.slow
def test_workers_of_a_new_master_count_apart_from_those_of_the_old_one() -> None:
    """Both answer until the old one is ended."""
    with Gunicorn(APP, workers=1) as server:
        assert 10 == admitted(server)
        server.signal(signal.SIGUSR2)
        wait_until(lambda: server.log.count(" is ready\n") == 2, "a worker of the new master runs")
        os.kill(server.pids()[0], signal.SIGSTOP)
        assert 10 == admitted(server), server.log
