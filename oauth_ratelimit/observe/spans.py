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
    attributes: dict[str, str | int | float] = {
        "oauth_ratelimit.decision": outcome_of(decision),
        "oauth_ratelimit.mode": decision.mode.value,
        "oauth_ratelimit.client_id": visible_name(client_id),
    }
    if decision.policy is not None and decision.limit is not None and decision.window_s is not None:
        attributes["oauth_ratelimit.policy"] = decision.policy
        attributes["oauth_ratelimit.limit"] = decision.limit
        attributes["oauth_ratelimit.window_s"] = decision.window_s
        attributes["oauth_ratelimit.remaining"] = decision.remaining
    if decision.would_deny and math.isfinite(decision.retry_after_s):
        attributes["oauth_ratelimit.retry_after_s"] = decision.retry_after_s
    if decision.decision_id is not None:
        attributes["oauth_ratelimit.decision_id"] = decision.decision_id
    span.set_attributes(attributes)
    if decision.would_deny:
        span.add_event(f"oauth_ratelimit.{outcome_of(decision)}", attributes)


def current_trace_id() -> str | None:
    """Return the id of the current trace, 32 hexadecimal digits; None without a trace or without the library."""
    if not IS_AVAILABLE:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
