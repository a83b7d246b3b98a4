"""Health of one process and its heartbeats."""

import time

import pytest

from oauth_ratelimit import Limiter, StoreRejected, StoreUnavailable, load_config
from oauth_ratelimit.background.health import BEAT_INTERVAL_S, HealthMonitor
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat
from tests.support.helpers import Clock


class FakeStore:
    """Heartbeats by instance. Fails when it is told to."""

    def __init__(self) -> None:
        self.heartbeats: dict[str, Heartbeat] = {}
        self.attempt_count = 0
        self.error: Exception | None = None

    def put(self, heartbeat: Heartbeat) -> None:
        self._attempt()
        self.heartbeats[heartbeat.instance] = heartbeat

    def remove(self, instance: str) -> None:
        self._attempt()
        del self.heartbeats[instance]

    def _attempt(self) -> None:
        self.attempt_count += 1
        if self.error is not None:
            raise self.error


class Process:
    """A limiter and its health."""

    def __init__(self, clock: Clock) -> None:
        self.store = FakeStore()
        self.limiter = Limiter(load_config({"instance": "node-1", "mode": "enforce"}), MemoryStore(), clock=clock)
        self.monitor = HealthMonitor(self.limiter, self.store, clock=clock)

    def beat(self, *, override_count: int = 0) -> None:
        """Store a heartbeat, if it is due."""
        self.monitor.beat(override_count=override_count)

    @property
    def heartbeat(self) -> Heartbeat:
        """The stored heartbeat."""
        return self.store.heartbeats[self.monitor.instance]


@pytest.fixture
def process(clock: Clock) -> Process:
    """A process without a heartbeat."""
    return Process(clock)


def test_heartbeat_names_the_instance_and_what_applies(process: Process, clock: Clock) -> None:
    process.beat(override_count=3)
    found = process.heartbeat

    assert "node-1" == found.instance.split(":")[0]
    assert ("enforce", 3, clock(), 1.0) == (found.mode, found.override_count, found.beat_at_s, found.interval_s)


def test_heartbeat_has_the_totals_of_all_cycles(process: Process) -> None:
    process.limiter.check("a")
    process.monitor.sync_urgent()
    process.limiter.check("b")
    process.monitor.sync()
    process.beat()

    found = process.heartbeat
    assert (2, 0, 0) == (found.flushed_count, found.conflict_count, found.failure_count)


def test_lag_is_the_longest_since_the_last_heartbeat(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    process = Process(clock)
    lags_s = []
    for gaps_s in ((1.0, 4.0, 1.0), (2.0, 1.0)):
        for gap_s in gaps_s:
            now_s += gap_s
            process.monitor.sync()
        process.beat()
        lags_s.append(process.heartbeat.lag_s)
        clock.advance(BEAT_INTERVAL_S)

    assert [4.0, 2.0] == lags_s


def test_heartbeat_is_stored_every_ten_seconds(process: Process, clock: Clock) -> None:
    """A clock that is set back does not stop it."""
    started_s = clock()
    seen = []
    for step_s in (0.0, 1.0, BEAT_INTERVAL_S, 1.0, -100.0):
        clock.advance(step_s)
        process.beat()
        seen.append(process.heartbeat.beat_at_s - started_s)

    assert [0.0, 0.0, 11.0, 11.0, -88.0] == seen


def test_changed_mode_and_overrides_are_reported_at_once(process: Process, clock: Clock) -> None:
    """An operator wants to see that the instance follows."""
    process.beat()
    clock.advance(1.0)
    process.limiter.reconfigure(load_config({"mode": "dry-run"}))
    process.beat(override_count=1)

    found = process.heartbeat
    assert ("dry-run", 1, clock()) == (found.mode, found.override_count, found.beat_at_s)


def test_unreachable_store_is_tried_again_at_once(process: Process) -> None:
    process.store.error = StoreUnavailable("unreachable")
    process.beat()
    process.store.error = None
    process.beat()

    assert 1 == len(process.store.heartbeats)


def test_store_that_refuses_is_not_tried_with_every_cycle(process: Process) -> None:
    """Rights do not come back so soon."""
    process.store.error = StoreRejected("not authorized")
    for _ in range(3):
        process.beat()

    assert 1 == process.store.attempt_count


@pytest.mark.parametrize(
    ("error", "is_failing"),
    [(None, False), (StoreUnavailable("unreachable"), True), (StoreRejected("not authorized"), False)],
    ids=["reachable", "unreachable", "refused"],
)
def test_process_that_ends_removes_its_heartbeat(process: Process, error: Exception | None, is_failing: bool) -> None:
    """If MongoDB is unreachable by then, its owner learns it."""
    process.beat()
    process.store.error = error
    process.monitor.stop()

    assert (error is not None, is_failing) == (bool(process.store.heartbeats), process.monitor.is_failing)


def test_process_without_shared_counters_has_no_heartbeat(process: Process, clock: Clock) -> None:
    alone = HealthMonitor(process.limiter, None, clock=clock)
    alone.beat(override_count=0)
    alone.stop()
    assert not alone.is_failing
