"""Sums in memory against sums of all documents, on a real MongoDB."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient

from oauth_ratelimit.admin import history, sums
from oauth_ratelimit.admin.history import SPANS_S, SpanTraffic, Timeline, TrafficHistory
from oauth_ratelimit.core.statistics import (
    OTHER_CLIENTS,
    ClientMinute,
    Peak,
    Share,
    Source,
    StepSums,
    Tally,
)
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.support.helpers import Clock

SOURCES = [Source("user", "password"), Source("client", "client_credentials"), Source("client", "endpoint:revocation")]
HOUR_S = 3600


Content = tuple[dict[str, tuple[Sequence[Tally | None], Tally, float]], Sequence[Tally | None]]
"""Requests of each client by step and in all, with the highest use of a limit, and the requests of all by step."""


class Fleet:
    """Instances that write statistics, and a process that shows them.

    Args:
        connection: The database.
        seed: Seed of the random requests.
    """

    def __init__(self, connection: Connection, seed: int = 1) -> None:
        self.store = StatisticsStore(connection)
        self.history = TrafficHistory()
        self.clock = Clock()
        self.read_periods: list[tuple[float, float]] = []
        self._random = Random(seed)

    def write(self, minute_s: float, *, writer: str = "one", client_id: str | None = None, **outcomes: int) -> None:
        """Write requests of a minute, random ones by default."""
        random = self._random
        tally = (
            Tally(**outcomes) if outcomes else Tally(*(random.choice((0, 0, random.randrange(9))) for _ in range(5)))
        )
        peaks = {random.choice(("user", "a.b")): Peak(round(random.random(), 3), 5.0, 10, 60)}
        minute = ClientMinute(
            client_id or f"client-{random.randrange(9)}",
            int(minute_s // 60) * 60,
            {SOURCES[0] if outcomes else random.choice(SOURCES): tally},
            peaks,
        )
        self.store.put(writer, [Share(minute, True)], keep_s=1e9)

    def read(self, span: str) -> SpanTraffic:
        """Read as the page does."""

        def read_sums(since_s: float, until_s: float, step_s: int) -> Iterator[StepSums]:
            self.read_periods.append((since_s, until_s))
            return self.store.sums(since_s, until_s, step_s=step_s)

        return self.history.read(span, now_s=self.clock(), read_sums=read_sums)

    def shown(self, span: str) -> Content:
        """Return what the page shows, read from MongoDB as little as it does."""
        found = self.read(span)
        assert found.is_complete
        clients = {
            name: (found.line(name), total.tally, total.highest_use or 0.0) for name, total in found.clients.items()
        }
        return clients, found.total_line()

    def written(self, span: str) -> Content:
        """Return the same, summed from all documents."""
        length_s, step_s = SPANS_S[span]
        timeline = Timeline.until(self.clock(), length_s=length_s, step_s=step_s)
        lines: dict[str, list[Tally]] = {}
        peaks: dict[str, float] = {}
        for minute in self.store.minutes(timeline.start_s, self.clock(), parts=("by", "peaks")):
            line = lines.setdefault(minute.client_id, [Tally()] * timeline.count)
            line[(minute.minute_s - timeline.start_s) // step_s] += minute.tally()
            shares = [peak.share for peak in minute.peaks.values()]
            peaks[minute.client_id] = max([peaks.get(minute.client_id, 0.0), *shares])
        clients = {name: (line, sum(line, Tally()), peaks[name]) for name, line in lines.items()}
        return clients, [
            sum(column, Tally()) for column in zip([Tally()] * timeline.count, *lines.values(), strict=True)
        ]


@pytest.mark.parametrize("seed", range(3))
def test_sums_equal_those_of_all_documents_while_instances_write(connection: Connection, seed: int) -> None:
    fleet = Fleet(connection, seed)
    random = Random(seed)
    for _ in range(40):
        fleet.clock.advance(random.choice((8, 11, 35, 70)))
        for writer in ("one", "two"):
            fleet.write(fleet.clock() - random.randrange(history.SETTLED_S), writer=writer)
        span = random.choice(list(SPANS_S))
        assert fleet.written(span) == fleet.shown(span)
    for span in SPANS_S:
        assert fleet.written(span) == fleet.shown(span)


def test_write_after_an_outage_is_seen_when_its_age_has_doubled(connection: Connection) -> None:
    fleet = Fleet(connection)
    minute_s = fleet.clock()
    fleet.write(minute_s, client_id="shop", allowed=5)
    for span in SPANS_S:
        assert fleet.written(span) == fleet.shown(span)
    for late_s in (200, 900, 2000):
        fleet.clock.now_s = minute_s + late_s
        for span in ("1h", "6h"):
            fleet.read(span)
        fleet.write(minute_s, client_id="shop", writer=f"writer-{late_s}", allowed=7)
        fleet.clock.now_s = minute_s + max(2 * late_s, late_s + 400)
        for span in SPANS_S:
            for _ in range(40):  # each poll looks at two steps
                fleet.read(span)
            fleet.clock.advance(6)
        found = {span: fleet.read(span).clients["shop"].tally.allowed for span in ("6h", "1d", "7d")}
        expected = sum(minute.tally().allowed for minute in fleet.store.minutes(0, 4e9))
        assert dict.fromkeys(found, expected) == found
    for span in ("6h", "1d", "7d"):
        assert fleet.written(span) == fleet.shown(span)


def test_poll_reads_only_the_youngest_minutes(connection: Connection) -> None:
    fleet = Fleet(connection)
    for ago_s in range(0, HOUR_S, 120):
        fleet.write(fleet.clock() - ago_s)
    fleet.read("1h")
    fleet.read_periods.clear()
    fleet.clock.advance(8)
    fleet.read("1h")

    ((since_s, until_s),) = fleet.read_periods
    assert fleet.clock() - since_s <= 60 + history.SETTLED_S + 60
    assert until_s > fleet.clock()


def test_several_spans_share_one_read_of_the_youngest_minutes(connection: Connection) -> None:
    fleet = Fleet(connection)
    for span in ("1h", "15m"):
        fleet.read(span)
    fleet.read_periods.clear()
    for span in ("1h", "15m", "1h"):
        fleet.read(span)

    assert [] == fleet.read_periods


def test_long_history_is_read_over_several_polls(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(connection)
    for ago_s in range(0, 24 * HOUR_S, HOUR_S):
        fleet.write(fleet.clock() - ago_s, client_id="shop", allowed=1)
    monkeypatch.setattr(history, "BUDGET_S", -1.0)
    first = fleet.read("1d")
    monkeypatch.undo()

    assert (False, None) == (first.is_complete, first.line("shop")[0])
    assert fleet.written("1d") == fleet.shown("1d")


def test_clients_beyond_the_bound_are_counted_together(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MAX_CLIENTS", 2)
    fleet = Fleet(connection)
    for number in range(1, 6):
        fleet.write(fleet.clock() - 600, client_id=f"client-{number}", allowed=number)
    found = fleet.read("1h")

    assert {"client-5": 5, "client-4": 4, OTHER_CLIENTS: 6} == {
        name: total.tally.offered for name, total in found.clients.items()
    }


def test_names_are_bounded_and_old_ones_leave(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MAX_NAMES", 4)
    fleet = Fleet(connection)
    for number in range(1, 6):
        fleet.write(fleet.clock() - 600, client_id=f"old-{number}", allowed=1)
    assert {OTHER_CLIENTS: 2, "old-1": 1, "old-2": 1, "old-3": 1} == {
        name: total.tally.offered for name, total in fleet.read("1h").clients.items()
    }
    fleet.clock.advance(2 * HOUR_S)
    fleet.write(fleet.clock() - 600, client_id="new", allowed=1)

    assert ["new"] == list(fleet.read("1h").clients)


def test_old_steps_leave_memory(connection: Connection) -> None:
    fleet = Fleet(connection)
    for _ in range(200):
        fleet.read("1h")
        fleet.clock.advance(60)

    assert len(fleet.history._steps[60]) <= history.KEPT[60] + 1


def test_damaged_documents_do_not_hide_others(connection: Connection, mongo_uri: str) -> None:
    fleet = Fleet(connection)
    minute_s = int(fleet.clock() // 60) * 60 - 600
    fleet.write(minute_s, client_id="shop", allowed=5)
    damaged: list[Any] = [1, "x", None, [1], {"a": 1}, {"a": {"user": 5}}, {"a": {"user": {"password": 7}}}]
    damaged.append({"a": {"user": {"password": {"allowed": "many", "denied": float("nan")}}}})
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        collection = client.get_default_database()[STATISTICS]
        for number, value in enumerate(damaged):
            identity = {"clientId": f"damaged-{number}", "minute": Int64(minute_s)}
            collection.insert_one({"_id": identity, "by": value, "peaks": value})
        for identity in ({"clientId": 7, "minute": Int64(minute_s)}, {"clientId": "odd", "minute": minute_s + 0.5}):
            collection.insert_one({"_id": identity, "by": {"a": {"user": {"password": {"allowed": 3}}}}})
        collection.insert_one(
            {"_id": {"clientId": "peak", "minute": Int64(minute_s)}, "peaks": {"user": ["x"], "b": [0.5, 1, 2, 60]}}
        )

    assert {"shop", "peak"} <= fleet.read("1h").clients.keys()
    assert Tally(5) == fleet.read("6h").clients["shop"].tally
    assert 0.5 == fleet.read("1h").clients["peak"].highest_use
