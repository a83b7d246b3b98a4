"""Worker processes of gunicorn: each starts after the fork and flushes at its end."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.child import is_running
from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from testbed.oauth_server.database import BATCH_JOBS, WEB_SHOP
from tests.support.flows import password_of, post
from tests.support.helpers import BEFORE_TRAFFIC

pytestmark = pytest.mark.slow

APP = "tests.support.worker_app:app"


@pytest.fixture
def environment(database: Path, mongo_uri: str) -> dict[str, str]:
    return {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri}


def count(documents: Any, client_id: str, username: str | None) -> int:
    document = documents.find_one({"_id": {"clientId": client_id, "username": username}})
    return sum(sum(frames.values()) for frames in document["requestCounters"].values()) if document else 0


JOB = (BATCH_JOBS, {"grant_type": "client_credentials"})
LOGIN = (WEB_SHOP, {"grant_type": "password", "username": "alice", "password": password_of("alice")})


def parallel_statuses(url: str, *requests: Any) -> list[int]:
    """Send token requests, four at a time, and return the answers' status codes."""
    with ThreadPoolExecutor(4) as pool:
        return [answer.status_code for answer in pool.map(lambda request: post(f"{url}/token", *request), requests)]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, signal.SIGTERM),
        ({}, signal.SIGINT),  # Ctrl-C
        ({}, signal.SIGHUP),  # a reload
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
    with Gunicorn(APP, workers=2, env=environment, **options) as server:
        assert [200] * 12 == parallel_statuses(server.url, *[JOB, LOGIN] * 6)
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


def test_no_request_is_admitted_uncounted_if_gunicorn_is_killed_and_gevent_goes_on(
    environment: dict[str, str], documents: Any
) -> None:
    """Its workers end without ending their requests first: they serve while they flush for the last time."""
    admitted: list[int] = []
    with Gunicorn(APP, workers=2, worker_class="gevent", env={**environment, "WORKER_LIMIT": "100000"}) as server:
        workers = server.pids()

        def ask_until_it_ends(_: int) -> None:
            with suppress(requests.ConnectionError):
                while 200 == post(f"{server.url}/token", *JOB).status_code:
                    admitted.append(1)

        with ThreadPoolExecutor(24) as pool:
            done = pool.map(ask_until_it_ends, range(24))
            wait_until(lambda: len(admitted) > 100, "traffic has begun")
            os.kill(server.master_pid, signal.SIGKILL)
            list(done)
        wait_until(lambda: not any(map(is_running, workers)), "the workers end")
    assert len(admitted) <= count(documents, BATCH_JOBS.client_id, None) <= len(admitted) + 24


@pytest.mark.parametrize(
    "options", [{}, {"worker_class": "gthread", "threads": 4}, {"worker_class": "gevent"}], ids=str
)
def test_workers_give_out_tokens_again_until_one_is_revoked(
    environment: dict[str, str], documents: Any, options: dict[str, Any]
) -> None:
    """Each worker issues at most the limit, and one above it. A revocation at one of them reaches the other."""
    limit, worker_count = 5, 2
    env = {**environment, "WORKER_LIMIT": f"{limit}", "WORKER_INTERVAL": "100ms", "WORKER_ON_LIMIT": "reuse"}
    with Gunicorn(APP, workers=worker_count, env=env, config=BEFORE_TRAFFIC, **options) as server:

        def tokens(count: int) -> set[str]:
            return {post(f"{server.url}/token", *JOB).json().get("access_token", "") for _ in range(count)}

        issued = tokens(40)
        wait_until(lambda: count(documents, "batch-jobs", None) >= limit, "all hits are counted")
        kept = tokens(20)
        assert "" not in issued | kept, server.log
        assert len(issued | kept) <= worker_count * (limit + 1)
        assert 200 == post(f"{server.url}/revoke", BATCH_JOBS, {"token": next(iter(kept))}).status_code
        wait_until(lambda: not tokens(10) & (issued | kept), "the tokens are dropped")
        assert 0 == server.stop(), server.log


def test_workers_started_before_traffic_know_the_counts(environment: dict[str, str], documents: Any) -> None:
    """Replacing all workers at once admits no client that is at its limit."""
    env = {**environment, "WORKER_LIMIT": "5", "WORKER_INTERVAL": "200ms"}
    with Gunicorn(APP, workers=2, env=env, config=BEFORE_TRAFFIC) as server:
        assert 200 in parallel_statuses(server.url, *[JOB] * 20)
        wait_until(lambda: count(documents, "batch-jobs", None) >= 5, "the limit is reached")
        old = set(server.pids())
        server.signal(signal.SIGHUP)
        wait_until(lambda: len(server.pids()) == 2 and not old & set(server.pids()), "new workers run")

        assert [429] * 20 == parallel_statuses(server.url, *[JOB] * 20), server.log
