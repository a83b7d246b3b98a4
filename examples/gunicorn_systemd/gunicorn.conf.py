"""Settings of gunicorn for the server."""

import os

from oauth_ratelimit import OAuthRateLimit

wsgi_app = "myauth:create_app()"
bind = os.environ.get("MYAUTH_BIND", "127.0.0.1:8000")
workers = int(os.environ.get("MYAUTH_WORKERS", "4"))
worker_class = "gthread"
threads = 4
graceful_timeout = 30  # seconds; each worker then has a few more to send what it has counted
max_requests = 100_000
max_requests_jitter = 10_000  # so that workers do not all begin anew at once


def post_worker_init(worker):  # type: ignore[no-untyped-def]
    """Let a worker know the counts before it takes traffic."""
    OAuthRateLimit.start(worker.wsgi)


if "PROMETHEUS_MULTIPROC_DIR" in os.environ:

    def child_exit(server, worker):  # type: ignore[no-untyped-def]
        """Forget the gauges of a worker that has ended."""
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(worker.pid)
