"""Metrics for Prometheus, if its client library is there (the extra ``prometheus``).

They go to the library's own registry, beside those of the application. With several worker processes the library adds
them up over files in ``PROMETHEUS_MULTIPROC_DIR``, which must be set before it is imported.
"""

import threading
from collections.abc import Callable
from functools import partial

from oauth_ratelimit.core.decision import Decision, outcome_of
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.observe.metric_labels import MAX_CLIENTS, NONE, OTHER, ClientLabels, GrantNames
from oauth_ratelimit.sync.flusher import CycleReport

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True

NAMESPACE = "oauth_ratelimit"

# What a decision takes: microseconds, unless the store is asked before the last requests of a quota.
DECISION_BUCKETS_S = (5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 1e-1)
FLUSH_BUCKETS_S = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0, 2.5, 10.0)
FLUSH_KEYS_BUCKETS = (1, 5, 25, 100, 500, 2500, 10_000, 50_000)


class PrometheusMetrics:
    """The metrics of this process. Thread-safe, as the library is.

    Args:
        registry: Where they are registered, None for the library's own registry.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        counter = partial(Counter, namespace=NAMESPACE, registry=registry or REGISTRY)
        gauge = partial(Gauge, namespace=NAMESPACE, registry=registry or REGISTRY)
        histogram = partial(Histogram, namespace=NAMESPACE, registry=registry or REGISTRY)
        self._decisions = counter("decisions", "Requests decided.", ("decision", "mode", "grant_type", "policy"))
        self._near_limit = counter("near_limit", "Requests admitted with less than a fifth of their quota left.")
        self._decision_seconds = histogram("decision_seconds", "Time that a decision took.", buckets=DECISION_BUCKETS_S)
        self._client_decisions = counter(
            "client_decisions",
            f"Requests decided, of at most {MAX_CLIENTS} clients per process by name. Kind: client or user, as limits.",
            ("client_id", "kind", "decision"),
        )
        self._client_limit = gauge(
            "client_limit_per_second",
            "Rate that a limit comes to; of kind user, for each user.",
            ("client_id", "kind", "policy"),
            multiprocess_mode="livemostrecent",
        )
        self._flush_seconds = histogram(
            "flush_seconds", "Time that a sync cycle with MongoDB took.", buckets=FLUSH_BUCKETS_S
        )
        self._flush_keys = histogram(
            "flush_keys", "Documents that a sync cycle has written.", buckets=FLUSH_KEYS_BUCKETS
        )
        self._flush_conflicts = counter("flush_conflicts", "Writes that lost a race and were repeated.")
        self._flush_failures = counter("flush_failures", "Sync cycles that MongoDB did not let end.")
        self._in_flight_hits = gauge(
            "in_flight_hits",
            "Requests counted here that the last sync cycle could not bring to MongoDB.",
            multiprocess_mode="livesum",
        )
        self._tracked_keys = gauge(
            "tracked_keys", "Keys kept in memory, summed over processes.", multiprocess_mode="livesum"
        )
        self._snapshot_age = gauge(
            "snapshot_age_seconds",
            "Time since the last full sync cycle without an error, of the process that lags most.",
            multiprocess_mode="livemax",
        )
        self._failures = counter(
            "failures", "Failed authentications, counted by client, user, passed_on and address.", ("kind",)
        )
        self._alarms = counter(
            "alarms", "Requests that came after too many failed authentications.", ("decision", "policy")
        )
        self._grants = GrantNames()
        self._clients = ClientLabels()
        self._by_labels: dict[tuple[str, str, str, str], Counter] = {}
        self._by_client: dict[tuple[str, str, str], Counter] = {}
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
        outcome = outcome_of(decision)
        grant = self._grants.of(grant_type, is_grant)
        rule = decision.rule
        labels = (outcome, decision.mode, grant, rule.name if rule else NONE)
        child = self._by_labels.get(labels)
        if child is None:
            child = self._by_labels[labels] = self._decisions.labels(*labels)
        child.inc()
        self._decision_seconds.observe(duration_s)
        if is_near_limit:
            self._near_limit.inc()
        name = self._clients.of(client_id, is_over=decision.would_deny)
        kind = "client" if username is None else "user"
        key = (name, kind, outcome)
        child = self._by_client.get(key)
        if child is None:
            child = self._by_client[key] = self._client_decisions.labels(*key)
        child.inc()
        if rule is not None and name != OTHER and self._limits.get((name, kind, rule.name)) is not rule:
            self._limits[name, kind, rule.name] = rule
            self._client_limit.labels(name, kind, rule.name).set(rule.limit / rule.window.window_s)

    def note_failure(self, kind: str) -> None:
        """Count a failed authentication."""
        self._failures.labels(kind).inc()

    def note_alarm(self, decision: Decision) -> None:
        """Count a request that came after too many failures."""
        self._alarms.labels(outcome_of(decision), decision.policy or NONE).inc()

    def note_cycle(self, report: CycleReport, *, duration_s: float) -> None:
        """Note what a sync cycle did."""
        if report.error is not None:
            self._flush_failures.inc()
        if report.error is not None or report.flushed_count or report.pulled_count:
            self._flush_seconds.observe(duration_s)
        if report.flushed_count:
            self._flush_keys.observe(report.flushed_count)
        if report.conflict_count:
            self._flush_conflicts.inc(report.conflict_count)

    def note_state(self, *, in_flight_hits: int, key_count: int, lag_s: float) -> None:
        """Note where the synchronisation stands."""
        self._in_flight_hits.set(in_flight_hits)
        self._tracked_keys.set(key_count)
        self._snapshot_age.set(lag_s)


_opening = threading.Lock()
_opened: list[PrometheusMetrics] = []


def open_metrics() -> PrometheusMetrics | None:
    """Return the metrics of this process, which all its applications share; None without the library.

    Opened as late as the first request: in multiprocess mode they leave files behind, and commands should not.
    """
    if not IS_AVAILABLE:
        return None
    with _opening:
        if not _opened:
            _opened.append(PrometheusMetrics())
        return _opened[0]
