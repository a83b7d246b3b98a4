"""Statistics when the way to MongoDB is broken: every request is in them once."""

import random

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.worker import RollupTask
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import DecidedRequest
from oauth_ratelimit.core.statistics import Tally
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.rollups import SETTLED_S, RollupStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.clock import Clock
from tests.support.faults import CUT, HOLD, LOSE_REPLY, FaultyProxy
from tests.support.sites import config

pytestmark = pytest.mark.chaos


class Process:
    """Counting parts of one process, on a way to MongoDB of its own."""

    def __init__(self, uri: str, clock: Clock) -> None:
        self.clock = clock
        self.connection = Connection(uri)
        settings = config(limit=3, window=60)
        self.limiter = Limiter(load_config(settings), clock=clock)
        self.recorder = StatisticsRecorder(StatisticsStore(self.connection), settings=StatisticsSettings, clock=clock)
        self.rollups = RollupTask(RollupStore(self.connection), settings=StatisticsSettings, clock=clock)

    def ask(self) -> Tally:
        decision = self.limiter.check("shop", "alice")
        self.recorder.count([DecidedRequest(decision, "shop", "alice", "password", "token", self.clock(), 3e-6)])
        return Tally(allowed=1) if decision.allowed else Tally(denied=1)

    def run(self) -> None:
        """Do what the background thread does every ten seconds."""
        self.recorder.run()
        self.rollups.run()

    def close(self) -> None:
        self.recorder.close(Deadline())
        self.connection.close()


@pytest.mark.parametrize("retry_writes", [True, False], ids=["retryable writes", "no retryable writes"])
def test_statistics_count_once_when_replies_are_lost(
    mongo_uri: str, connection: Connection, clock: Clock, retry_writes: bool
) -> None:
    """Writes of several processes are cut off, before or after MongoDB applied them, or reach it minutes later, and
    processes are replaced: MongoDB has what clients were told.
    """
    told = Tally()
    with FaultyProxy(mongo_uri) as proxy:
        uri = f"{proxy.uri}&retryWrites={str(retry_writes).lower()}"
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

        clock.advance(SETTLED_S + 60.0)
        rollups = RollupStore(connection)
        list(rollups.derive_due(clock(), keep_s=1e9))
        totals = rollups.rows(clock() - 7200, clock())
        minutes = list(StatisticsStore(connection).minutes(0, 4e9, "shop"))
        assert {"lost_reply", "cut", "held", "released"} <= proxy.faults.keys()
    assert told == sum((minute.tally()._replace(retries=0) for minute in minutes), Tally())
    assert told.offered == sum(user.offered for minute in minutes for user in minute.users)
    assert told.denied > 0
    assert (0, [told]) == (len(totals.missing), [found.tally._replace(retries=0) for found in totals.clients])
