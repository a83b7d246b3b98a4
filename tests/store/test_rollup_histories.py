"""Rollups under random histories in a real MongoDB: all of them equal the minutes of clients, and no total ever falls.

Processes write statistics through outages. They are stopped in the middle of a write, which arrives minutes later, and
killed in the middle of a derivation. Between any two operations of one of them, others write, derive and read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import DecidedRequest
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import MINUTE_S, ClientMinute, ClientTotal, Source, Tally
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.store.mongo import rollups
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.rollups import FIVE_S, ROLLUP, RollupStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.clock import Clock

KEEP_S = 1e9
BATCH = Source("client", "client_credentials")
TURN_S = 20
LENGTH_S = 1800
SHORT_HOUR_S, SHORT_DAY_S = 600, 1200
FINER_S = {MINUTE_S: 0, FIVE_S: 0, SHORT_HOUR_S: FIVE_S, SHORT_DAY_S: SHORT_HOUR_S}


class Killed(BaseException):
    """The process ends here."""


class Interrupted:
    """The collection of one process, to which something may happen before each of its operations."""

    def __init__(self, history: "History") -> None:
        self._history = history

    def collection(self, name: str) -> "Interrupted":
        self._collection = self._history.connection.collection(name)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in {"find", "find_one", "aggregate", "update_one", "delete_one"}:
            self._history.happen()
        return getattr(self._collection, name)

    def bulk_write(self, operations: Sequence[Any], **options: Any) -> None:
        """Send a command, at times one that lets others through between two of its operations.

        Nobody looks at the page then: in the middle of a command, its total may grow before the note is there.
        """
        self._history.happen()
        if self._history.is_in_command or self._history.random.random() < 0.8:
            self._collection.bulk_write(operations, **options)
            return
        self._history.is_in_command = True
        for operation in operations:
            self._collection.bulk_write([operation], **options)
            self._history.let_others_through()
        self._history.is_in_command = False


class Process:
    """A process that counts requests and derives rollups."""

    def __init__(self, history: "History") -> None:
        connection: Any = Interrupted(history)
        self._recorder = StatisticsRecorder(
            StatisticsStore(connection), settings=lambda: StatisticsSettings(keep_s=KEEP_S), clock=history.clock
        )
        self._rollups = RollupStore(connection)
        self._clock = history.clock
        self._limiter = Limiter(load_config({}), clock=history.clock)
        self.second = history.random.randrange(MINUTE_S)  # of each minute, at which it derives
        self.is_busy = False

    def ask(self, client_id: str, count: int) -> None:
        decision = self._limiter.check(client_id)
        request = DecidedRequest(decision, client_id, None, "client_credentials", TOKEN_ENDPOINT, self._clock(), 3e-6)
        self._recorder.count([request] * count)

    def write(self) -> None:
        self._recorder.run()

    def derive(self) -> None:
        for _ in self._rollups.derive_due(self._clock(), keep_s=KEEP_S):
            pass


class History:
    """Random turns of some processes, and a reader after each."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection, self.random = connection, Random(seed)
        self.statistics, self.rollups = StatisticsStore(connection), RollupStore(connection)
        self.start_s = 1_950_000_300 // SHORT_DAY_S * SHORT_DAY_S
        self.clock = Clock(self.start_s + self.random.randrange(FIVE_S))
        self.outages: list[range] = []
        for third_s in range(0, LENGTH_S, LENGTH_S // 3):
            begin_s = int(self.clock()) + third_s + self.random.randrange(LENGTH_S // 3 - 400)
            self.outages.append(range(begin_s, begin_s + self.random.randrange(30, 400)))
        self.processes = [Process(self) for _ in range(3)]
        self.happened = Counter[str]()
        self.is_calm = self.is_in_command = False
        self._depth = 0
        self._seen = 0

    @property
    def is_out(self) -> bool:
        return any(int(self.clock()) in outage for outage in self.outages)

    def happen(self) -> None:
        """Let something happen before an operation of a process."""
        if self.is_out:
            raise AutoReconnect("an outage")
        chance = self.random.random()
        if chance < 0.06:
            self.let_others_through(self.random.choice((0, 0, 0, 0, 2, 12)))
        elif chance > 0.985 and not self.is_calm:
            raise Killed
        if self.is_out:
            raise AutoReconnect("an outage")

    def let_others_through(self, turn_count: int = 0) -> None:
        if self._depth == 2 or self.is_calm:
            return
        self._depth += 1
        self.happened[f"stopped for {turn_count} turns"] += 1
        if self.random.random() < 0.5:
            self.write_late()
        self._each(self.random.sample(self.processes, 1), Process.write)
        self._each(self.random.sample(self.processes, 1), Process.derive)
        self.read()
        for _ in range(turn_count):
            self.turn()
        self._depth -= 1

    def write_late(self) -> None:
        """Write a request of one of the last minutes, as a process does that comes back."""
        minute_s = int(self.clock() - self.random.randrange(900)) // MINUTE_S * MINUTE_S
        minute = ClientMinute("client-0", max(minute_s, self.start_s), {BATCH: Tally(allowed=1)})
        self.happened["late"] += 1
        self.statistics.put(f"late-{self.happened['late']}", [minute], keep_s=KEEP_S)

    def turn(self) -> None:
        """Let some seconds pass."""
        self.clock.advance(TURN_S)
        for process in self.processes:
            if self.random.random() < 0.5:
                process.ask(f"client-{self.random.randrange(3)}", self.random.randrange(1, 9))
        self._each(list(self.processes), Process.write)
        second = self.clock() % MINUTE_S
        self._each([one for one in self.processes if (second - one.second) % MINUTE_S < TURN_S], Process.derive)
        self.read()

    def _each(self, processes: Iterable[Process], work: Callable[[Process], None]) -> None:
        """Let processes work that do nothing else. One that is killed is replaced."""
        for process in processes:
            if process.is_busy or process not in self.processes:
                continue
            process.is_busy = True
            try:
                with suppress(StoreUnavailable):
                    work(process)
            except Killed:
                self.happened[f"killed in {work.__name__}"] += 1
                self.processes[self.processes.index(process)] = Process(self)
            process.is_busy = False

    def read(self) -> None:
        """Look at the page: no total has fallen."""
        if not self.is_out and not self.is_in_command:
            rows = self.rollups.rows(self.start_s, self.clock())
            total = sum(client.tally.offered for client in rows.clients)
            assert total >= self._seen
            self._seen = total

    def check(self) -> None:
        """Compare the rollups of each length, and the page, with the minutes."""
        minutes = Counter[tuple[int, str]]()
        for minute in self.statistics.minutes(0, KEEP_S * 4):
            minutes[minute.minute_s, minute.client_id] += minute.tally().offered
        found = Counter[tuple[int, int, str]]()
        ends_s = Counter[int]()
        for document in self.connection.collection(STATISTICS).find({f"_id.{ROLLUP}": {"$exists": True}}):
            step_s, start_s = document["_id"].values()
            ends_s[step_s] = max(ends_s[step_s], start_s + step_s)
            for client in document["clients"][1:]:
                found[step_s, start_s, client["id"]] = sum(client["counts"][:2])  # allowed and denied
        expected = Counter[tuple[int, int, str]]()
        for (minute_s, client_id), count in minutes.items():
            for step_s, end_s in ends_s.items():
                if minute_s < end_s:
                    expected[step_s, minute_s // step_s * step_s, client_id] += count
        assert set(FINER_S) == set(ends_s)
        assert all(self.clock() - 90 - 60 - step_s < end_s for step_s, end_s in ends_s.items())
        assert expected == found
        assert self.totals(self.rollups.rows(self.start_s, self.clock()).clients) == {
            client_id: sum(count for (_, name), count in minutes.items() if name == client_id)
            for _, client_id in minutes
        }

    def totals(self, clients: Iterable[ClientTotal]) -> dict[str, int]:
        return {client.client_id: client.tally.offered for client in clients}


@pytest.mark.parametrize("seed", range(3))
def test_rollups_equal_the_minutes_and_no_total_falls(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Hours have ten minutes here, and days twenty."""
    monkeypatch.setattr(rollups, "FINER_S", FINER_S)
    monkeypatch.setattr(rollups, "LOOK_BACK_S", dict.fromkeys(FINER_S, 2 * LENGTH_S))
    history = History(connection, seed)
    end_s = history.clock() + LENGTH_S
    while history.clock() < end_s:
        history.turn()
    history.outages.clear()
    history.is_calm = True
    for _ in range(MINUTE_S * 3 // TURN_S):
        history.turn()
    history.check()
