"""Metrics and span attributes for OpenTelemetry, if its API is there (the extra ``otel``).

Only the API: where an application has no SDK, or no provider, the calls here do nothing. Metrics have the names that
they have for Prometheus.
"""

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from oauth_ratelimit.core.decision import Decision, outcome_of
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.observe.metric_labels import NONE, OTHER, ClientLabels, GrantNames
from oauth_ratelimit.observe.prometheus import DECISION_BUCKETS_S, FLUSH_BUCKETS_S, FLUSH_KEYS_BUCKETS, NAMESPACE
from oauth_ratelimit.sync.flusher import CycleReport

try:
    from opentelemetry import metrics, trace
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True

Attributes = dict[str, str | int | float]

SILENT = ("_ProxyMeterProvider", "NoOpMeterProvider")  # what the API has instead of a provider


class OtelMetrics:
    """The instruments of this process, and the current span of each request. Thread-safe, as the library is.

    Args:
        provider: Where the instruments come from; None for the application's own. If that is set later, requests are
            counted from the next sync cycle on.
    """

    def __init__(self, provider: "metrics.MeterProvider | None" = None) -> None:
        self._own_provider = provider
        self._is_heard = False
        self._listen()
        meter = metrics.get_meter(NAMESPACE, meter_provider=provider)

        def named(create: Callable[..., Any], name: str, description: str, **options: Any) -> Any:
            return create(f"{NAMESPACE}_{name}", description=description, **options)

        counter, gauge = partial(named, meter.create_counter), partial(named, meter.create_gauge)
        histogram = partial(named, meter.create_histogram)
        self._decisions = counter("decisions_total", "Requests decided.")
        self._near_limit = counter("near_limit_total", "Requests admitted with less than a fifth of their quota left.")
        self._decision_seconds = histogram(
            "decision_seconds",
            "Time that a decision took.",
            unit="s",
            explicit_bucket_boundaries_advisory=DECISION_BUCKETS_S,
        )
        self._client_decisions = counter("client_decisions_total", "Requests decided, of a bounded number of clients.")
        self._client_limit = gauge("client_limit_per_second", "Rate that a limit comes to.")
        self._flush_seconds = histogram(
            "flush_seconds",
            "Time that a sync cycle with MongoDB took.",
            unit="s",
            explicit_bucket_boundaries_advisory=FLUSH_BUCKETS_S,
        )
        self._flush_keys = histogram(
            "flush_keys",
            "Documents that a sync cycle has written.",
            explicit_bucket_boundaries_advisory=FLUSH_KEYS_BUCKETS,
        )
        self._flush_conflicts = counter("flush_conflicts_total", "Writes that lost a race and were repeated.")
        self._flush_failures = counter("flush_failures_total", "Sync cycles that MongoDB did not let end.")
        self._in_flight_hits = gauge("in_flight_hits", "Requests counted here that are not in MongoDB.")
        self._tracked_keys = gauge("tracked_keys", "Keys kept in memory.")
        self._snapshot_age = gauge(
            "snapshot_age_seconds", "Time since the last full sync cycle without an error.", unit="s"
        )
        self._failures = counter("failures_total", "Failed authentications.")
        self._alarms = counter("alarms_total", "Requests that came after too many failed authentications.")
        self._grants = GrantNames()
        self._clients = ClientLabels()
        self._limits: dict[tuple[str, str, str], Policy] = {}  # what the gauge says

    def note_decision(
        self,
        decision: Decision,
        client_id: str,
        *,
        username: str | None,
        grant_type: str | None,
        is_near_limit: bool,
        duration_s: float,
        is_grant: Callable[[str], bool],
    ) -> None:
        """See ``Metrics.note_decision``."""
        if self._is_heard:
            self._count(
                decision,
                client_id,
                kind="client" if username is None else "user",
                grant=self._grants.of(grant_type, is_grant),
                duration_s=duration_s,
            )
            if is_near_limit:
                self._near_limit.add(1)
        span = trace.get_current_span()
        if span.is_recording():
            facts = _facts(decision, client_id)
            span.set_attributes(facts)
            if decision.would_deny:
                span.add_event(f"{NAMESPACE}.{outcome_of(decision)}", facts)

    def _listen(self) -> None:
        """Look whether there is a provider. That costs microseconds, so not with each request."""
        provider = self._own_provider or metrics.get_meter_provider()
        self._is_heard = type(provider).__name__ not in SILENT

    def _count(self, decision: Decision, client_id: str, *, kind: str, grant: str, duration_s: float) -> None:
        outcome = outcome_of(decision)
        rule = decision.rule
        policy = rule.name if rule else NONE
        mode = decision.mode.value
        self._decisions.add(1, {"decision": outcome, "mode": mode, "grant_type": grant, "policy": policy})
        self._decision_seconds.record(duration_s)
        name = self._clients.of(client_id, is_over=decision.would_deny)
        self._client_decisions.add(1, {"client_id": name, "kind": kind, "decision": outcome})
        if rule is not None and name != OTHER and self._limits.get((name, kind, policy)) is not rule:
            self._limits[name, kind, policy] = rule
            rate = rule.limit / rule.window.window_s
            self._client_limit.set(rate, {"client_id": name, "kind": kind, "policy": policy})

    def note_cycle(self, report: CycleReport, *, duration_s: float) -> None:
        """See ``Metrics.note_cycle``."""
        if report.error is not None:
            self._flush_failures.add(1)
        if report.error is not None or report.flushed_count or report.pulled_count:
            self._flush_seconds.record(duration_s)
        if report.flushed_count:
            self._flush_keys.record(report.flushed_count)
        if report.conflict_count:
            self._flush_conflicts.add(report.conflict_count)

    def note_state(self, *, in_flight_hits: int, key_count: int, lag_s: float) -> None:
        """See ``Metrics.note_state``."""
        self._listen()
        self._in_flight_hits.set(in_flight_hits)
        self._tracked_keys.set(key_count)
        self._snapshot_age.set(lag_s)

    def note_failure(self, kind: str) -> None:
        """See ``Metrics.note_failure``."""
        self._failures.add(1, {"kind": kind})

    def note_alarm(self, decision: Decision) -> None:
        """See ``Metrics.note_alarm``."""
        self._alarms.add(1, {"decision": outcome_of(decision), "policy": decision.policy or NONE})


def current_trace_id() -> str | None:
    """Return the id of the trace that OpenTelemetry is at, 32 hexadecimal digits; None if it is at none."""
    if not IS_AVAILABLE:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _facts(decision: Decision, client_id: str) -> Attributes:
    """Return the attributes of a span. No user is among them."""
    facts: Attributes = {
        "oauth_ratelimit.decision": outcome_of(decision),
        "oauth_ratelimit.mode": decision.mode.value,
        "oauth_ratelimit.client_id": visible_name(client_id),
    }
    rule = decision.rule
    if rule is not None:
        facts["oauth_ratelimit.policy"] = rule.name
        facts["oauth_ratelimit.limit"] = rule.limit
        facts["oauth_ratelimit.window_s"] = rule.window.window_s
        facts["oauth_ratelimit.remaining"] = decision.remaining
    if decision.would_deny and math.isfinite(decision.retry_after_s):
        facts["oauth_ratelimit.retry_after_s"] = decision.retry_after_s
    if decision.decision_id is not None:
        facts["oauth_ratelimit.decision_id"] = decision.decision_id
    return facts


_opening = threading.Lock()
_opened: list[OtelMetrics] = []


def open_otel() -> OtelMetrics | None:
    """Return the instruments of this process, which all its applications share; None without the library."""
    if not IS_AVAILABLE:
        return None
    with _opening:
        if not _opened:
            _opened.append(OtelMetrics())
        return _opened[0]
