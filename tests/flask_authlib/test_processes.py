"""Worker processes of gunicorn: each starts after the fork and flushes at its end."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from demo.database import BATCH_JOBS, WEB_SHOP, seed
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.support.child import Child
from tests.support.flows import password_of, post
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import is_running, wait_until
from tests.support.mongod import free_port

APP = "tests.support.worker_app:app"


@pytest.fixture
def environment(tmp_path: Path, mongo_uri: str) -> dict[str, str]:
    """Environment of the workers: a seeded database, and MongoDB."""
    database = tmp_path / "demo.sqlite3"
    seed(database)
    return {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri}


def count(documents: Any, client_id: str, username: str | None) -> int:
    """Return how many requests MongoDB has of a client, or of its user."""
    document = documents.find_one({"_id": {"clientId": client_id, "username": username}})
    return sum(sum(frames.values()) for frames in document["requestCounters"].values()) if document else 0


def ask_for_tokens(url: str) -> None:
    """Take six tokens as a client and six for a user, several at a time."""
    login = {"grant_type": "password", "username": "alice", "password": password_of("alice")}
    requests = [(BATCH_JOBS, {"grant_type": "client_credentials"}), (WEB_SHOP, login)] * 6
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda request: post(f"{url}/token", *request), requests))
    assert [200] * 12 == [answer.status_code for answer in answers], answers[0].text


def statuses(url: str, tokens: int) -> list[int]:
    """Ask for tokens as one client, four at a time, and return the answers' status codes."""
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(post, f"{url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}) for _ in range(tokens)
        ]
    return [answer.result().status_code for answer in asked]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, signal.SIGTERM),
        ({}, signal.SIGINT),  # Ctrl-C
        ({"worker_class": "gthread", "threads": 4, "preload": True}, signal.SIGTERM),
        ({"worker_class": "gevent"}, signal.SIGTERM),
        ({"worker_class": "gevent", "preload": True}, signal.SIGTERM),
        ({"preload": True, "extra": ["--max-requests=3"]}, signal.SIGTERM),
    ],
    ids=str,
)
def test_workers_flush_when_they_end(
    environment: dict[str, str], connection: Connection, documents: Any, options: dict[str, Any], number: signal.Signals
) -> None:
    """Counters and statistics of every worker, whatever its class."""
    with Gunicorn(APP, workers=2, env=environment, **options) as server:
        ask_for_tokens(server.url)
        workers = server.pids()
        server.signal(number)
        wait_until(lambda: not any(map(is_running, workers)), "the workers end")

    assert 6 == count(documents, "batch-jobs", None), server.log
    assert 6 == count(documents, "web-shop", "alice"), server.log
    minutes = [*StatisticsStore(connection).minutes(0, 4e9)]
    for client_id in ("batch-jobs", "web-shop"):
        assert 6 == sum(each.tally().allowed for each in minutes if each.client_id == client_id), server.log
    assert number == signal.SIGINT or "Traceback" not in server.log  # gunicorn logs the interruption itself
    assert "MongoClient opened before fork" not in server.log


def test_reload_of_gunicorn_loses_no_hit(environment: dict[str, str], documents: Any) -> None:
    """The old workers flush, the new ones start their own cycle."""
    with Gunicorn(APP, workers=2, env=environment) as server:
        ask_for_tokens(server.url)
        old = set(server.pids())
        server.signal(signal.SIGHUP)
        wait_until(lambda: len(server.pids()) == 2 and not old & set(server.pids()), "new workers run")
        assert 6 == count(documents, "batch-jobs", None), server.log

        ask_for_tokens(server.url)
        assert 0 == server.stop(), server.log

    assert 12 == count(documents, "batch-jobs", None), server.log
    assert 12 == count(documents, "web-shop", "alice"), server.log


def test_workers_started_before_traffic_know_the_counts(environment: dict[str, str], documents: Any) -> None:
    """Replacing all workers at once admits no client that is at its limit."""
    env = {**environment, "WORKER_LIMIT": "5", "WORKER_INTERVAL": "200ms"}
    before_traffic = """
from oauth_ratelimit import OAuthRateLimit

say_ready = post_worker_init

def post_worker_init(worker):
    OAuthRateLimit.start(worker.wsgi)
    say_ready(worker)
"""
    with Gunicorn(APP, workers=2, env=env, config=before_traffic) as server:
        assert 200 in statuses(server.url, 20)
        wait_until(lambda: count(documents, "batch-jobs", None) >= 5, "the limit is reached")
        old = set(server.pids())
        server.signal(signal.SIGHUP)
        wait_until(lambda: len(server.pids()) == 2 and not old & set(server.pids()), "new workers run")

        assert [429] * 20 == statuses(server.url, 20), server.log


def test_server_restarted_by_the_reloader_flushes(environment: dict[str, str], documents: Any, tmp_path: Path) -> None:
    module, log_path, port = tmp_path / "reloaded.py", tmp_path / "flask.log", free_port()
    module.write_text("from tests.support.worker_app import app\n")
    command = [sys.executable, "-m", "flask", "--app", str(module), "run", f"--port={port}", "--debug"]
    root = Path(__file__).parents[2]
    server = Child(command, log_path=log_path, env={**os.environ, **environment}, cwd=root)
    try:
        wait_until(lambda: "Debugger PIN" in log_path.read_text(), "the server runs")
        ask_for_tokens(f"http://127.0.0.1:{port}")
        os.utime(module, (2**31, 2**31))  # newer than any
        wait_until(lambda: log_path.read_text().count("Debugger PIN") == 2, "the server runs again")
        assert 6 == count(documents, "batch-jobs", None), log_path.read_text()

        ask_for_tokens(f"http://127.0.0.1:{port}")
    finally:
        server.kill()

    assert "cycle_failed" not in log_path.read_text()
