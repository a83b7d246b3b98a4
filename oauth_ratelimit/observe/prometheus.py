"""Metrics for Prometheus, if its client library is installed (the extra ``prometheus``).

They are in the library's own registry, beside those of the application. With several worker processes the library adds
them up over files in ``PROMETHEUS_MULTIPROC_DIR``, which must be set before it is imported.
"""

from collections.abc import Callable
from typing import Any

from oauth_ratelimit.observe.metric_catalog import CATALOG, NAMESPACE, Metric

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True


class PrometheusMetrics:
    """Instruments of Prometheus. Thread-safe, as the library is.

    Args:
        registry: Registry of the instruments; None for the default one of the library.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        self._instruments = {metric: _create(metric, registry or REGISTRY) for metric in CATALOG}
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}

    def add(self, metric: Metric, amount: int = 1, *, labels: tuple[str, ...] = ()) -> None:
        """Increase a counter."""
        self._child(metric, labels).inc(amount)

    def counter(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[int], object]:
        """Return a function that adds to a counter."""
        increase: Callable[[int], object] = self._child(metric, labels).inc
        return increase

    def observe(self, metric: Metric, value: float) -> None:
        """Add a value to a histogram."""
        self._child(metric, ()).observe(value)

    def observer(self, metric: Metric) -> Callable[[float], object]:
        """Return a function that adds a value to a histogram."""
        observe: Callable[[float], object] = self._child(metric, ()).observe
        return observe

    def set(self, metric: Metric, value: float, *, labels: tuple[str, ...] = ()) -> None:
        """Set a gauge."""
        self._child(metric, labels).set(value)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        child = self._children.get((metric, labels))
        if child is None:
            instrument = self._instruments[metric]
            child = self._children[metric, labels] = instrument.labels(*labels) if labels else instrument
        return child


def _create(metric: Metric, registry: "CollectorRegistry") -> "Counter | Gauge | Histogram":
    common: dict[str, Any] = {"namespace": NAMESPACE, "registry": registry}
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, metric.labels, **common)
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.help, metric.labels, multiprocess_mode=metric.aggregation, **common)
    return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, **common)
