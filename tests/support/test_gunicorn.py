"""The gunicorn server that other tests run applications in."""

import atexit
import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support.gunicorn import Gunicorn, ServerFailed
from tests.support.helpers import wait_until

pytestmark = pytest.mark.slow

_APP = "tests.support.test_gunicorn:application"


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the process id, as a WSGI application."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


def announce_exit() -> None:
    """Leave a line in the log when this process ends by itself."""
    sys.stdout.write(f"exit handler of {os.getpid()}\n")


if os.environ.get("ANNOUNCE_EXIT"):
    atexit.register(announce_exit)


def fetch(url: str) -> int:
    """Return the process id that answered."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return int(response.read())


@pytest.mark.parametrize("preload", [False, True], ids=["no preload", "preload"])
@pytest.mark.parametrize("worker_class", ["sync", "gthread", "gevent"])
def test_every_worker_class_answers_and_runs_exit_handlers(worker_class: str, preload: bool) -> None:
    threads = 2 if worker_class == "gthread" else 1
    env = {"ANNOUNCE_EXIT": "1"}
    with Gunicorn(_APP, worker_class=worker_class, workers=2, threads=threads, preload=preload, env=env) as server:
        pids = server.pids()
        assert fetch(server.url) in pids
        assert server.stop() == 0
    assert len(set(pids)) == 2
    assert all(f"exit handler of {pid}\n" in server.log for pid in pids)


def test_hup_replaces_the_workers() -> None:
    with Gunicorn(_APP, workers=1) as server:
        before = server.pids()
        server.signal(signal.SIGHUP)
        wait_until(lambda: server.pids() and not set(before) & set(server.pids()), "the worker is replaced")
        assert fetch(server.url) in server.pids()


def test_kill_ends_the_workers_without_exit_handlers() -> None:
    with Gunicorn(_APP, workers=2, env={"ANNOUNCE_EXIT": "1"}) as server:
        server.kill()
        with pytest.raises(OSError, match="refused"):
            fetch(server.url)
    assert "exit handler" not in server.log


def test_failed_start_is_an_error_with_the_log() -> None:
    with pytest.raises(ServerFailed, match="No module named 'no_such_module'"), Gunicorn("no_such_module:app"):
        pass
