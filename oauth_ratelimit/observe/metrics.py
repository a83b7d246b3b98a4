"""Metrics of one process, for Prometheus, OpenTelemetry or both."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from oauth_ratelimit.core.decision import Decision, outcome_of
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.statistics import Kind
from oauth_ratelimit.observe import metric_catalog as catalog
from oauth_ratelimit.observe import otel, prometheus
from oauth_ratelimit.observe.metric_catalog import MAX_CLIENTS, Metric
from oauth_ratelimit.sync.flusher import CycleReport

Labels = tuple[str, ...]
"""Labels of both counters of decisions: outcome, mode, grant type, policy, client and kind."""

FIRST_COME_CLIENTS = MAX_CLIENTS // 2  # the other half is kept for clients that are over a limit
NONE = "none"
OTHER = "other"


class MetricsBackend(Protocol):
    """Instruments of a metrics library. Thread-safe."""

    def add(self, metric: Metric, amount: int = 1, *, labels: tuple[str, ...] = ()) -> None: ...
    def counter(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[int], object]: ...
    def observe(self, metric: Metric, value: float) -> None: ...
    def observer(self, metric: Metric) -> Callable[[float], object]: ...
    def set(self, metric: Metric, value: float, *, labels: tuple[str, ...] = ()) -> None: ...


class ClientLabels:
    """Client ids as labels, for a bounded number of clients. Thread-safe."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._lock = threading.Lock()  # guards additions to _labels

    def label_of(self, client_id: str, *, is_over_limit: bool) -> str:
        """Return the label of a client: its own if it has one or there is room for one, else ``other``."""
        label = self._labels.get(client_id)
        if label is not None:
            return label
        if len(self._labels) >= (MAX_CLIENTS if is_over_limit else FIRST_COME_CLIENTS):
            return OTHER
        with self._lock:
            if len(self._labels) >= MAX_CLIENTS:
                return OTHER
            return self._labels.setdefault(client_id, visible_name(client_id))


class Metrics:
    """Counts what happens in one process. Thread-safe.

    Args:
        backends: Receivers of the numbers.
    """

    def __init__(self, *backends: MetricsBackend) -> None:
        self._backends = backends
        self._clients = ClientLabels()
        self._counters: dict[Labels, list[Callable[[int], object]]] = {}
        self._duration_observers = [backend.observer(catalog.DECISION_SECONDS) for backend in backends]
        self._policies: dict[tuple[str, ...], Policy] = {}  # shown by the gauge of limits, by label values

    def record_decision(
        self,
        decision: Decision,
        client_id: str,
        counts: Counter[Labels],
        *,
        kind: Kind,
        grant: str,
        is_near_limit: bool,
        duration_s: float,
    ) -> None:
        """Count a decision.

        Args:
            decision: The decision.
            client_id: The client.
            counts: Gets the decision, for ``add_decisions``. One thread uses it.
            kind: ``user`` if the request is for a user.
            grant: Name of the grant type, one of a bounded number.
            is_near_limit: True if the request was admitted with little of its quota left.
            duration_s: Seconds that the decision took.
        """
        outcome, policy = outcome_of(decision), decision.rule
        client = self._clients.label_of(client_id, is_over_limit=decision.would_deny)
        policy_name = NONE if policy is None else policy.name
        counts[outcome, decision.mode, grant, policy_name, client, kind] += 1
        for observe in self._duration_observers:
            observe(duration_s)
        if is_near_limit:
            for backend in self._backends:
                backend.add(catalog.NEAR_LIMIT)
        if policy is not None and client != OTHER:
            self._record_limit(policy, (client, kind, policy_name))

    def add_decisions(self, counts: Mapping[Labels, int]) -> None:
        """Add decisions to the counters. If one of them fails, the others count all the same."""
        rest = iter(counts.items())
        for labels, count in rest:
            try:
                for add in self._counters_of(labels):
                    add(count)
            except Exception:
                self.add_decisions(dict(rest))
                raise

    def _counters_of(self, labels: Labels) -> list[Callable[[int], object]]:
        counters = self._counters.get(labels)
        if counters is None:
            outcome, mode, grant, policy_name, client, kind = labels
            counters = self._counters[labels] = [
                backend.counter(metric, own_labels)
                for backend in self._backends
                for metric, own_labels in (
                    (catalog.DECISIONS, (outcome, str(mode), grant, policy_name)),
                    (catalog.CLIENT_DECISIONS, (client, kind, outcome)),
                )
            ]
        return counters

    def _record_limit(self, policy: Policy, labels: tuple[str, ...]) -> None:
        if self._policies.get(labels) is not policy:
            self._policies[labels] = policy
            for backend in self._backends:
                backend.set(catalog.CLIENT_LIMIT, policy.limit / policy.window.window_s, labels=labels)

    def record_cycle(self, report: CycleReport, *, duration_s: float) -> None:
        """Count what a sync cycle did."""
        for backend in self._backends:
            if report.error is not None:
                backend.add(catalog.FLUSH_FAILURES)
            if report.error is not None or report.flushed_count or report.pulled_count:
                backend.observe(catalog.FLUSH_SECONDS, duration_s)
            if report.flushed_count:
                backend.observe(catalog.FLUSH_KEYS, report.flushed_count)
            if report.conflict_count:
                backend.add(catalog.FLUSH_CONFLICTS, report.conflict_count)
            for policy, hits in report.over_admitted.items():
                backend.add(catalog.OVER_ADMITTED, hits, labels=(policy,))

    def record_state(self, *, in_flight_hits: int, key_count: int, lag_s: float) -> None:
        """Set the gauges of the synchronisation."""
        for backend in self._backends:
            backend.set(catalog.IN_FLIGHT_HITS, in_flight_hits)
            backend.set(catalog.TRACKED_KEYS, key_count)
            backend.set(catalog.SNAPSHOT_AGE, lag_s)

    def record_failure(self, kind: str) -> None:
        """Count a failed authentication against a client, a user or an address."""
        for backend in self._backends:
            backend.add(catalog.FAILURES, labels=(kind,))

    def record_alarm(self, decision: Decision) -> None:
        """Count a request that came after too many failed authentications."""
        for backend in self._backends:
            backend.add(catalog.ALARMS, labels=(outcome_of(decision), decision.policy or NONE))


_opening = threading.Lock()  # guards _opened
_opened: list[Metrics] = []


def open_metrics() -> Metrics | None:
    """Return the metrics of this process, which all its applications share; None without a metrics library.

    Called as late as the first request: in multiprocess mode metrics leave files behind, and commands should not.
    """
    with _opening:
        if not _opened:
            backends: list[MetricsBackend] = []
            if prometheus.IS_AVAILABLE:
                backends.append(prometheus.PrometheusMetrics())
            if otel.IS_AVAILABLE:
                backends.append(otel.OtelMetrics())
            if not backends:
                return None
            _opened.append(Metrics(*backends))
        return _opened[0]
