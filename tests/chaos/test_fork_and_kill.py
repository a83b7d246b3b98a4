"""Processes that fork, and processes that are killed."""

import os
import signal
from pathlib import Path

import pytest

from demo.database import BATCH_JOBS, seed
from tests.chaos.fleet import Books, Instance, balance, held_in
from tests.support.flows import post
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import wait_until

pytestmark = pytest.mark.chaos

USER = "user-0"


def held(uri: str) -> int:
    """Return all hits in MongoDB."""
    return held_in(uri).total()


# The driver warns of forks in general; what it warns of, using the parent's connections, is what this test rules out.
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_forked_child_starts_at_zero(mongo_uri: str, record: list[Books]) -> None:
    """A child starts without what the parent has counted, on connections of its own, and both sums are right."""
    parent = Instance(mongo_uri)
    parent.hit(USER)
    parent.limiter.sync()
    parent.hit(USER)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            parent.limiter.check("client", USER)
            parent.limiter.check("client", USER)
            parent.limiter.close()
            status = 0
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert 3 == held(mongo_uri)
    parent.hit(USER)
    parent.counted[USER] += 2  # the child's
    books = balance([parent], mongo_uri)
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)


def test_killed_worker_loses_only_what_it_had_not_sent(tmp_path: Path, mongo_uri: str, record: list[Books]) -> None:
    """A worker that is killed loses nothing that was flushed, and at most what came since."""
    database = tmp_path / "demo.sqlite3"
    seed(database)
    config = tmp_path / "ratelimit.yaml"
    config.write_text("limits: {client: [{limit: 1000, window: 1h}]}\nsync: {interval: 0.2s}\n")
    env = {
        "DEMO_DATABASE": str(database),
        "OAUTH_RATELIMIT_CONFIG": str(config),
        "OAUTH_RATELIMIT_MONGO_URI": mongo_uri,
    }

    def request_token() -> None:
        response = post(f"{server.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"})
        assert 200 == response.status_code

    with Gunicorn("demo.wsgi:app", env=env) as server:
        for _ in range(5):
            request_token()
        wait_until(lambda: held(mongo_uri) == 5, "five requests are flushed")
        for _ in range(3):
            request_token()
        killed = server.pids()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: set(server.pids()) - set(killed), "a new worker is there")
        request_token()
        server.stop()
    assert 6 <= held(mongo_uri) <= 9
    record.append(Books(requests=9, lost=9 - held(mongo_uri)))
