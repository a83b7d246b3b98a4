"""Signs of life."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import mongomock
import pytest

from oauth_ratelimit import Limiter, StoreRejected, StoreUnavailable, load_config
from oauth_ratelimit.background.health import BEAT_INTERVAL_S, HealthMonitor
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.store.mongo import client as module
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import FORGOTTEN_AFTER_S, HeartbeatStore
from tests.support.helpers import Clock


@pytest.fixture(params=["mongomock", "mongod"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeartbeatStore]:
    """Where heartbeats go."""
    uri = "mongodb://mocked/test"
    if request.param == "mongomock":
        client: Any = mongomock.MongoClient(uri, tz_aware=True)
        monkeypatch.setattr(module, "connect", lambda _uri, timeout_s: client)
    else:
        uri = request.getfixturevalue("mongo_uri")
    with closing(Connection(uri)) as connection:
        yield HeartbeatStore(connection)


@pytest.fixture
def clock() -> Clock:
    """A clock far ahead, so that MongoDB removes nothing."""
    return Clock(4_000_000_000.0)


def pulse_of(store: HeartbeatStore | None, clock: Clock, name: str = "node-1") -> HealthMonitor:
    """Return the pulse of an instance."""
    limiter = Limiter(load_config({"instance": name, "mode": "enforce"}), MemoryStore(), clock=clock)
    return HealthMonitor(limiter, store, clock=clock)


def test_instances_that_are_there(store: HeartbeatStore, clock: Clock) -> None:
    """Every instance is seen by its name, with its mode and when it said so."""
    pulses = [pulse_of(store, clock, name) for name in ("node-2", "node-1")]
    for health_monitor in pulses:
        health_monitor.beat(override_count=3)
    found = store.read(clock())

    assert ["node-1", "node-2"] == [beat.instance.split(":")[0] for beat in found]
    assert [("enforce", 3, clock(), 1.0)] * 2 == [
        (beat.mode, beat.override_count, beat.beat_at_s, beat.interval_s) for beat in found
    ]


def test_totals_of_the_cycles(store: HeartbeatStore, clock: Clock) -> None:
    """A heartbeat tells what all cycles did, urgent ones included."""
    health_monitor = pulse_of(store, clock)
    limiter = health_monitor._limiter
    limiter.check("a")
    health_monitor.sync_urgent()
    limiter.check("b")
    health_monitor.sync()
    health_monitor.beat(override_count=0)

    assert [(2, 0, 0)] == [
        (beat.flushed_count, beat.conflict_count, beat.failure_count) for beat in store.read(clock())
    ]


def test_lag(store: HeartbeatStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat tells the longest time between two cycles since the one before."""
    told = []
    moment_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: moment_s)
    health_monitor = pulse_of(store, clock)
    for cycles_s in ((1.0, 4.0, 1.0), (2.0, 1.0)):
        for gap_s in cycles_s:
            moment_s += gap_s
            health_monitor.sync()
        health_monitor.beat(override_count=0)
        told.append(store.read(clock())[0].lag_s)
        clock.advance(BEAT_INTERVAL_S)

    assert [4.0, 2.0] == told


def test_beats_between_cycles(store: HeartbeatStore, clock: Clock) -> None:
    """An instance says so every ten seconds, however often it is asked; a clock that steps back does not silence it."""
    health_monitor = pulse_of(store, clock)
    seen = []
    for step_s in (0.0, 1.0, BEAT_INTERVAL_S, 1.0, -100.0):
        clock.advance(step_s)
        health_monitor.beat(override_count=0)
        seen.append(store.read(clock())[0].beat_at_s - 4_000_000_000.0)

    assert [0.0, 0.0, 11.0, 11.0, -88.0] == seen


def test_change_is_told_at_once(store: HeartbeatStore, clock: Clock) -> None:
    """When an operator has changed mode or overrides, nobody waits ten seconds to see that the instance follows."""
    health_monitor = pulse_of(store, clock)
    health_monitor.beat(override_count=0)
    clock.advance(1.0)
    health_monitor._limiter.reconfigure(load_config({"mode": "dry-run"}))
    health_monitor.beat(override_count=1)

    assert [("dry-run", 1, clock())] == [(b.mode, b.override_count, b.beat_at_s) for b in store.read(clock())]


def test_instance_that_ends(store: HeartbeatStore, clock: Clock) -> None:
    """An instance that ends in good order is gone at once; one that died is seen for a while."""
    ending, dying = pulse_of(store, clock, "ending"), pulse_of(store, clock, "dying")
    for health_monitor in (ending, dying):
        health_monitor.beat(override_count=0)
    ending.stop()
    assert [dying.instance] == [beat.instance for beat in store.read(clock())]

    clock.advance(FORGOTTEN_AFTER_S + 1)
    assert [] == store.read(clock())


def test_mongodb_out_of_reach(store: HeartbeatStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without MongoDB nothing is raised, and the sign comes with the first call that gets through."""
    health_monitor = pulse_of(store, clock)

    def fail(_beat: object) -> None:
        raise StoreUnavailable("out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", fail)
        health_monitor.beat(override_count=0)
    health_monitor.beat(override_count=0)

    assert 1 == len(store.read(clock()))


@pytest.mark.parametrize(
    ("error", "is_failing"), [(StoreUnavailable("out of reach"), True), (StoreRejected("not authorized"), False)]
)
def test_mongodb_gone_at_the_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception, is_failing: bool
) -> None:
    """An instance that finds MongoDB gone as it ends says so, and what is left to write need not wait for it again."""
    store = HeartbeatStore(Connection("mongodb://127.0.0.1:1/test"))

    def fail(_instance: str) -> None:
        raise error

    monkeypatch.setattr(store, "put", lambda beat: None)
    monkeypatch.setattr(store, "remove", fail)
    health_monitor = pulse_of(store, clock)
    health_monitor.beat(override_count=0)
    health_monitor.stop()

    assert is_failing == health_monitor.is_failing


def test_rights_that_are_missing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that may not write there does not try with every cycle."""
    store = HeartbeatStore(Connection("mongodb://127.0.0.1:1/test"))
    tries: list[object] = []

    def refuse(beat: object) -> None:
        tries.append(beat)
        raise StoreRejected("not authorized")

    monkeypatch.setattr(store, "put", refuse)
    health_monitor = pulse_of(store, clock)
    for _ in range(3):
        health_monitor.beat(override_count=0)

    assert 1 == len(tries)


def test_counters_that_are_not_shared(clock: Clock) -> None:
    """An instance by itself tells nobody."""
    health_monitor = pulse_of(None, clock)
    health_monitor.beat(override_count=0)
    health_monitor.stop()
