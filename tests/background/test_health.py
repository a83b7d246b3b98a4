"""Health of one process and its heartbeats."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import pytest

from oauth_ratelimit import Limiter, StoreRejected, StoreUnavailable, load_config
from oauth_ratelimit.background import health
from oauth_ratelimit.background.health import BEAT_INTERVAL_S, HealthMonitor
from oauth_ratelimit.config.loader import ConfigFile
from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from testbed.clock import Clock
from testbed.memory_store import MemoryStore

UNREACHABLE, REFUSED = StoreUnavailable("unreachable"), StoreRejected("not authorized")


@pytest.fixture
def store() -> Mock:
    store: Mock = create_autospec(HeartbeatStore, instance=True)
    store.refused = None
    return store


@pytest.fixture
def limiter(clock: Clock) -> Limiter:
    return Limiter(load_config({"instance": "node-1", "mode": "enforce"}), MemoryStore(), clock=clock)


@pytest.fixture
def monitor(limiter: Limiter, store: Mock) -> HealthMonitor:
    return HealthMonitor(limiter, store)


def last_of(store: Mock) -> Heartbeat:
    heartbeat: Heartbeat = store.put.call_args.args[0]
    return heartbeat


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Monotonic time of the monitor."""
    monotonic = Clock()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=monotonic))
    return monotonic


def test_heartbeat_names_the_instance_what_applies_and_the_totals_of_all_cycles(
    monitor: HealthMonitor, limiter: Limiter, store: Mock, clock: Clock
) -> None:
    limiter.check("a")
    monitor.sync_urgent()
    limiter.check("b")
    monitor.sync()
    monitor.beat(override_count=3)
    found = last_of(store)

    assert "node-1" == found.instance.split(":")[0]
    assert ("enforce", 3, clock(), 1.0) == (found.mode, found.override_count, found.beat_at_s, found.interval_s)
    assert (2, 0, 0) == (found.flushed_count, found.conflict_count, found.failure_count)


def test_lag_is_the_longest_since_the_last_heartbeat(
    limiter: Limiter, store: Mock, clock: Clock, elapsed: Clock
) -> None:
    monitor = HealthMonitor(limiter, store)
    lags_s = []
    for gaps_s in ((1.0, 4.0, 1.0), (2.0, 1.0)):
        for gap_s in gaps_s:
            elapsed.advance(gap_s)
            monitor.sync()
        monitor.beat(override_count=0)
        lags_s.append(last_of(store).lag_s)
        clock.advance(BEAT_INTERVAL_S)

    assert [4.0, 2.0] == lags_s


def test_time_without_mongodb_is_in_the_history_of_instances(
    limiter: Limiter, store: Mock, clock: Clock, elapsed: Clock
) -> None:
    monitor = HealthMonitor(limiter, store)
    for gap_s in (99.0, 100.0, 1.0):
        elapsed.advance(gap_s)
        clock.advance(gap_s)
        monitor.sync()
        monitor.beat(override_count=0)
        clock.advance(BEAT_INTERVAL_S)
    events = [call.args[0] for call in store.note_event.call_args_list]

    assert ["started", "cut off", "reconnected"] == [each.kind for each in events]
    assert 100.0 == events[2].at_s - events[1].at_s


def test_heartbeat_is_stored_every_ten_seconds(monitor: HealthMonitor, store: Mock, clock: Clock) -> None:
    """A clock that is set back does not stop it."""
    started_s = clock()
    seen = []
    for step_s in (0.0, 1.0, BEAT_INTERVAL_S, 1.0, -100.0):
        clock.advance(step_s)
        monitor.beat(override_count=0)
        seen.append(last_of(store).beat_at_s - started_s)

    assert [0.0, 0.0, 11.0, 11.0, -88.0] == seen


def test_changed_mode_and_overrides_are_reported_at_once(
    monitor: HealthMonitor, limiter: Limiter, store: Mock, clock: Clock
) -> None:
    """An operator wants to see that the instance follows."""
    monitor.beat(override_count=0)
    clock.advance(1.0)
    limiter.reconfigure(load_config({"mode": "dry-run"}))
    monitor.beat(override_count=1)

    found = last_of(store)
    assert ("dry-run", 1, clock()) == (found.mode, found.override_count, found.beat_at_s)


@pytest.mark.parametrize(("error", "attempts"), [(UNREACHABLE, 2), (REFUSED, 1)], ids=["unreachable", "refused"])
def test_failed_heartbeat_is_tried_again_at_once_unless_mongodb_refuses(
    monitor: HealthMonitor, store: Mock, error: Exception, attempts: int
) -> None:
    """Rights do not come back so soon."""
    store.put.side_effect = error
    for _ in range(2):
        with suppress(StoreRejected):  # the worker logs it
            monitor.beat(override_count=0)

    assert attempts == store.put.call_count


def test_heartbeat_names_the_configuration_file(limiter: Limiter, store: Mock, tmp_path: Path) -> None:
    HealthMonitor(limiter, store, file=ConfigFile(tmp_path / "limits.yaml")).beat(override_count=0)
    assert str(tmp_path / "limits.yaml") == last_of(store).config_file


@pytest.mark.parametrize("error", [None, UNREACHABLE, REFUSED], ids=["reachable", "unreachable", "refused"])
def test_process_that_ends_removes_its_heartbeat(monitor: HealthMonitor, store: Mock, error: Exception | None) -> None:
    monitor.beat(override_count=0)
    store.remove.side_effect = error
    monitor.stop()

    store.remove.assert_called_once_with(monitor.instance)


def test_start_configurations_and_end_are_noted_once(
    limiter: Limiter, store: Mock, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a heartbeat, so that MongoDB is not asked more often. One that could not be noted is, with the next one."""
    monkeypatch.setattr("oauth_ratelimit.background.health.begun_s", lambda: uptime_s() - 300)
    monitor = HealthMonitor(limiter, store)  # with the first request, long after the start of its process
    started_s = clock() + BEAT_INTERVAL_S - 300  # the uptime is a real one: it is known with the first heartbeat
    store.note_configuration.side_effect = [False, True, True]
    for mode in ("enforce", "enforce", "enforce", "dry-run"):
        if mode == "dry-run":
            limiter.reconfigure(load_config({"mode": mode}))
        clock.advance(BEAT_INTERVAL_S)
        monitor.beat(override_count=0)
    monitor.stop()

    noted = [call.args[1]["mode"] for call in store.note_configuration.call_args_list]
    assert ["enforce", "enforce", "dry-run"] == noted
    events = [call.args[0] for call in store.note_event.call_args_list]
    assert [("started", started_s), ("ended", clock())] == [(event.kind, round(event.at_s)) for event in events]
