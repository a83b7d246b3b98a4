"""Spans of OpenTelemetry, and metrics of an application with an SDK."""

import subprocess
import sys
import textwrap
from typing import Any

import pytest
from flask import Flask
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oauth_ratelimit.core.decision import Decision, FullDecision, outcome_of
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.observe.observer import Callbacks, Observer
from oauth_ratelimit.observe.otel import OtelMetrics, annotate_span

POLICY = Policy("client", 120, Window.of(60))
ALLOWED = FullDecision(True, False, Mode.ENFORCE, rule=POLICY, remaining=50)
DENIED = FullDecision(False, True, Mode.ENFORCE, rule=POLICY, retry_after_s=2.5, decision_id="0123456789abcdef")
WOULD_DENY = FullDecision(True, True, Mode.DRY_RUN, rule=POLICY, retry_after_s=float("inf"))
TRUSTED = FullDecision(True, False, Mode.ENFORCE, trusted=True)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Spans that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    """A tracer of an SDK."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


def annotated(tracer: trace.Tracer, spans: InMemorySpanExporter, decision: Decision) -> ReadableSpan:
    """Return a span within which a decision was taken."""
    with tracer.start_as_current_span("POST /token"):
        annotate_span(decision, "app")
    [span] = spans.get_finished_spans()
    return span


def test_span_of_a_denial(tracer: trace.Tracer, spans: InMemorySpanExporter) -> None:
    """The span has the decision as attributes and as an event, and names no user."""
    expected = {
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
    span = annotated(tracer, spans, DENIED)

    assert expected == dict(span.attributes or {})
    assert [("oauth_ratelimit.denied", expected)] == [
        (event.name, dict(event.attributes or {})) for event in span.events
    ]


@pytest.mark.parametrize(
    ("decision", "outcome", "events"),
    [(ALLOWED, "allowed", []), (TRUSTED, "trusted", []), (WOULD_DENY, "would_deny", ["oauth_ratelimit.would_deny"])],
    ids=["allowed", "trusted", "dry run"],
)
def test_span_of_an_admitted_request(
    tracer: trace.Tracer, spans: InMemorySpanExporter, decision: Decision, outcome: str, events: list[str]
) -> None:
    """Only a request over a limit becomes an event; a delay that never ends is left out."""
    span = annotated(tracer, spans, decision)
    attributes = span.attributes or {}

    assert outcome == attributes["oauth_ratelimit.decision"]
    assert "oauth_ratelimit.retry_after_s" not in attributes
    assert events == [event.name for event in span.events]


def test_measurement_of_a_request_has_its_own_trace_as_an_exemplar(tracer: trace.Tracer) -> None:
    """Requests are counted in groups, but not those with a trace."""
    reader = InMemoryMetricReader()
    metrics = Metrics(OtelMetrics(MeterProvider([reader], shutdown_on_exit=False)))
    observer = Observer(Callbacks(has_grant=bool), metrics=metrics)
    expected = set()
    for decision in (ALLOWED, DENIED):
        with tracer.start_as_current_span("POST /token") as span:
            observer.report(decision, "app", username=None, grant_type=None, duration_s=3e-6)
            expected.add((outcome_of(decision), span.get_span_context().trace_id))
    with tracer.start_as_current_span("GET /metrics"):
        observer.count_noted()
    data: Any = reader.get_metrics_data()

    assert expected == {
        (point.attributes["decision"], exemplar.trace_id)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "oauth_ratelimit_decisions_total"
        for point in metric.data.data_points
        for exemplar in point.exemplars
    }


def test_trace_of_the_current_span_wins_over_the_header(tracer: trace.Tracer) -> None:
    """The current trace is the one that is recorded here."""
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with Flask(__name__).test_request_context(headers=headers), tracer.start_as_current_span("POST /token") as span:
        expected = trace.format_trace_id(span.get_span_context().trace_id)
        assert expected == trace_of_request(None).trace_id

    assert expected != "4bf92f3577b34da6a3ce929d0e0e4736"


def test_application_that_sets_up_the_sdk_after_its_first_request() -> None:
    """Requests are counted from then on, without further calls."""
    script = """
        import os
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from tests.support.apps import app_limiter_of, protected_app, token_status

        reader = InMemoryMetricReader()
        with protected_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["2/minute"]}}) as app:
            token_status(app)
            app_limiter_of(app).update_metrics()
            metrics.set_meter_provider(MeterProvider([reader]))
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
