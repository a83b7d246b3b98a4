"""A proxy between clients and MongoDB that breaks connections at chosen moments.

It reads whole messages, so a fault hits one request and not some byte of it.
"""

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from tests.support.fault_plan import CUT, HOLD, LOSE_REPLY, FaultPlan
from tests.support.wire import Message, read_message

_TIMEOUT_S = 10.0


@dataclass(eq=False)
class _Link:
    """One connection through the proxy. One thread reads the client's messages, one the server's."""

    client: socket.socket
    server: socket.socket
    replies: threading.Thread | None = None
    doomed_request_ids: set[int] = field(default_factory=set)
    has_swallowed: bool = False
    held: Message | None = None
    late_answers: "SimpleQueue[dict[str, Any] | None]" = field(default_factory=SimpleQueue)

    def cut(self) -> None:
        _shut_down(self.client)
        _shut_down(self.server)


class FaultyProxy:
    """Listens on 127.0.0.1 and passes everything on to a MongoDB server, until it is told to break something.

    A client whose request is hit sees its connection closed. Connect with ``uri``: without ``directConnection`` a
    client of a replica set would learn the servers' own addresses and go round the proxy.

    Args:
        target_host: The server's host.
        target_port: The server's port.

    Attributes:
        faults: How many faults there were, by kind: ``lost_reply``, ``cut``, ``held``, ``released``, ``swallowed``.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.faults: Counter[str] = Counter()
        self._target = (target_host, target_port)
        self._lock = threading.Lock()  # guards faults and everything below but the listener
        self._plan = FaultPlan()
        self._swallows_requests = False
        self._swallows_replies = False
        self._is_closed = False
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
        """The URI to connect to. The driver polls the server's state, as its streaming takes half a second to end."""
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true&serverMonitoringMode=poll"

    def lose_next_reply(self, command: str = "update", *, count: int = 1) -> None:
        """Let the server do the next such command, then close the connection instead of delivering its reply."""
        with self._lock:
            self._plan.order(LOSE_REPLY, command=command, count=count)

    def cut_next(self, command: str = "update", *, count: int = 1) -> None:
        """Close the connection instead of passing the next such command on."""
        with self._lock:
            self._plan.order(CUT, command=command, count=count)

    def hold_next(self, command: str = "update", *, count: int = 1) -> None:
        """Close the client's connection at the next such command, and keep the command for ``release``."""
        with self._lock:
            self._plan.order(HOLD, command=command, count=count)

    def random_faults(
        self,
        rate: float,
        rng: random.Random,
        *,
        kinds: Sequence[str] = (LOSE_REPLY, CUT),
        commands: Collection[str] = ("update",),
    ) -> None:
        """From now on break this share of the requests. What is planned for a request comes first.

        Args:
            rate: Share of the requests; 0 switches it off.
            rng: Decides which requests, and how. A seed repeats a run as long as one connection is used at a time.
            kinds: The faults to choose from. Requests that are held wait for ``release``.
            commands: The commands to break.
        """
        with self._lock:
            self._plan.leave_to_chance(rate, rng, kinds=kinds, commands=commands)

    def swallow(self, is_on: bool, *, requests: bool = True) -> None:
        """Drop all messages while connections stay open, as in a network that has lost a route.

        Switched off, the connections that have lost something are closed: there are holes in their streams.

        Args:
            is_on: Whether to drop.
            requests: Drop what the clients send, too; otherwise the server does what it is told and only its replies
                are dropped.
        """
        with self._lock:
            self._swallows_replies = is_on
            self._swallows_requests = is_on and requests
            broken = [] if is_on else [link for link in self._links if link.has_swallowed]
        for link in broken:
            link.cut()

    def release(self) -> list[dict[str, Any]]:
        """Deliver the held requests to the server, in the order in which they came, though their clients are long gone.

        Returns:
            The server's answers; with them it has applied what it will ever apply. A request whose server connection
            ended meanwhile has none.
        """
        with self._lock:
            held, self._held = self._held, []
        answers = [answer for answer in map(self._deliver_late, held) if answer is not None]
        with self._lock:
            self.faults["released"] += len(answers)
        return answers

    def close(self) -> None:
        """Close all connections, drop what is held, and end all threads. Idempotent."""
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
            link.late_answers.put(None)

    def _pass_request(self, link: _Link, message: Message) -> bool:
        """Do to a request what is planned for it. Return whether the connection goes on."""
        with self._lock:
            if self._swallows_requests:
                return self._swallowed(link)
            fault = self._plan.next_fault(message.command)
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

    def _pass_reply(self, link: _Link, message: Message) -> bool:
        if link.held is not None:
            if message.response_to == link.held.request_id:
                link.late_answers.put(message.document)
            return True
        with self._lock:
            if message.response_to in link.doomed_request_ids:
                self.faults[LOSE_REPLY] += 1
                return False
            if self._swallows_replies:
                return self._swallowed(link)
        link.client.sendall(message.data)
        return True

    def _swallowed(self, link: _Link) -> bool:
        self.faults["swallowed"] += 1
        link.has_swallowed = True
        return True

    def _deliver_late(self, link: _Link) -> dict[str, Any] | None:
        assert link.held is not None
        with contextlib.suppress(OSError):
            link.server.sendall(link.held.data)
        answer = link.late_answers.get(timeout=_TIMEOUT_S)
        self._end(link)
        return answer

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
