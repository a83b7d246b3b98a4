"""A real worker whose clock is wrong, beside a healthy one: it is stopped, goes on, and is killed."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from testbed.oauth_server.database import BATCH_JOBS, WEB_SHOP
from tests.support.flows import password_of, post

pytestmark = pytest.mark.chaos

WINDOW_S = 600  # of the worker application
KILLED_WITH = 5  # requests right before the kill
SHIFTED = """
import time

def post_fork(server, worker):
    if worker.age == 2:
        time_s, time_ns = time.time, time.time_ns
        time.time = lambda: time_s() + 3600
        time.time_ns = lambda: time_ns() + 3600 * 10**9
        print(f"worker {worker.pid} is shifted", file=sys.stderr, flush=True)
"""


def frames_of(uri: str) -> dict[int, int]:
    with MongoClient[dict[str, Any]](uri) as client:
        document = client.get_default_database()["ratelimits"].find_one({"_id.clientId": "batch-jobs"}) or {}
    series = document.get("requestCounters", {}).values()
    return {int(start_s): hits for frames in series for start_s, hits in frames.items()}


def test_worker_with_a_wrong_clock_loses_nothing_but_what_it_had_not_sent(database: Path, mongo_uri: str) -> None:
    """Its clock is corrected; nothing of the healthy worker is removed, and a stop delays its hits only."""
    env = {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri, "WORKER_INTERVAL": "0.3s"}
    login = {"grant_type": "password", "username": "alice", "password": password_of("alice")}
    counted = 0
    with Gunicorn("tests.support.worker_app:app", workers=2, env=env, config=SHIFTED) as server:

        def request_tokens(count: int) -> None:
            nonlocal counted
            for _ in range(count):
                answer = post(f"{server.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"})
                assert 200 == answer.status_code
            counted += count

        def everything_is_there() -> bool:
            return sum(frames_of(mongo_uri).values()) == counted

        def is_corrected() -> bool:
            assert 200 == post(f"{server.url}/token", WEB_SHOP, login).status_code
            return "clock_skew" in server.log

        wait_until(is_corrected, "the clock is corrected")
        (shifted,) = map(int, re.findall(r"worker (\d+) is shifted", server.log))
        request_tokens(30)
        wait_until(everything_is_there, "both workers have flushed")
        assert all(abs(start_s - time.time()) < WINDOW_S for start_s in frames_of(mongo_uri))

        os.kill(shifted, signal.SIGSTOP)
        request_tokens(10)
        wait_until(everything_is_there, "the healthy worker has flushed")
        os.kill(shifted, signal.SIGCONT)
        request_tokens(30)
        wait_until(everything_is_there, "both workers have flushed again")

        request_tokens(KILLED_WITH)
        os.kill(shifted, signal.SIGKILL)
        wait_until(lambda: len(server.pids()) == 2 and shifted not in server.pids(), "a new worker is there")
        request_tokens(10)
        assert 0 == server.stop(), server.log
    held = sum(frames_of(mongo_uri).values())
    assert counted - KILLED_WITH <= held <= counted
