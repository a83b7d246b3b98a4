"""Metrics and span attributes for OpenTelemetry, if its API is installed (the extra ``otel``).

Only the API is used: without an SDK or a provider its calls do nothing. Metrics have the same names as for Prometheus.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from oauth_ratelimit.core.decision import Decision, outcome_of
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.observe.metric_catalog import CATALOG, NAMESPACE, Metric

try:
    from opentelemetry import context, metrics, trace
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True

Attributes = dict[str, str | int | float]


class OtelMetrics:
    """Instruments of OpenTelemetry. Thread-safe, as the library is.

    Args:
        provider: Provider of the instruments; None for that of the application, which may be set later.
    """

    def __init__(self, provider: "metrics.MeterProvider | None" = None) -> None:
        meter = metrics.get_meter(NAMESPACE, meter_provider=provider)
        self._instruments = {metric: _create(metric, meter) for metric in CATALOG}

    def add(self, metric: Metric, amount: int = 1, *, labels: tuple[str, ...] = ()) -> None:
        """Increase a counter."""
        self._instruments[metric].add(amount, dict(zip(metric.labels, labels, strict=True)))

    def counter(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[int], object]:
        """Return a function that adds to a counter."""
        return partial(self._instruments[metric].add, attributes=dict(zip(metric.labels, labels, strict=True)))

    def observe(self, metric: Metric, value: float) -> None:
        """Add a value to a histogram."""
        self._instruments[metric].record(value)

    def observer(self, metric: Metric) -> Callable[[float], object]:
        """Return a function that adds a value to a histogram."""
        observe: Callable[[float], object] = self._instruments[metric].record
        return observe

    def set(self, metric: Metric, value: float, *, labels: tuple[str, ...] = ()) -> None:
        """Set a gauge."""
        self._instruments[metric].set(value, dict(zip(metric.labels, labels, strict=True)))


def _create(metric: Metric, meter: "metrics.Meter") -> Any:
    name = f"{NAMESPACE}_{metric.name}"
    unit = "s" if metric.name.endswith("_seconds") else ""
    if metric.kind == "counter":
        return meter.create_counter(f"{name}_total", unit, metric.help)
    if metric.kind == "gauge":
        return meter.create_gauge(name, unit, metric.help)
    return meter.create_histogram(name, unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets)


def has_context() -> bool:
    """Return True if there is a current context, without which there is no span either."""
    return IS_AVAILABLE and bool(context.get_current())


def annotate_span(decision: Decision, client_id: str) -> None:
    """Add a decision to the span of a context, as attributes and, if it is over a limit, as an event."""
    span = trace.get_current_span()
    if span.is_recording():
        attributes = _attributes(decision, client_id)
        span.set_attributes(attributes)
        if decision.would_deny:
            span.add_event(f"{NAMESPACE}.{outcome_of(decision)}", attributes)


def current_trace_id() -> str | None:
    """Return the id of the current trace, 32 hexadecimal digits; None without a trace or without the library."""
    if not IS_AVAILABLE:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _attributes(decision: Decision, client_id: str) -> Attributes:
    """Return the attributes of a span. No user is among them."""
    attributes: Attributes = {
        "oauth_ratelimit.decision": outcome_of(decision),
        "oauth_ratelimit.mode": decision.mode.value,
        "oauth_ratelimit.client_id": visible_name(client_id),
    }
    rule = decision.rule
    if rule is not None:
        attributes["oauth_ratelimit.policy"] = rule.name
        attributes["oauth_ratelimit.limit"] = rule.limit
        attributes["oauth_ratelimit.window_s"] = rule.window.window_s
        attributes["oauth_ratelimit.remaining"] = decision.remaining
    if decision.would_deny and math.isfinite(decision.retry_after_s):
        attributes["oauth_ratelimit.retry_after_s"] = decision.retry_after_s
    if decision.decision_id is not None:
        attributes["oauth_ratelimit.decision_id"] = decision.decision_id
    return attributes
