"""Spans of OpenTelemetry, if its API is installed (the extra ``otel``). Without an SDK its calls do nothing."""

import math

from oauth_ratelimit.core.decision import Decision, outcome_of
from oauth_ratelimit.core.key import visible_name

try:
    from opentelemetry import trace
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True


def annotate_span(decision: Decision, client_id: str) -> None:
    """Add a decision to the current span, as attributes and, if it is over a limit, as an event. It names no user."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    has_end = decision.would_deny and math.isfinite(decision.retry_after_s)
    facts = {
        "decision": outcome_of(decision),
        "mode": decision.mode.value,
        "client_id": visible_name(client_id),
        "policy": decision.policy,
        "limit": decision.limit,
        "window_s": decision.window_s,
        "remaining": None if decision.policy is None else decision.remaining,
        "retry_after_s": decision.retry_after_s if has_end else None,
        "decision_id": decision.decision_id,
    }
    attributes = {f"oauth_ratelimit.{name}": value for name, value in facts.items() if value is not None}
    span.set_attributes(attributes)
    if decision.would_deny:
        span.add_event(f"oauth_ratelimit.{outcome_of(decision)}", attributes)


def current_trace_id() -> str | None:
    """Return the id of the current trace, 32 hexadecimal digits; None without a trace or without the library."""
    if not IS_AVAILABLE:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
