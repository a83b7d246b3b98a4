"""A proxy between clients and MongoDB that breaks connections at chosen requests.

It reads whole messages, so a fault hits one request and no other.
"""

import contextlib
import random
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

LOSE_REPLY = "lost_reply"
CUT = "cut"
HOLD = "held"
SWALLOW = "swallowed"

_TIMEOUT_S = 10.0
_POLL_S = 0.05
_COMMAND_AT = 26  # behind the header, flags, kind of section, length of the document and type of its first field


@dataclass(eq=False)
class _Link:
    client: socket.socket
    server: socket.socket
    has_swallowed: bool = False

    def cut(self) -> None:
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class FaultyProxy(socketserver.ThreadingTCPServer):
    """Listens on 127.0.0.1 and forwards to a MongoDB server, except for planned and random faults.

    A client whose request is hit sees its connection closed. ``faults`` counts them by kind. ``uri`` is for the same
    database by way of the proxy: with ``directConnection``, without which a client of a replica set would connect to
    the servers themselves, and polling for the server's state, so that each request has one reply.
    """

    request_queue_size = 128

    def __init__(self, target_uri: str) -> None:
        target = urlsplit(target_uri)
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        port = self.server_address[1]
        self.uri = f"mongodb://127.0.0.1:{port}{target.path or '/'}?directConnection=true&serverMonitoringMode=poll"
        self.faults: Counter[str] = Counter()
        self._target = (target.hostname or "", target.port or 27017)
        self._lock = threading.Lock()  # guards the faults, links and held updates, and what is to break next
        self._rate = 0.0
        self._rng = random.Random(0)
        self._kinds: Sequence[str] = ()
        self._is_swallowing = False
        self._delay_s = 0.0
        self._planned: tuple[int, Callable[[], object]] | None = None
        self._closing = threading.Event()
        self._links: set[_Link] = set()
        self._held: list[bytes] = []
        threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True, name="faulty-proxy").start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def random_faults(self, rate: float, rng: random.Random, *, kinds: Sequence[str] = (LOSE_REPLY, CUT)) -> None:
        """Break this share of the updates from now on.

        A seed of ``rng`` repeats a run if one connection is used at a time. A held update waits for ``release``, its
        client's connection closed.
        """
        with self._lock:
            self._rate, self._rng, self._kinds = rate, rng, kinds

    def swallow(self, is_on: bool) -> None:
        """Drop all messages while connections stay open, as in a network that has lost a route.

        When it ends, connections that have lost messages are closed, because their streams are incomplete.
        """
        with self._lock:
            self._is_swallowing = is_on
            broken = [] if is_on else [link for link in self._links if link.has_swallowed]
        for link in broken:
            link.cut()

    def delay_replies(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def after(self, count: int, act: Callable[[], object]) -> None:
        """Call a function when so many further requests have come, before the last of them is passed on."""
        with self._lock:
            self._planned = count, act

    def release(self) -> None:
        """Deliver the held updates to the server in their order, although their clients are gone."""
        with self._lock:
            held, self._held = self._held, []
        for message in held:
            with socket.create_connection(self._target, _TIMEOUT_S) as server, server.makefile("rb") as replies:
                server.sendall(message)
                self.faults["released"] += bool(_read_message(replies))

    def close(self) -> None:
        """Close all connections, drop held requests, and end all threads. Idempotent."""
        self.shutdown()
        with self._lock:
            self._closing.set()
            for link in self._links:
                link.cut()
        self.server_close()

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve one connection, in a thread of its own."""
        assert isinstance(request, socket.socket)
        with contextlib.suppress(OSError), socket.create_connection(self._target, _TIMEOUT_S) as server:
            server.settimeout(None)
            for side in (request, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(request, server)
            with self._lock:
                self._links.add(link)
                if self._closing.is_set():
                    link.cut()
            try:
                self._forward(link)
            finally:
                with self._lock:
                    self._links.discard(link)

    def _forward(self, link: _Link) -> None:
        """Pass on requests and their replies until the connection ends."""
        with link.client.makefile("rb") as requests, link.server.makefile("rb") as replies:
            while request := _read_message(requests):
                self._act_if_planned()
                fault = self._fault_of_request(link, request)
                if fault in (CUT, HOLD):
                    return
                if fault == SWALLOW:
                    continue
                link.server.sendall(request)
                reply = _read_message(replies)
                if not reply or fault == LOSE_REPLY:
                    return
                self._closing.wait(self._delay_s)
                if not self._swallows_reply_of(link):
                    link.client.sendall(reply)

    def _act_if_planned(self) -> None:
        with self._lock:
            if self._planned is None:
                return
            count, act = self._planned
            self._planned = (count - 1, act) if count > 1 else None
        if count <= 1:
            act()

    def _fault_of_request(self, link: _Link, request: bytes) -> str | None:
        with self._lock:
            if self._is_swallowing:
                fault = SWALLOW
                link.has_swallowed = True
            elif not request.startswith(b"update\0", _COMMAND_AT):
                return None
            elif self._rng.random() < self._rate:
                fault = self._rng.choice(self._kinds)
            else:
                return None
            if fault == HOLD:
                self._held.append(request)
            self.faults[fault] += 1
            return fault

    def _swallows_reply_of(self, link: _Link) -> bool:
        with self._lock:
            link.has_swallowed |= self._is_swallowing
            self.faults[SWALLOW] += self._is_swallowing
            return self._is_swallowing


def _read_message(stream: BinaryIO) -> bytes:
    """Return a whole message of MongoDB's wire protocol; empty at the end of the connection."""
    length = stream.read(4)
    return length and length + stream.read(int.from_bytes(length, "little") - 4)
