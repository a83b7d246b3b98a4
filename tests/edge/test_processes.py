"""
Worker processes of gunicorn: each starts for itself after the fork and leaves nothing unsent when it ends.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from oauth_ratelimit.demo.authserver import seed
from oauth_ratelimit.demo.seeds import BATCH_JOBS, WEB_SHOP
from tests.edge.flows import password_of, post
from tests.helpers import is_running, wait_until
from tests.workers import Gunicorn

APP = "tests.edge.worker_app:app"


@pytest.fixture
def environment(tmp_path: Path, mongo_uri: str) -> dict[str, str]:
    """
    What the workers need: a seeded database, and MongoDB.
    """
    database = tmp_path / "demo.sqlite3"
    seed(database)
    return {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri}


@pytest.fixture
def documents(mongo_uri: str) -> Iterator[Any]:
    """
    The collection of shared counters.
    """
    with MongoClient(mongo_uri) as client:
        yield client.get_default_database()["ratelimits"]


def count(documents: Any, client_id: str, username: str | None) -> int:
    """
    Return how many requests MongoDB has of a client, or of its user.
    """
    document = documents.find_one({"_id": {"clientId": client_id, "username": username}})
    return sum(sum(frames.values()) for frames in document["requestCounters"].values()) if document else 0


def ask_for_tokens(url: str) -> None:
    """
    Take six tokens as a client and six for a user, several at a time.
    """
    login = {"grant_type": "password", "username": "alice", "password": password_of("alice")}
    requests = [(BATCH_JOBS, {"grant_type": "client_credentials"}), (WEB_SHOP, login)] * 6
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda request: post(f"{url}/token", *request), requests))
    assert [200] * 12 == [answer.status_code for answer in answers], answers[0].text


@pytest.mark.parametrize("preload", [False, True], ids=["no preload", "preload"])
@pytest.mark.parametrize("worker_class", ["sync", "gthread", "gevent"])
def test_workers_that_end(environment: dict[str, str], documents: Any, worker_class: str, preload: bool) -> None:
    """
    Workers of every class count what they admit and flush it when they are told to end, preloaded or not.
    """
    threads = 4 if worker_class == "gthread" else 1
    with Gunicorn(
        APP, worker_class=worker_class, workers=2, threads=threads, preload=preload, env=environment
    ) as server:
        ask_for_tokens(server.url)
        assert 0 == server.stop(), server.log

    assert 6 == count(documents, "batch-jobs", None), server.log
    assert 6 == count(documents, "web-shop", "alice"), server.log
    assert "Traceback" not in server.log
    assert "MongoClient opened before fork" not in server.log


@pytest.mark.parametrize("preload", [False, True], ids=["no preload", "preload"])
def test_workers_that_are_replaced(environment: dict[str, str], documents: Any, preload: bool) -> None:
    """
    A reload of gunicorn loses nothing: the old workers flush, the new ones start for themselves.
    """
    with Gunicorn(APP, workers=2, preload=preload, env=environment) as server:
        ask_for_tokens(server.url)
        old = set(server.pids())
        server.signal(signal.SIGHUP)
        wait_until(lambda: len(server.pids()) == 2 and not old & set(server.pids()), "new workers run", 30.0)
        assert 6 == count(documents, "batch-jobs", None), server.log

        ask_for_tokens(server.url)
        assert 0 == server.stop(), server.log

    assert 12 == count(documents, "batch-jobs", None), server.log
    assert 12 == count(documents, "web-shop", "alice"), server.log


def test_workers_that_are_interrupted(environment: dict[str, str], documents: Any) -> None:
    """
    Ctrl-C at gunicorn flushes like an orderly end.
    """
    with Gunicorn(APP, workers=2, env=environment) as server:
        ask_for_tokens(server.url)
        workers = server.pids()
        server.signal(signal.SIGINT)
        wait_until(lambda: not any(map(is_running, workers)), "the workers end", 30.0)

    assert 6 == count(documents, "batch-jobs", None), server.log
    assert 6 == count(documents, "web-shop", "alice"), server.log


def test_workers_that_retire(environment: dict[str, str], documents: Any) -> None:
    """
    Workers that end after a number of requests flush like any other.
    """
    with Gunicorn(APP, workers=2, env=environment, extra=["--max-requests=3"]) as server:
        ask_for_tokens(server.url)
        assert 0 == server.stop(), server.log

    assert 6 == count(documents, "batch-jobs", None), server.log
    assert 6 == count(documents, "web-shop", "alice"), server.log
