"""Pages for Prometheus and for load balancers."""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.blueprints import health_blueprint, metrics_blueprint
from oauth_ratelimit.observe.metrics import Metrics
from testbed.clock import wait_until
from testbed.mongod import free_port
from tests.support.apps import protected_app, token_status


@pytest.fixture(autouse=True)
def metrics_of_this_process(monkeypatch: pytest.MonkeyPatch, own_metrics: None) -> None:
    """No metrics of other worker processes, nor of other tests."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)


@contextmanager
def with_pages(*, health: Mapping[str, Any] = MappingProxyType({}), **settings: Any) -> Iterator[Flask]:
    with protected_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", **settings}) as app:
        app.register_blueprint(metrics_blueprint())
        app.register_blueprint(health_blueprint(**health))
        yield app


def samples(app: Flask, name: str, **labels: str) -> dict[str, float]:
    """Return the values of a metric on the page, by decision where it has that label."""
    response = app.test_client().get("/metrics")
    assert (200, "text/plain") == (response.status_code, response.mimetype)
    return {
        sample.labels.get("decision", ""): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if sample.name == f"oauth_ratelimit_{name}" and labels.items() <= sample.labels.items()
    }


def test_request_that_cannot_be_counted_does_not_hide_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"client": [{"limit": 2, "window": "60s", "name": "counted-later"}]}
    with capture_logs() as logs, with_pages(limits=limits) as app:
        with monkeypatch.context() as patch:
            patch.setattr(Metrics, "record_decisions", Mock(side_effect=OSError("no space left on device")))
            token_status(app)
            assert samples(app, "tracked_keys")
        token_status(app)
        assert {"allowed": 1} == samples(app, "decisions_total", policy="counted-later")

    assert ["observer_failed"] == [entry["event"] for entry in logs if entry["log_level"] == "error"]


def test_request_that_the_background_cannot_count_is_logged_by_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metrics, "record_decisions", Mock(side_effect=OSError("no space left on device")))
    with capture_logs() as logs, with_pages() as app:
        token_status(app)

    assert ["observer_failed"] == [entry["event"] for entry in logs if entry["log_level"] == "error"]


def test_snapshot_age_is_that_of_the_scrape() -> None:
    with with_pages(sync={"interval": "1h"}) as app:
        token_status(app)
        ages = [samples(app, "snapshot_age_seconds")[""] for _ in range(3)]

    assert 0.0 < ages[0] < ages[1] < ages[2] < 60.0


def test_health_of_a_running_process(mongo_uri: str) -> None:
    with with_pages(store={"uri": mongo_uri}, sync={"interval": "50ms"}) as app:
        client = app.test_client()
        assert 200 == client.get("/health").status_code
        token_status(app)
        seen = wait_until(lambda: client.get("/health").json["tracked_keys"] and client.get("/health"), "a full cycle")

    assert (200, "no-store") == (seen.status_code, seen.headers["Cache-Control"])
    assert {
        "status": "ok",
        "version": package_version(),
        "mode": "enforce",
        "config_valid": True,
        "config_rejected_at_s": None,
        "connection_problem": None,
        "refused": None,
        "host_problem": None,
        "synchronises": True,
        "is_shared": True,
        "max_sync_lag_s": None,
        "in_flight_hits": 0,
        "tracked_keys": 1,
        "quarantined_keys": 0,
        "last_error": None,
        "last_error_ago_s": None,
    } == {name: value for name, value in seen.json.items() if name not in ("instance", "sync_lag_s")}
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}:{os.getpid()}:[0-9a-f]+", seen.json["instance"])
    assert 0.0 <= seen.json["sync_lag_s"] < 60.0


@pytest.mark.parametrize(("health", "status"), [({"max_lag_s": 0.2}, 503), ({}, 200)], ids=["strict", "default"])
def test_health_while_mongodb_is_unreachable(health: dict[str, Any], status: int) -> None:
    """It shows the error, the lag and the hits in flight; the status is 503 only with ``max_lag_s``."""
    store = {"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "50ms"}
    with with_pages(store=store, sync={"interval": "50ms"}, health=health) as app:
        client = app.test_client()
        assert [200, 200] == [token_status(app), token_status(app)]

        def lagging() -> Any:
            found = client.get("/health")
            health = found.json
            # A cycle that began between the two requests counted one hit only.
            return health["sync_lag_s"] > 0.3 and health["in_flight_hits"] == 2 and health["last_error"] and found

        seen = wait_until(lagging, "the cycle lags behind")
        wait_until(lambda: samples(app, "snapshot_age_seconds")[""] > 0.3, "the gauge shows it")

    assert status == seen.status_code
    assert ("lagging" if status == 503 else "ok", 2) == (seen.json["status"], seen.json["in_flight_hits"])
    assert "ServerSelectionTimeoutError" == seen.json["last_error"]
    assert 0.0 <= seen.json["last_error_ago_s"] < seen.json["sync_lag_s"]
