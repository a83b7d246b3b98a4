"""The background traffic of a demo server."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

import pytest

from demo import replay
from demo.database import BATCH_JOBS, WEB_SHOP
from demo.replay import BackgroundTraffic
from tests.support.helpers import wait_until


class Server(NamedTuple):
    """A server that requests are sent to."""

    name: str
    address: str


@contextmanager
def server(statuses: Iterator[int]) -> Iterator[tuple[Any, list[int]]]:
    """Yield a server that answers token requests with these statuses, then 200, and the list of its answers."""
    answered: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = next(statuses, 200)
            answered.append(status)  # before the client can know of it
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        try:
            yield Server("server", f"127.0.0.1:{http.server_address[1]}"), answered
        finally:
            http.shutdown()
            thread.join()


def test_traffic_continues_after_a_failed_request_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(replay, "BACKGROUND_SPEED", 10_000.0)
    with server(iter((200, 500, 429))) as (instance, answered):
        with BackgroundTraffic().start(instance):
            wait_until(lambda: len(answered) > 5, "requests after the failed one")
        count = len(answered)
        assert [200, 500, 429, 200] == answered[:4]
    assert count == len(answered)


def test_traffic_leaves_clients_out() -> None:
    traffic = BackgroundTraffic(without=(BATCH_JOBS, WEB_SHOP))

    assert not {client.client_id for client in traffic.clients} & {BATCH_JOBS.client_id, WEB_SHOP.client_id}
    assert {"news-reader", "travel-portal", "partner-bank"} < {client.client_id for client in traffic.clients}
    assert traffic.users
