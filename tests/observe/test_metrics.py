"""Metrics: their names, what they count, and that the number of series is bounded."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import prometheus_client
import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.observe.metrics import FIRST_COME_CLIENTS, MAX_CLIENTS, log, open_metrics
from oauth_ratelimit.process.log import ThrottledLog
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.decisions import ALLOWED, DENIED, TRUSTED, WOULD_DENY, a_denial
from tests.support.guarded import guard
from tests.support.guards import fail, lockout_of, password
from tests.support.recorded_metrics import RecordedMetrics


@pytest.fixture
def metrics() -> RecordedMetrics:
    return RecordedMetrics()


def test_every_metric_has_its_name_and_value(metrics: RecordedMetrics) -> None:
    """Dashboards are built on the names."""
    metrics.use_all()
    expected = {
        "decisions_total": {("allowed", "password", "enforce", "client"): 1},
        "client_decisions_total": {("some-client", "allowed", "client"): 1},
        "client_limit_per_second": {("some-client", "client", "client"): 2.0},
        "near_limit_total": {(): 1},
        "requests_taken_back_total": {(): 1},
        "decision_seconds": {(): (1, 3e-6)},
        "flush_seconds": {(): (2, 0.03)},
        "flush_keys": {(): (1, 7)},
        "flush_conflicts_total": {(): 3},
        "flush_failures_total": {(): 1},
        "host_lock_timeouts_total": {(): 2},
        "over_admitted_total": {("user",): 4},
        "in_flight_hits": {(): 7},
        "tracked_keys": {(): 9},
        "snapshot_age_seconds": {(): 1.5},
        "config_valid": {(): 0},
        "store_refused": {(): 1},
        "mode": {("off",): 0, ("dry-run",): 0, ("enforce",): 1},
        "failures_total": {("user",): 1},
        "alarms_total": {("denied", "client"): 1},
    }

    assert {f"oauth_ratelimit_{name}" for name in expected} == {name for name, _, _ in metrics.families()}
    assert expected == {name: metrics.series(name) for name in expected}


def test_decision_is_counted_by_outcome_mode_grant_policy_and_kind(metrics: RecordedMetrics) -> None:
    """A trusted client's request has no policy. Each kind has the rate of its limit beside it, also after a change."""
    for decision in (ALLOWED, DENIED, WOULD_DENY, TRUSTED, a_denial(Policy("client", 600, Window.of(60)))):
        metrics.decide(decision)
    metrics.decide(ALLOWED, username="alice")

    assert {
        ("allowed", "password", "enforce", "client"): 2,
        ("denied", "password", "enforce", "client"): 2,
        ("would_deny", "password", "dry-run", "client"): 1,
        ("trusted", "password", "enforce", "none"): 1,
    } == metrics.series("decisions_total")
    by_client = metrics.series("client_decisions_total")
    assert (1, 1) == tuple(by_client["some-client", "allowed", kind] for kind in ("client", "user"))
    assert {("some-client", "user", "client"): 2.0, ("some-client", "client", "client"): 10.0} == metrics.series(
        "client_limit_per_second"
    )


def test_number_of_clients_with_series_is_bounded(metrics: RecordedMetrics) -> None:
    """The first clients have series of their own, then only those over a limit, then none."""
    for number in range(200):
        metrics.decide(ALLOWED, f"client-{number}")
    assert FIRST_COME_CLIENTS + 1 == len(metrics.series("client_decisions_total"))

    for number in range(200):
        metrics.decide(DENIED, f"offender-{number}")
    clients = {labels[0] for labels in metrics.series("client_decisions_total")}
    offenders = {name for name in clients if name.startswith("offender-")}
    assert MAX_CLIENTS + 1 == len(clients)
    assert {f"offender-{number}" for number in range(MAX_CLIENTS - FIRST_COME_CLIENTS)} == offenders
    assert 400 == sum(metrics.series("client_decisions_total").values())
    assert MAX_CLIENTS == len(metrics.series("client_limit_per_second"))


def test_gauges_while_mongodb_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures, hits in flight and the age of the snapshot grow; they recover with MongoDB."""
    elapsed = Clock(0.0)
    monkeypatch.setattr("oauth_ratelimit.background.health.time", SimpleNamespace(monotonic=elapsed))
    store, metrics = MemoryStore(), RecordedMetrics()
    limiter = Limiter(load_config({"mode": "enforce"}), store, clock=Clock())
    health_monitor = HealthMonitor(limiter, None, metrics=metrics)

    def values() -> tuple[float, ...]:
        names = ("flush_failures_total", "in_flight_hits", "tracked_keys", "snapshot_age_seconds")
        return tuple(metrics.series(name)[()] for name in names)

    for username in ("alice", "alice", "bob"):
        limiter.check("some-client", username)
    elapsed.advance(5.0)
    with monkeypatch.context() as outage:
        outage.setattr(store, "read", Mock(side_effect=StoreUnavailable("out of reach")))
        health_monitor.sync()
    assert (1, 3, 2, 5.0) == values()

    health_monitor.sync()
    assert (1, 0, 2, 0.0) == values()
    elapsed.advance(2.0)
    health_monitor.note_state()
    assert (1, 0, 2, 2.0) == values()

    health_monitor.stop()
    limiter.close()
    assert (1, 0, 0, 0.0) == values()


def test_requests_are_decided_without_any_metrics_library() -> None:
    """Only the page of metrics says what is missing."""
    script = """
        import sys
        sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
        from flask import Flask
        from oauth_ratelimit.blueprints import health_blueprint, metrics_blueprint
        from oauth_ratelimit.observe.metrics import open_metrics
        from tests.support.apps import protected_app, token_status
        import os
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

        assert open_metrics() is None
        with protected_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["1/minute"]}}) as app:
            assert [200, 429] == [token_status(app), token_status(app)]
        health_blueprint()
        try:
            metrics_blueprint()
        except RuntimeError as exc:
            print(exc)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)

    assert (0, "metrics need prometheus-client: pip install 'oauth_ratelimit[prometheus]'") == (
        done.returncode,
        done.stdout.strip().splitlines()[-1] if done.stdout else "",
    ), done.stderr


def test_full_disk_costs_the_metrics_and_not_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would have the system kill it."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr("oauth_ratelimit.observe.metrics._opened", [])
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with capture_logs() as logs:
        assert open_metrics() is None
    assert [("metrics_off", "No space left on device")] == [(entry["event"], entry["reason"]) for entry in logs]
    assert [] == list(tmp_path.iterdir())


def test_metrics_that_cannot_be_made_cost_no_limit(tmp_path: Path) -> None:
    """Such as those of an earlier container, whose process had the same number and was cut off while it wrote."""
    script = """
        import os
        from pathlib import Path
        from tests.support.apps import protected_app, token_status

        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
        cut_off = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"], f"counter_{os.getpid()}.db")
        cut_off.write_bytes((100).to_bytes(4, "little") + b"?" * 96)
        with protected_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["1/minute"]}}) as app:
            print([token_status(app) for _ in range(3)])
    """
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert ("[200, 429, 429]\n", 1) == (done.stdout, done.stderr.count("metrics_off")), done.stderr


def test_metrics_that_cannot_be_written_cost_neither_a_lockout_nor_a_count(
    metrics: RecordedMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked process opens the library's files anew, and may not be able to."""
    broken = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    for kind, method in (("Counter", "inc"), ("Gauge", "set"), ("Histogram", "observe")):
        monkeypatch.setattr(getattr(prometheus_client, kind), method, broken)
    monkeypatch.setattr("oauth_ratelimit.observe.metrics._throttled_log", ThrottledLog(log, 60))
    own = Guard(load_config(guard()), clock=Clock(), metrics=metrics)
    limiter = Limiter(load_config({"mode": "enforce"}), MemoryStore(), clock=Clock())
    monitor = HealthMonitor(limiter, None, metrics=metrics)
    with capture_logs() as logs:
        fail(own, password())
        assert lockout_of(own, password()) is not None
        limiter.check("some-client")
        assert 1 == monitor.sync().flushed_count
        metrics.record_taken_back()
        monitor.stop()

    assert ["observer_failed"] == [entry["event"] for entry in logs if entry["log_level"] == "error"]
