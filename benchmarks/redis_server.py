"""The redis-server of the benchmarks."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial

import redis

from testbed.clock import wait_until
from testbed.mongod import free_port


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Run Debian's redis-server, without saving anything, and yield its address."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-redis-") as directory:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory, "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            with redis.Redis(port=port) as client:
                wait_until(partial(_answers, client), "redis-server answers")
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def _answers(client: "redis.Redis") -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False
