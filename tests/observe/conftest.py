"""Metrics of a test's own."""

import pytest
from prometheus_client import CollectorRegistry

from oauth_ratelimit.flask_authlib import blueprints as pages
from oauth_ratelimit.observe import prometheus as metrics


@pytest.fixture
def own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the page of metrics show what this test counts, and nothing of what the process has counted before."""
    registry = CollectorRegistry()
    monkeypatch.setattr(pages, "REGISTRY", registry)
    monkeypatch.setattr(metrics, "_opened", [metrics.PrometheusMetrics(registry)])
