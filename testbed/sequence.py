"""One client that asks again and again: one request after another, each to a random worker of gunicorn."""

import base64
import http.client
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.gunicorn import Gunicorn

APP = "testbed.sequence_app:app"
LIMITS = (3, 10, 50)
KEY_COUNT = 20
GAP_S = 0.002  # from one request to the next
SECRET = "some-secret"
WORKER_HEADER = "X-Worker"
MAX_CONNECTIONS = 500
WARM_UPS = 5  # so many times 110 requests


def client_name(limit: int, number: int) -> str:
    """Return the id of a client."""
    return f"client-{number}-of-{limit}"


class Sequence:
    """A keep-alive connection to each worker.

    Args:
        port: The server's port.
        worker_count: Number of its workers.
    """

    def __init__(self, port: int, worker_count: int) -> None:
        self._random = random.Random(23)
        by_worker: dict[str, http.client.HTTPConnection] = {}
        opened: list[http.client.HTTPConnection] = []
        while len(by_worker) < worker_count and len(opened) < MAX_CONNECTIONS:
            # At the same time, so that one worker alone does not accept them all.
            together = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(10)]
            opened += together
            for connection in together:
                connection.request("GET", "/")
            for connection in together:
                response = connection.getresponse()
                response.read()
                by_worker.setdefault(response.headers[WORKER_HEADER], connection)
        for connection in set(opened) - set(by_worker.values()):
            connection.close()
        assert len(by_worker) == worker_count, f"{len(by_worker)} of {worker_count} workers accept connections"
        self._connections = list(by_worker.values())
        for _ in range(WARM_UPS):
            self.admitted(LIMITS[-1], KEY_COUNT)  # a client that no test asks about, until all workers have connected

    def admitted(self, limit: int, number: int) -> int:
        """Return how many of a client's requests are admitted: twice its limit and ten more."""
        credentials = base64.b64encode(f"{client_name(limit, number)}:{SECRET}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/x-www-form-urlencoded"}
        count = 0
        next_s = time.monotonic()
        for _ in range(2 * limit + 10):
            # The pace of a client. The bounds in docs/guarantees.md hold for it; a faster client gets more through.
            time.sleep(max(0.0, next_s - time.monotonic()))
            next_s = time.monotonic() + GAP_S
            connection = self._random.choice(self._connections)
            connection.request("POST", "/token", "grant_type=client_credentials", headers)
            response = connection.getresponse()
            response.read()
            count += response.status == 200
        return count

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


@contextmanager
def running_sequence(mongo_uri: str | None, worker_count: int, *, host: str = "off") -> Iterator[Sequence]:
    """Yield a sequence of requests to a new server, whose workers share through a database or a file."""
    env = {"SEQUENCE_HOST": host} if mongo_uri is None else {"SEQUENCE_MONGO_URI": mongo_uri, "SEQUENCE_HOST": host}
    options = ("--keep-alive=60",)
    with Gunicorn(APP, worker_class="gthread", workers=worker_count, threads=4, env=env, extra=options) as server:
        sequence = Sequence(server.port, worker_count)
        try:
            yield sequence
        finally:
            sequence.close()
