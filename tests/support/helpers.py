"""Small helpers for tests: statuses of answers, ports, MongoDB URIs."""

import os
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

BEFORE_TRAFFIC = """
from oauth_ratelimit import OAuthRateLimit

say_ready = post_worker_init

def post_worker_init(worker):
    OAuthRateLimit.start(worker.wsgi)
    say_ready(worker)
"""
"""Configuration of gunicorn whose workers know overrides and counts before they take traffic."""

try:
    os.open("\0", os.O_RDONLY)
except ValueError as exc:
    NUL_PROBLEM = str(exc)  # in the words of this version of Python
QUOTA_HEADERS = ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


def statuses(send: Callable[[], Any], count: int) -> list[int]:
    return [send().status_code for _ in range(count)]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def with_database(uri: str, name: str) -> str:
    return urlunsplit(urlsplit(uri)._replace(path=f"/{name}"))


def patient(uri: str) -> str:
    """Return the MongoDB URI with long timeouts, for a busy machine."""
    parts = urlsplit(uri)
    waits = "&".join(f"{name}TimeoutMS=60000" for name in ("connect", "serverSelection", "socket"))
    return urlunsplit(parts._replace(query=f"{parts.query}&{waits}".lstrip("&")))
