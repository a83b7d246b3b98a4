"""Spans of OpenTelemetry, in an application with an SDK."""

from typing import Any

import pytest
from flask import Flask
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.observe.observer import Callbacks, Observer
from tests.support.decisions import ALLOWED, DENIED, TRUSTED, WOULD_DENY


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


POLICY = {"policy": "client", "limit": 120, "window_s": 60, "remaining": 0}


@pytest.mark.parametrize(
    ("decision", "expected", "is_event"),
    [
        (DENIED, {**POLICY, "mode": "enforce", "retry_after_s": 2.5, "decision_id": "0123456789abcdef"}, True),
        (WOULD_DENY, {**POLICY, "mode": "dry-run"}, True),
        (ALLOWED, {**POLICY, "mode": "enforce", "remaining": 50}, False),
        (TRUSTED, {"mode": "enforce"}, False),
    ],
    ids=["denied", "would_deny", "allowed", "trusted"],
)
def test_span_of_a_decision(
    tracer: trace.Tracer,
    spans: InMemorySpanExporter,
    request: pytest.FixtureRequest,
    decision: Decision,
    expected: dict[str, Any],
    is_event: bool,
) -> None:
    """It names no user. Only a request over a limit becomes an event; a delay that never ends is left out."""
    outcome = request.node.callspec.id
    with tracer.start_as_current_span("POST /token"):
        Observer(Callbacks(has_grant=bool)).report(decision, "app", username="alice", grant_type=None, duration_s=3e-6)
    [span] = spans.get_finished_spans()
    attributes = {f"oauth_ratelimit.{name}": value for name, value in expected.items()}
    attributes |= {"oauth_ratelimit.decision": outcome, "oauth_ratelimit.client_id": "app"}

    assert attributes == dict(span.attributes or {})
    assert [(f"oauth_ratelimit.{outcome}", attributes)] * is_event == [
        (event.name, dict(event.attributes or {})) for event in span.events
    ]


def test_trace_of_the_current_span_wins_over_the_header(tracer: trace.Tracer) -> None:
    """The current trace is the one that is recorded here."""
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with Flask(__name__).test_request_context(headers=headers), tracer.start_as_current_span("POST /token") as span:
        expected = trace.format_trace_id(span.get_span_context().trace_id)
        assert expected == trace_of_request(None).trace_id

    assert expected != "4bf92f3577b34da6a3ce929d0e0e4736"
