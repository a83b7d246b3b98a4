"""Workers that end while MongoDB refuses, hangs or is slow."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from testbed.mongod import Mongod
from testbed.oauth_server.database import BATCH_JOBS, WEB_SHOP
from tests.chaos.conftest import IS_LONG
from tests.chaos.fleet import held_in
from tests.support.faults import FaultyProxy
from tests.support.flows import post
from tests.support.helpers import BEFORE_TRAFFIC, with_database

APP = "tests.support.worker_app:app"
pytestmark = pytest.mark.chaos

# The handler that is registered first runs last, after those of the driver.
TIMED = """
import atexit
import sys
import time

def post_fork(server, worker):
    worker.ending_s = None

    def report():
        print(f"worker ended within {time.monotonic() - worker.ending_s:.2f} s", file=sys.stderr, flush=True)

    atexit.register(report)

def worker_exit(server, worker):
    worker.ending_s = time.monotonic()
"""
PROMISED_S = 7.0  # of the worker's own clock: 4.5 of the deadline and 2.5 of the driver

Break = Callable[[Mongod, FaultyProxy], object]
SITUATIONS: dict[str, Break] = {
    "refusing": lambda mongod, proxy: (proxy.close(), mongod.kill()),
    "stopped": lambda mongod, proxy: os.kill(mongod.pid or 0, signal.SIGSTOP),
    "slow by 1 s": lambda mongod, proxy: proxy.delay_replies(1.0),
}
RARE: dict[str, Break] = {
    "hanging": lambda mongod, proxy: proxy.swallow(True),
    "slow by 3 s": lambda mongod, proxy: proxy.delay_replies(3.0),
}
if IS_LONG:
    SITUATIONS |= RARE


@pytest.mark.parametrize("situation", SITUATIONS)
def test_worker_ends_in_time_and_reports_what_was_not_delivered(database: Path, situation: str) -> None:
    """Counters of tokens and failures, statistics and denials share the time. No hit is reported wrongly."""
    guess = {"grant_type": "password", "username": "alice", "password": "wrong"}
    with Mongod() as mongod, FaultyProxy(uri := with_database(mongod.uri, "ending")) as proxy:
        env = {
            "DEMO_DATABASE": str(database),
            "WORKER_MONGO_URI": proxy.uri,
            "WORKER_INTERVAL": "0.5s",
            "WORKER_LIMIT": "5",
            "WORKER_GUARD": "dry-run",
        }
        with Gunicorn(APP, worker_class="gthread", threads=2, env=env, config=BEFORE_TRAFFIC + TIMED) as server:

            def request_tokens() -> int:
                """Make four requests and a guess, and return the number of tokens."""
                form = {"grant_type": "client_credentials"}
                codes = [post(f"{server.url}/token", BATCH_JOBS, form).status_code for _ in range(4)]
                assert post(f"{server.url}/token", WEB_SHOP, guess).status_code == 400
                return codes.count(200)

            counted = request_tokens()
            wait_until(lambda: held_in(uri).total() == counted, "the first hits are flushed")
            SITUATIONS[situation](mongod, proxy)
            counted += request_tokens()
            assert 0 == server.stop(), server.log
            if situation == "stopped":
                os.kill(mongod.pid or 0, signal.SIGCONT)
            mongod.start()
            undelivered, unconfirmed = (reported(server.log, event) for event in ("undelivered", "unconfirmed"))
            missing = counted - held_in(uri).total()
            (ended_s,) = map(float, re.findall(r"worker ended within ([\d.]+) s", server.log))
    assert undelivered <= missing <= undelivered + unconfirmed, server.log
    if situation == "slow by 1 s":
        assert 0 == missing, server.log
    assert ended_s < PROMISED_S, server.log


def reported(log: str, outcome: str) -> int:
    found = re.search(rf"hits_{outcome} .*'batch-jobs': (\d+)", log)
    return int(found[1]) if found else 0
