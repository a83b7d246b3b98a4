"""The recorded traffic that a demo server is played."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

import pytest

from demo import traffic as module
from demo.seeds import BATCH_JOBS, WEB_SHOP
from demo.traffic import Traffic
from tests.support.helpers import wait_until


class Server(NamedTuple):
    """What there is to know about a server, to send requests to it."""

    name: str
    port: int


@contextmanager
def server(statuses: Iterator[int]) -> Iterator[tuple[Any, list[int]]]:
    """A server that answers token requests with some statuses, and what it has answered."""
    answered: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = next(statuses, 200)
            answered.append(status)  # before the client can know of it
            self.send_response(status)
            self.send_header("RateLimit", '"client";r=1;t=1')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        try:
            yield Server("server", http.server_address[1]), answered
        finally:
            http.shutdown()
            thread.join()


def test_traffic_survives_a_bad_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients go on asking when a server has refused or failed, until they are told to stop."""
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "SPEED", 10_000.0)
    with server(iter((200, 500, 429))) as (instance, answered):
        with Traffic().start(instance):
            wait_until(lambda: len(answered) > 5, "requests after the failed one")
        count = len(answered)
        assert [200, 500, 429, 200] == answered[:4]
    assert count == len(answered)


def test_clients_that_somebody_tries_for_himself() -> None:
    """They have no part in it, and there is a user of each of the other applications."""
    traffic = Traffic(without=(BATCH_JOBS, WEB_SHOP))

    assert not {client.client_id for client in traffic.clients} & {BATCH_JOBS.client_id, WEB_SHOP.client_id}
    assert {"news-reader", "travel-portal", "partner-bank"} < {client.client_id for client in traffic.clients}
    assert traffic.users
