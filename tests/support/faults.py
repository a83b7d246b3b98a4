"""A proxy between clients and MongoDB that breaks connections at chosen requests.

It reads whole messages, so a fault hits one request and no other.
"""

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import bson

LOSE_REPLY = "lost_reply"
CUT = "cut"
HOLD = "held"

_TIMEOUT_S = 10.0
_HEADER = struct.Struct("<iiii")  # length with the header, request id, response to, kind
_LENGTH = struct.Struct("<i")
_KIND_QUERY = 2004  # old; still used for the first message of a connection
_KIND_MSG = 2013


@dataclass(frozen=True)
class Message:
    """A message of MongoDB's wire protocol."""

    data: bytes

    @property
    def request_id(self) -> int:
        """Number that the sender has chosen."""
        return int(_HEADER.unpack_from(self.data)[1])

    @property
    def response_to(self) -> int:
        """Number of the request that it answers."""
        return int(_HEADER.unpack_from(self.data)[2])

    @property
    def command(self) -> str:
        """Name of the command in a request; empty for an unknown kind of message."""
        kind = _HEADER.unpack_from(self.data)[3]
        if kind == _KIND_QUERY:
            end_of_name = self.data.index(b"\0", _HEADER.size + 4)
            return self._first_name_at(end_of_name + 1 + 8)
        if kind != _KIND_MSG:
            return ""
        start = _HEADER.size + 4
        while self.data[start] != 0:  # a section of statements
            start += 1 + self._length_at(start + 1)
        return self._first_name_at(start + 1)

    def _first_name_at(self, start: int) -> str:
        return next(iter(bson.decode(self.data[start : start + self._length_at(start)])), "")

    def _length_at(self, start: int) -> int:
        return int(_LENGTH.unpack_from(self.data, start)[0])


def read_message(source: socket.socket) -> Message | None:
    """Return the next message, None at the end of the connection."""
    header = _read_exactly(source, _HEADER.size)
    if header is None:
        return None
    body = _read_exactly(source, _HEADER.unpack(header)[0] - _HEADER.size)
    return None if body is None else Message(header + body)


def _read_exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


@dataclass(eq=False)
class _Link:
    """One connection through the proxy. One thread reads the client's messages, one the server's."""

    client: socket.socket
    server: socket.socket
    replies: threading.Thread | None = None
    doomed_request_ids: set[int] = field(default_factory=set)
    has_swallowed: bool = False
    held: Message | None = None
    late_answers: "SimpleQueue[bool]" = field(default_factory=SimpleQueue)

    def cut(self) -> None:
        _shut_down(self.client)
        _shut_down(self.server)


class FaultyProxy:
    """Listens on 127.0.0.1 and forwards to a MongoDB server, except for planned and random faults.

    A client whose request is hit sees its connection closed. Connect with ``uri``: without ``directConnection`` a
    client of a replica set would connect to the servers themselves.

    Args:
        target_host: The server's host.
        target_port: The server's port.

    Attributes:
        faults: Number of faults by kind: ``lost_reply``, ``cut``, ``held``, ``released``, ``swallowed``.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.faults: Counter[str] = Counter()
        self._target = (target_host, target_port)
        self._lock = threading.Lock()  # guards faults and everything below but the listener
        self._hold_count = 0  # updates to hold
        self._rate = 0.0
        self._rng = random.Random(0)
        self._kinds: Sequence[str] = ()
        self._swallows_requests = False
        self._swallows_replies = False
        self._delay_s = 0.0
        self._is_closed = False
        self._closing = threading.Event()
        self._links: set[_Link] = set()
        self._held: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """URI of the proxy. The driver polls the server's state, because its streaming takes half a second to end."""
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true&serverMonitoringMode=poll"

    def hold_next(self) -> None:
        """Close the client's connection at the next update, and keep the command for ``release``."""
        with self._lock:
            self._hold_count += 1

    def random_faults(self, rate: float, rng: random.Random, *, kinds: Sequence[str] = (LOSE_REPLY, CUT)) -> None:
        """Break this share of the updates from now on.

        Args:
            rate: Share of the updates; 0 breaks none.
            rng: Chooses updates and faults. A seed repeats a run if one connection is used at a time.
            kinds: The faults. Held updates wait for ``release``.
        """
        with self._lock:
            self._rate, self._rng, self._kinds = rate, rng, kinds

    def swallow(self, is_on: bool, *, requests: bool = True) -> None:
        """Drop all messages while connections stay open, as in a network that has lost a route.

        When it ends, connections that have lost messages are closed, because their streams are incomplete.

        Args:
            is_on: Whether to drop.
            requests: Drop the clients' messages, too; otherwise the server executes them and only replies are dropped.
        """
        with self._lock:
            self._swallows_replies = is_on
            self._swallows_requests = is_on and requests
            broken = [] if is_on else [link for link in self._links if link.has_swallowed]
        for link in broken:
            link.cut()

    def delay_replies(self, delay_s: float) -> None:
        """Deliver each reply so much later from now on."""
        with self._lock:
            self._delay_s = delay_s

    def release(self) -> None:
        """Deliver the held updates to the server in their order, although their clients are gone."""
        with self._lock:
            held, self._held = self._held, []
        for link in held:
            self._deliver_late(link)

    def close(self) -> None:
        """Close all connections, drop held requests, and end all threads. Idempotent."""
        self._closing.set()
        with self._lock:
            self._is_closed = True
            links, held, threads = list(self._links), self._held, self._threads
            self._held, self._threads = [], []
        _shut_down(self._listener)
        for link in links:
            link.cut()
        for link in held:
            self._end(link)
        for thread in threads:
            thread.join(_TIMEOUT_S)
        self._listener.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name=f"proxy-{target.__name__}")
        with self._lock:
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._target, timeout=_TIMEOUT_S)
            except OSError:
                return  # no server: the client finds its connection closed
            server.settimeout(None)
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
                if self._is_closed:
                    link.cut()
            link.replies = self._start(self._pump, server, self._pass_reply, link)
            self._pump(client, self._pass_request, link)
            if link.held is None:
                self._end(link)

    def _pump(self, source: socket.socket, pass_on: Callable[[_Link, Message], bool], link: _Link) -> None:
        with contextlib.suppress(OSError):
            while (message := read_message(source)) is not None and pass_on(link, message):
                pass
        if source is link.server or link.held is None:
            link.cut()
            link.late_answers.put(False)

    def _pass_request(self, link: _Link, message: Message) -> bool:
        """Apply the fault of a request, if any, and return True if the connection stays open."""
        with self._lock:
            if self._swallows_requests:
                return self._swallowed(link)
            fault = self._next_fault() if message.command == "update" else None
            if fault == LOSE_REPLY:
                link.doomed_request_ids.add(message.request_id)
            elif fault is not None:
                self.faults[fault] += 1
            if fault == HOLD:
                link.held = message
                self._held.append(link)
        if fault in (CUT, HOLD):
            _shut_down(link.client)
            return False
        link.server.sendall(message.data)
        return True

    def _next_fault(self) -> str | None:
        if self._hold_count:
            self._hold_count -= 1
            return HOLD
        return self._rng.choice(self._kinds) if self._rng.random() < self._rate else None

    def _pass_reply(self, link: _Link, message: Message) -> bool:
        if link.held is not None:
            if message.response_to == link.held.request_id:
                link.late_answers.put(True)
            return True
        with self._lock:
            if message.response_to in link.doomed_request_ids:
                self.faults[LOSE_REPLY] += 1
                return False
            if self._swallows_replies:
                return self._swallowed(link)
            delay_s = self._delay_s
        if delay_s:
            self._closing.wait(delay_s)
        link.client.sendall(message.data)
        return True

    def _swallowed(self, link: _Link) -> bool:
        self.faults["swallowed"] += 1
        link.has_swallowed = True
        return True

    def _deliver_late(self, link: _Link) -> None:
        assert link.held is not None
        with contextlib.suppress(OSError):
            link.server.sendall(link.held.data)
        is_answered = link.late_answers.get(timeout=_TIMEOUT_S)
        self._end(link)
        with self._lock:
            self.faults["released"] += is_answered

    def _end(self, link: _Link) -> None:
        link.cut()
        if link.replies is not None:
            link.replies.join(_TIMEOUT_S)
        link.server.close()
        with self._lock:
            self._links.discard(link)


def _shut_down(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
