"""Statistics when the way to MongoDB is broken: every request is in them once."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from demo.database import BATCH_JOBS, seed
from oauth_ratelimit import Limiter, OAuthRateLimit, load_config
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.statistics import Tally
from oauth_ratelimit.observe import statistics
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.support.faults import CUT, HOLD, LOSE_REPLY, FaultyProxy
from tests.support.flows import post
from tests.support.helpers import Clock, wait_until, with_database
from tests.support.serving import serving
from tests.support.sites import config, protect_after

pytestmark = pytest.mark.chaos

CREDENTIALS = {"grant_type": "client_credentials"}


@pytest.fixture
def read(connection: Connection) -> StatisticsStore:
    """The statistics, past the faults."""
    return StatisticsStore(connection)


@contextmanager
def server(tmp_path: Path, uri: str) -> Iterator[str]:
    """Serve a protected application, and shut it down."""
    database = tmp_path / "demo.sqlite3"
    if not database.exists():
        seed(database)
    settings = config(limit=20, window=3600, store={"uri": uri}, sync={"interval": "20ms"})
    app = protect_after(database, settings, OAuthRateLimit())
    with serving(app) as url:
        yield url
    app.extensions["oauth_ratelimit"].close()


def total(read: StatisticsStore) -> Tally:
    """Return the sum of all that MongoDB has of the client."""
    return sum((minute.tally() for minute in read.minutes(0, 4e9, BATCH_JOBS.client_id)), Tally())


class Process:
    """Counting parts of one process, on a way to MongoDB of its own."""

    def __init__(self, uri: str, clock: Clock) -> None:
        self.clock = clock
        self.connection = Connection(uri)
        settings = config(limit=3, window=60)
        self.limiter = Limiter(load_config(settings), clock=clock)
        self.recorder = StatisticsRecorder(StatisticsStore(self.connection), settings=StatisticsSettings, clock=clock)

    def ask(self) -> Tally:
        """Make a request, and return what became of it."""
        decision = self.limiter.check("shop", "alice")
        self.recorder.count(decision, "shop", username="alice", grant="password", now_s=self.clock())
        return Tally(allowed=1) if decision.allowed else Tally(denied=1)

    def run(self) -> None:
        """Do what the background thread does every ten seconds."""
        self.recorder.run()

    def close(self) -> None:
        """Shut down with a last flush."""
        self.recorder.close()
        self.connection.close()


@pytest.mark.parametrize("retry_writes", [True, False], ids=["retryable writes", "no retryable writes"])
def test_statistics_count_once_when_replies_are_lost(
    mongo_uri: str, read: StatisticsStore, clock: Clock, retry_writes: bool
) -> None:
    """Writes of several processes are cut off, before or after MongoDB applied them, or reach it minutes later, and
    processes are replaced: MongoDB has what clients were told.
    """
    address = urlsplit(mongo_uri)
    told = Tally()
    with FaultyProxy(address.hostname or "", address.port or 27017) as proxy:
        uri = with_database(proxy.uri, address.path[1:]) + f"&retryWrites={str(retry_writes).lower()}"
        processes = [Process(uri, clock) for _ in range(3)]
        for process in processes:
            process.run()
        rng = random.Random(5)
        proxy.random_faults(0.5, rng, kinds=(LOSE_REPLY, CUT, HOLD))
        for turn in range(60):
            for process in processes:
                for _ in range(rng.randrange(4)):
                    told += process.ask()
                process.run()
            clock.advance(10.0)
            if turn % 20 == 19:
                proxy.release()
                proxy.random_faults(0.0, rng)
                processes.pop(0).close()
                processes.append(Process(uri, clock))
                proxy.random_faults(0.5, rng, kinds=(LOSE_REPLY, CUT, HOLD))
        proxy.random_faults(0.0, rng)
        for process in processes:
            process.close()
        proxy.release()

        minutes = list(read.minutes(0, 4e9, "shop"))
        assert {"lost_reply", "cut", "held", "released"} <= proxy.faults.keys()
    assert told == sum((replace(minute.tally(), retries=0) for minute in minutes), Tally())
    assert told.offered == sum(user.offered for minute in minutes for user in minute.users)
    assert told.denied > 0


def test_statistics_arrive_when_mongodb_is_back(
    tmp_path: Path, mongo_uri: str, read: StatisticsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go on without MongoDB, and are in the statistics when it is back."""
    monkeypatch.setattr(statistics, "WRITE_EVERY_S", 0.05)
    address = urlsplit(mongo_uri)
    with FaultyProxy(address.hostname or "", address.port or 27017) as proxy:
        uri = with_database(proxy.uri, address.path[1:]) + "&serverSelectionTimeoutMS=300&socketTimeoutMS=300"
        with server(tmp_path, uri) as url:
            proxy.swallow(True)
            assert {200, 429} == {post(f"{url}/token", BATCH_JOBS, CREDENTIALS).status_code for _ in range(30)}
            proxy.swallow(False)
            wait_until(lambda: total(read).offered == 30, "everything arrives")
