"""Pages that an application may register: metrics for Prometheus, health for load balancers and probes.

Neither is protected here: register them where only those who should can reach them.
"""

import os
from typing import TYPE_CHECKING

from flask import Blueprint, Response, current_app, jsonify, request

from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.flask_authlib.request_state import EXTENSION
from oauth_ratelimit.observe.prometheus import IS_AVAILABLE

if IS_AVAILABLE:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.multiprocess import MultiProcessCollector

if TYPE_CHECKING:
    from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter

MULTIPROCESS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # the library's own variable


def metrics_blueprint(url: str = "/metrics") -> Blueprint:
    """Return a page with everything in the registry of ``prometheus_client``, the application's own metrics included.

    Of all worker processes if ``PROMETHEUS_MULTIPROC_DIR`` is set, else of the one that answers.

    Raises:
        RuntimeError: The extra ``prometheus`` is not installed.
    """
    if not IS_AVAILABLE:
        raise RuntimeError("metrics need prometheus-client: pip install 'oauth_ratelimit[prometheus]'")
    pages = Blueprint("oauth_ratelimit_metrics", __name__)

    @pages.get(url)
    def metrics() -> Response:
        _gate().note_state()
        registry = REGISTRY
        if os.environ.get(MULTIPROCESS_DIRECTORY):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call,unused-ignore]
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return pages


def health_blueprint(url: str = "/health", *, max_lag_s: float | None = None) -> Blueprint:
    """Return a page that tells how the synchronisation of the process that answers fares, as JSON.

    Args:
        url: Where.
        max_lag_s: When the last sync cycle without an error lies back longer than this, the status is 503 and not
            200: for monitoring. Longer than ``sync.interval``. None always answers 200, with the lag in the body:
            requests are decided without MongoDB, too, and a probe that takes an instance out of service because
            MongoDB is away takes out all of them.
    """
    pages = Blueprint("oauth_ratelimit_health", __name__)

    @pages.get(url)
    def health() -> Response:
        gate = _gate()
        found = gate.health()
        is_lagging = max_lag_s is not None and found.lag_s > max_lag_s
        response = jsonify(
            status="lagging" if is_lagging else "ok",
            instance=found.instance,
            version=package_version(),
            mode=gate.settings.policies.mode.value,
            is_shared=gate.settings.store.uri is not None,
            sync_lag_s=round(found.lag_s, 3),
            max_sync_lag_s=max_lag_s,
            in_flight_hits=found.in_flight_hits,
            tracked_keys=found.key_count,
            last_error=found.last_error,
            last_error_ago_s=None if found.last_error_ago_s is None else round(found.last_error_ago_s, 3),
        )
        response.status_code = 503 if is_lagging else 200
        response.headers["Cache-Control"] = "no-store"
        return response

    return pages


def _gate() -> "AppLimiter":
    gate: AppLimiter = current_app.extensions[EXTENSION]
    return gate
