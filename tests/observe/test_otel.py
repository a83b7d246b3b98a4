"""Metrics and spans for OpenTelemetry."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from oauth_ratelimit.core.decision import Decision, FullDecision
from oauth_ratelimit.core.policy import Mode, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.observe.metric_labels import MAX_CLIENTS
from oauth_ratelimit.observe.metrics import CombinedMetrics, Metrics
from oauth_ratelimit.observe.otel import OtelMetrics
from oauth_ratelimit.observe.prometheus import PrometheusMetrics
from oauth_ratelimit.sync.flusher import CycleReport

RULE = Policy("client", 120, Window.of(60))
ALLOWED = FullDecision(True, False, Mode.ENFORCE, rule=RULE, remaining=50)
DENIED = FullDecision(False, True, Mode.ENFORCE, rule=RULE, retry_after_s=2.5, decision_id="0123456789abcdef")
WOULD_DENY = FullDecision(True, True, Mode.DRY_RUN, rule=RULE, retry_after_s=float("inf"))
TRUSTED = FullDecision(True, False, Mode.ENFORCE, trusted=True)


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """Where metrics can be read."""
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


@pytest.fixture
def meter(reader: InMemoryMetricReader) -> Iterator[OtelMetrics]:
    """Instruments of an SDK."""
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield OtelMetrics(provider)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Where ended spans can be read."""
    yield InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    """Begins spans of an SDK."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


def note(meter: Metrics, decision: Decision, client_id: str = "app", *, grant_type: str | None = "password") -> None:
    """Count a decision for a user."""
    meter.note_decision(
        decision,
        client_id,
        username="alice",
        grant_type=grant_type,
        is_near_limit=decision is ALLOWED,
        duration_s=3e-6,
        is_grant=lambda name: False,
    )


def note_everything(meter: Metrics) -> None:
    """Use every instrument."""
    note(meter, ALLOWED)
    meter.note_cycle(CycleReport(flushed_count=4, pulled_count=2, conflict_count=3), duration_s=0.01)
    meter.note_cycle(CycleReport(error=StoreUnavailable("away")), duration_s=0.01)
    meter.note_state(in_flight_hits=7, key_count=9, lag_s=1.5)
    meter.note_failure("user")
    meter.note_alarm(DENIED)


def points(reader: InMemoryMetricReader, name: str) -> dict[tuple[Any, ...], float]:
    """Return the values of a metric by those of its attributes, in alphabetical order of the attributes."""
    data = reader.get_metrics_data()
    metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
    return {
        tuple(value for _, value in sorted((point.attributes or {}).items())): (
            point.count if isinstance(point, HistogramDataPoint) else point.value  # type: ignore[union-attr]
        )
        for metric in metrics
        if metric.name == f"oauth_ratelimit_{name}"
        for point in metric.data.data_points
    }


def test_names(reader: InMemoryMetricReader, meter: OtelMetrics) -> None:
    """The metrics are those that there are for Prometheus, under the same names."""
    note_everything(meter)
    data = reader.get_metrics_data()
    assert data is not None
    registry = CollectorRegistry()
    PrometheusMetrics(registry)

    assert {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()} == {
        metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }


def test_each_outcome(reader: InMemoryMetricReader, meter: OtelMetrics) -> None:
    """A decision is counted under its outcome, mode, grant type and policy."""
    for decision in (ALLOWED, ALLOWED, DENIED, WOULD_DENY, TRUSTED):
        note(meter, decision)

    assert {
        ("allowed", "password", "enforce", "client"): 2,
        ("denied", "password", "enforce", "client"): 1,
        ("would_deny", "password", "dry-run", "client"): 1,
        ("trusted", "password", "enforce", "none"): 1,
    } == points(reader, "decisions_total")
    assert {("app", "denied", "user"): 1}.items() <= points(reader, "client_decisions_total").items()
    assert {("app", "user", "client"): 2.0} == points(reader, "client_limit_per_second")
    assert {(): 2} == points(reader, "near_limit_total")
    assert {(): 5} == points(reader, "decision_seconds")


def test_cycles_and_state(reader: InMemoryMetricReader, meter: OtelMetrics) -> None:
    """So are the sync cycles, and where the synchronisation stands."""
    note_everything(meter)

    assert {
        "flush_seconds": 2,
        "flush_keys": 1,
        "flush_conflicts_total": 3,
        "flush_failures_total": 1,
        "in_flight_hits": 7,
        "tracked_keys": 9,
        "snapshot_age_seconds": 1.5,
    } == {
        name: points(reader, name)[()]
        for name in (
            *("flush_seconds", "flush_keys", "flush_conflicts_total", "flush_failures_total"),
            *("in_flight_hits", "tracked_keys", "snapshot_age_seconds"),
        )
    }
    assert {("user",): 1} == points(reader, "failures_total")
    assert {("denied", "client"): 1} == points(reader, "alarms_total")


def test_many_clients_and_grants(reader: InMemoryMetricReader, meter: OtelMetrics) -> None:
    """Clients cannot make more series than there is room for."""
    for number in range(200):
        note(meter, DENIED, f"client-{number}", grant_type=f"urn:example:{number}")

    assert MAX_CLIENTS + 1 == len(points(reader, "client_decisions_total"))
    assert [("denied", "other", "enforce", "client")] == list(points(reader, "decisions_total"))


def test_buckets_of_a_decision(reader: InMemoryMetricReader, meter: OtelMetrics) -> None:
    """The histogram tells microseconds apart, which the SDK's own bounds do not."""
    note(meter, ALLOWED)
    data = reader.get_metrics_data()
    assert data is not None
    [point] = [
        point
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if metric.name == "oauth_ratelimit_decision_seconds" and isinstance(point, HistogramDataPoint)
    ]

    assert 5e-6 == point.explicit_bounds[0]


def ended(spans: InMemorySpanExporter) -> ReadableSpan:
    """Return the one span that has ended."""
    [span] = spans.get_finished_spans()
    return span


def test_span_of_a_denial(meter: OtelMetrics, tracer: trace.Tracer, spans: InMemorySpanExporter) -> None:
    """The current span tells the decision, by which policy and with which id, also as an event; it names no user."""
    with tracer.start_as_current_span("POST /token"):
        note(meter, DENIED)

    facts = {
        "oauth_ratelimit.decision": "denied",
        "oauth_ratelimit.mode": "enforce",
        "oauth_ratelimit.client_id": "app",
        "oauth_ratelimit.policy": "client",
        "oauth_ratelimit.limit": 120,
        "oauth_ratelimit.window_s": 60,
        "oauth_ratelimit.remaining": 0,
        "oauth_ratelimit.retry_after_s": 2.5,
        "oauth_ratelimit.decision_id": "0123456789abcdef",
    }
    assert facts == dict(ended(spans).attributes or {})
    assert [("oauth_ratelimit.denied", facts)] == [
        (event.name, dict(event.attributes or {})) for event in ended(spans).events
    ]


@pytest.mark.parametrize(
    ("decision", "expected", "events"),
    [(ALLOWED, "allowed", []), (TRUSTED, "trusted", []), (WOULD_DENY, "would_deny", ["oauth_ratelimit.would_deny"])],
    ids=["allowed", "trusted", "dry run"],
)
def test_span_of_another_decision(
    meter: OtelMetrics,
    tracer: trace.Tracer,
    spans: InMemorySpanExporter,
    decision: Decision,
    expected: str,
    events: list[str],
) -> None:
    """A request that goes on has the attributes, and an event only if a dry run let it."""
    with tracer.start_as_current_span("POST /token"):
        note(meter, decision)

    attributes = ended(spans).attributes or {}
    assert expected == attributes["oauth_ratelimit.decision"]
    assert "oauth_ratelimit.retry_after_s" not in attributes
    assert events == [event.name for event in ended(spans).events]


def test_trace_of_the_current_span(tracer: trace.Tracer) -> None:
    """The trace that the process is in comes before the one that the request came with: it is what is recorded here."""
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with Flask(__name__).test_request_context(headers=headers), tracer.start_as_current_span("POST /token") as span:
        expected = trace.format_trace_id(span.get_span_context().trace_id)
        assert expected == trace_of_request(None).trace_id

    assert expected != "4bf92f3577b34da6a3ce929d0e0e4736"


def test_both_libraries(reader: InMemoryMetricReader, meter: OtelMetrics) -> None:
    """With both libraries both tell the same."""
    registry = CollectorRegistry()
    note_everything(CombinedMetrics(PrometheusMetrics(registry), meter))

    labels = {"decision": "allowed", "mode": "enforce", "grant_type": "password", "policy": "client"}
    assert 1 == registry.get_sample_value("oauth_ratelimit_decisions_total", labels)
    assert {("allowed", "password", "enforce", "client"): 1} == points(reader, "decisions_total")
    for name in ("in_flight_hits", "flush_conflicts_total", "flush_failures_total", "tracked_keys"):
        assert registry.get_sample_value(f"oauth_ratelimit_{name}") == points(reader, name)[()]
    assert 1 == registry.get_sample_value("oauth_ratelimit_failures_total", {"kind": "user"})
    assert 1 == registry.get_sample_value("oauth_ratelimit_alarms_total", {"decision": "denied", "policy": "client"})


def test_application_with_an_sdk() -> None:
    """An application that sets up the SDK needs nothing else, even if it does that after the first request."""
    script = """
        import os
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from tests.support.apps import app_limiter_of, token_status, protected_app

        reader = InMemoryMetricReader()
        with protected_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["2/minute"]}}) as app:
            token_status(app)
            metrics.set_meter_provider(MeterProvider([reader]))
            app_limiter_of(app).note_state()  # as each sync cycle does
            assert [200, 429] == [token_status(app), token_status(app)]
        found = [
            (point.attributes["decision"], point.value)
            for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "oauth_ratelimit_decisions_total"
            for point in metric.data.data_points
        ]
        print(sorted(found))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)

    assert (0, "[('allowed', 1), ('denied', 1)]") == (done.returncode, done.stdout.strip().splitlines()[-1]), (
        done.stderr
    )
