"""Metrics: their names, what they count, and that the number of series is bounded."""

import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.core.decision import Decision, FullDecision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.statistics import Kind
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.observe.metric_catalog import MAX_CLIENTS, Metric
from oauth_ratelimit.observe.metrics import FIRST_COME_CLIENTS, Labels, Metrics
from oauth_ratelimit.observe.otel import OtelMetrics
from oauth_ratelimit.observe.prometheus import PrometheusMetrics
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import CycleReport
from tests.support.helpers import Clock

POLICY = Policy("client", 120, Window.of(60))
ALLOWED = FullDecision(True, False, Mode.ENFORCE, rule=POLICY, remaining=50)
DENIED = FullDecision(False, True, Mode.ENFORCE, rule=POLICY)
WOULD_DENY = FullDecision(True, True, Mode.DRY_RUN, rule=POLICY)
TRUSTED = FullDecision(True, False, Mode.ENFORCE, trusted=True)

NAMES = {
    "decisions_total",
    "near_limit_total",
    "decision_seconds",
    "flush_seconds",
    "flush_keys",
    "flush_conflicts_total",
    "over_admitted_total",
    "flush_failures_total",
    "in_flight_hits",
    "tracked_keys",
    "snapshot_age_seconds",
    "client_decisions_total",
    "client_limit_per_second",
    "failures_total",
    "alarms_total",
}

Series = dict[tuple[str, ...], Any]
"""Values by the labels' values, in alphabetical order of the labels; count and sum of a histogram."""


class PrometheusReader:
    """Metrics as Prometheus sees them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.backend = PrometheusMetrics(self._registry)

    def names(self) -> set[str]:
        """Return the names of all metrics."""
        return {family.name + ("_total" if family.type == "counter" else "") for family in self._registry.collect()}

    def series(self, name: str) -> Series:
        """Return all values of a metric."""
        samples = [sample for family in self._registry.collect() for sample in family.samples]
        values: dict[str, Series] = {}
        for sample in samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            values.setdefault(sample.name, {})[labels] = sample.value
        full = f"oauth_ratelimit_{name}"
        if full in values:
            return values[full]
        return {labels: (count, values[f"{full}_sum"][labels]) for labels, count in values[f"{full}_count"].items()}


class OtelReader:
    """Metrics as an OpenTelemetry SDK sees them."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.backend = OtelMetrics(MeterProvider([self._reader], shutdown_on_exit=False))

    def _points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    def names(self) -> set[str]:
        """Return the names of the metrics that were used."""
        return set(self._points())

    def series(self, name: str) -> Series:
        """Return all values of a metric."""
        return {
            tuple(value for _, value in sorted(point.attributes.items())): (
                (point.count, point.sum) if isinstance(point, HistogramDataPoint) else point.value
            )
            for point in self._points().get(f"oauth_ratelimit_{name}", ())
        }

    def bounds(self, name: str) -> tuple[float, ...]:
        """Return the bounds of a histogram's buckets."""
        [point] = self._points()[f"oauth_ratelimit_{name}"]
        return tuple(point.explicit_bounds)


Reader = PrometheusReader | OtelReader


@pytest.fixture(params=[PrometheusReader, OtelReader], ids=["prometheus", "opentelemetry"])
def reader(request: pytest.FixtureRequest) -> Reader:
    """The reader of one library."""
    reader: Reader = request.param()
    return reader


@pytest.fixture
def metrics(reader: Reader) -> Metrics:
    """Metrics that start at zero."""
    return Metrics(reader.backend)


def record(
    metrics: Metrics,
    decision: Decision,
    client_id: str = "some-client",
    *,
    kind: Kind = "client",
    is_near_limit: bool = False,
) -> None:
    """Count a decision."""
    counts = Counter[Labels]()
    metrics.record_decision(
        decision, client_id, counts, kind=kind, grant="password", is_near_limit=is_near_limit, duration_s=3e-6
    )
    metrics.add_decisions(counts)


def record_everything(metrics: Metrics) -> None:
    """Use every metric."""
    record(metrics, ALLOWED, is_near_limit=True)
    over = Counter({"user": 4})
    metrics.record_cycle(
        CycleReport(flushed_count=7, pulled_count=2, conflict_count=3, over_admitted=over), duration_s=0.02
    )
    metrics.record_cycle(CycleReport(error=StoreUnavailable("out of reach")), duration_s=0.01)
    metrics.record_cycle(CycleReport(), duration_s=0.0)  # did nothing, so its duration is left out
    metrics.record_state(in_flight_hits=7, key_count=9, lag_s=1.5)
    metrics.record_failure("user")
    metrics.record_alarm(DENIED)


def test_names_that_dashboards_are_built_on(reader: Reader, metrics: Metrics) -> None:
    """The names are the same in both libraries."""
    record_everything(metrics)

    assert {f"oauth_ratelimit_{name}" for name in NAMES} == reader.names()


def test_counter_that_fails_leaves_the_others_of_its_group(
    reader: Reader, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = reader.backend.counter

    def fail_for_one(metric: Metric, labels: tuple[str, ...]) -> Callable[[int], object]:
        if "broken" in labels:
            raise OSError("no space left on device")
        return counter(metric, labels)

    monkeypatch.setattr(reader.backend, "counter", fail_for_one)
    clients = ("first", "broken", "second", "third")
    with pytest.raises(OSError, match="no space left"):
        metrics.add_decisions({("allowed", "enforce", "password", "client", name, "client"): 5 for name in clients})

    assert {(name, "allowed", "client"): 5 for name in ("first", "second", "third")} == reader.series(
        "client_decisions_total"
    )


def test_everything_recorded_has_its_value(reader: Reader, metrics: Metrics) -> None:
    """Cycles, the state of the synchronisation and failed authentications have their values."""
    record_everything(metrics)

    assert {
        "near_limit_total": {(): 1},
        "decision_seconds": {(): (1, 3e-6)},
        "flush_seconds": {(): (2, 0.03)},
        "flush_keys": {(): (1, 7)},
        "flush_conflicts_total": {(): 3},
        "flush_failures_total": {(): 1},
        "over_admitted_total": {("user",): 4},
        "in_flight_hits": {(): 7},
        "tracked_keys": {(): 9},
        "snapshot_age_seconds": {(): 1.5},
        "failures_total": {("user",): 1},
        "alarms_total": {("denied", "client"): 1},
    } == {name: reader.series(name) for name in NAMES if not name.startswith(("client_", "decisions_"))}


def test_decision_is_counted_by_outcome_mode_grant_and_policy(reader: Reader, metrics: Metrics) -> None:
    """A trusted client's request has no policy."""
    for decision in (ALLOWED, ALLOWED, DENIED, WOULD_DENY, TRUSTED):
        record(metrics, decision)

    assert {
        ("allowed", "password", "enforce", "client"): 2,
        ("denied", "password", "enforce", "client"): 1,
        ("would_deny", "password", "dry-run", "client"): 1,
        ("trusted", "password", "enforce", "none"): 1,
    } == reader.series("decisions_total")


def test_requests_with_and_without_a_user_are_apart(reader: Reader, metrics: Metrics) -> None:
    """Each kind has the rate of its limit beside it, also after the limit has changed."""
    record(metrics, ALLOWED, kind="user")
    record(metrics, DENIED)
    raised = Policy("client", 600, Window.of(60))
    record(metrics, FullDecision(False, True, Mode.ENFORCE, rule=raised))

    assert {("some-client", "allowed", "user"): 1, ("some-client", "denied", "client"): 2} == reader.series(
        "client_decisions_total"
    )
    assert {("some-client", "user", "client"): 2.0, ("some-client", "client", "client"): 10.0} == reader.series(
        "client_limit_per_second"
    )


def test_number_of_clients_with_series_is_bounded(reader: Reader, metrics: Metrics) -> None:
    """The first clients have series of their own, then only those over a limit, then none."""
    for number in range(200):
        record(metrics, ALLOWED, f"client-{number}")
    assert FIRST_COME_CLIENTS + 1 == len(reader.series("client_decisions_total"))

    for number in range(200):
        record(metrics, DENIED, f"offender-{number}")
    clients = {labels[0] for labels in reader.series("client_decisions_total")}
    offenders = {name for name in clients if name.startswith("offender-")}
    assert MAX_CLIENTS + 1 == len(clients)
    assert {f"offender-{number}" for number in range(MAX_CLIENTS - FIRST_COME_CLIENTS)} == offenders
    assert 400 == sum(reader.series("client_decisions_total").values())
    assert MAX_CLIENTS == len(reader.series("client_limit_per_second"))


def test_control_characters_of_a_client_id_are_escaped(reader: Reader, metrics: Metrics) -> None:
    """A client id looks as in the log."""
    record(metrics, ALLOWED, "a\nb")

    assert ["a\\nb"] == [labels[0] for labels in reader.series("client_decisions_total")]


def test_both_libraries_get_the_same() -> None:
    """Both see everything if both are installed."""
    readers = PrometheusReader(), OtelReader()
    record_everything(Metrics(*(reader.backend for reader in readers)))

    for name in NAMES:
        assert readers[0].series(name) == readers[1].series(name)


def test_histogram_of_opentelemetry_resolves_microseconds() -> None:
    """The default buckets of the SDK begin at 5 s."""
    reader = OtelReader()
    record(Metrics(reader.backend), ALLOWED)

    assert 5e-6 == reader.bounds("decision_seconds")[0]


def test_gauges_while_mongodb_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures, hits in flight and the age of the snapshot grow; they recover with MongoDB."""
    elapsed = Clock(0.0)
    monkeypatch.setattr("oauth_ratelimit.background.health.time", SimpleNamespace(monotonic=elapsed))
    store, reader = MemoryStore(), PrometheusReader()
    error = Mock(side_effect=StoreUnavailable("out of reach"))
    monkeypatch.setattr(store, "read", error)
    monkeypatch.setattr(store, "compare_and_set", error)
    limits = {"user": ["50/10 seconds", "90/minute"], "client_total": ["100/minute"]}
    limiter = Limiter(load_config({"mode": "enforce", "limits": limits}), store, clock=Clock())
    health_monitor = HealthMonitor(limiter, None, clock=Clock(), metrics=Metrics(reader.backend))

    def values() -> tuple[float, ...]:
        names = ("flush_failures_total", "in_flight_hits", "tracked_keys", "snapshot_age_seconds")
        return tuple(reader.series(name)[()] for name in names)

    for username in ("alice", "alice", "bob"):
        limiter.check("some-client", username)
    elapsed.advance(5.0)
    health_monitor.sync()
    assert (1, 3, 2, 5.0) == values()

    monkeypatch.delattr(store, "read")
    monkeypatch.delattr(store, "compare_and_set")
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
