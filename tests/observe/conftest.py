"""Metrics of a test's own."""

import pytest
from prometheus_client import CollectorRegistry

from oauth_ratelimit import blueprints
from oauth_ratelimit.observe import metrics
from oauth_ratelimit.observe.prometheus import PrometheusMetrics


@pytest.fixture
def own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the page of metrics show what this test counts, and nothing that the process counted before."""
    registry = CollectorRegistry()
    monkeypatch.setattr(blueprints, "REGISTRY", registry)
    monkeypatch.setattr(metrics, "_opened", [metrics.Metrics(PrometheusMetrics(registry))])
