"""Pages that an application may register: metrics for Prometheus, and health for load balancers and probes.

Neither is protected: register them where only monitoring can reach them.
"""

import os

from flask import Blueprint, Response, current_app, jsonify, request

from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.observe.metrics import IS_AVAILABLE

if IS_AVAILABLE:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["health_blueprint", "metrics_blueprint"]

MULTIPROCESS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # the library's own variable


def metrics_blueprint(url: str = "/metrics") -> Blueprint:
    """Return a page with all metrics in the registry of ``prometheus_client``, the application's own included.

    With ``PROMETHEUS_MULTIPROC_DIR`` the page covers all worker processes, without it the one that answers.

    Raises:
        RuntimeError: The extra ``prometheus`` is not installed.
    """
    if not IS_AVAILABLE:
        raise RuntimeError("metrics need prometheus-client: pip install 'oauth_ratelimit[prometheus]'")
    pages = Blueprint("oauth_ratelimit_metrics", __name__)

    @pages.get(url)
    def metrics() -> Response:
        _app_limiter().update_metrics()
        registry = REGISTRY
        if os.environ.get(MULTIPROCESS_DIRECTORY):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call,unused-ignore]
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return pages


def health_blueprint(url: str = "/health", *, max_lag_s: float | None = None) -> Blueprint:
    """Return a page with the state of the synchronisation in the process that answers, as JSON.

    Args:
        url: Path of the page.
        max_lag_s: Seconds since the last successful sync cycle after which the status is 503: for monitoring. Choose
            more than ``sync.interval``. With None the status is always 200 and the body has the lag: requests are
            decided without MongoDB, too, and a probe that fails when MongoDB is unreachable takes every instance out
            of service.
    """
    pages = Blueprint("oauth_ratelimit_health", __name__)

    @pages.get(url)
    def health() -> Response:
        app_limiter = _app_limiter()
        found = app_limiter.health()
        is_lagging = max_lag_s is not None and found.lag_s > max_lag_s
        response = jsonify(
            status="lagging" if is_lagging else "ok",
            instance=found.instance,
            version=package_version(),
            mode=app_limiter.settings.policies.mode.value,
            config_valid=found.rejection is None,
            config_rejected_at_s=found.rejected_at_s and round(found.rejected_at_s, 3),
            connection_problem=found.connection_problem,
            refused=found.refused,
            host_problem=found.host_problem,
            is_shared=app_limiter.is_shared,
            synchronises=not found.last_cycle.is_elsewhere,
            sync_lag_s=round(found.lag_s, 3),
            max_sync_lag_s=max_lag_s,
            in_flight_hits=found.last_cycle.in_flight_hits,
            tracked_keys=found.last_cycle.key_count,
            quarantined_keys=found.last_cycle.quarantined_count,
            last_error=found.last_error,
            last_error_ago_s=None if found.last_error_ago_s is None else round(found.last_error_ago_s, 3),
        )
        response.status_code = 503 if is_lagging else 200
        response.headers["Cache-Control"] = "no-store"
        return response

    return pages


def _app_limiter() -> AppLimiter:
    app_limiter: AppLimiter = current_app.extensions[EXTENSION]
    return app_limiter
