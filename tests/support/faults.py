"""A proxy between clients and MongoDB that breaks connections at chosen requests.

It reads whole messages, so a fault hits one request and no other.
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

from tests.support.wire import Message, read_message

LOSE_REPLY = "lost_reply"
CUT = "cut"
HOLD = "held"

_TIMEOUT_S = 10.0


class FaultPlan:
    """Faults of the next requests: planned ones by command, and random ones. Not thread-safe."""

    def __init__(self) -> None:
        self._planned: list[tuple[str, str]] = []  # command, fault
        self._rate = 0.0
        self._rng = random.Random(0)
        self._kinds: Sequence[str] = ()
        self._commands: Collection[str] = ()

    def add(self, fault: str, *, command: str, count: int) -> None:
        """Break the next requests with this command."""
        self._planned += [(command, fault)] * count

    def set_random(self, rate: float, rng: random.Random, *, kinds: Sequence[str], commands: Collection[str]) -> None:
        """Break this share of the requests with one of these commands."""
        self._rate, self._rng, self._kinds, self._commands = rate, rng, kinds, commands

    def next_fault(self, command: str) -> str | None:
        """Return the fault of a request, None to let it pass."""
        for planned_command, fault in self._planned:
            if planned_command == command:
                self._planned.remove((command, fault))
                return fault
        if command in self._commands and self._rng.random() < self._rate:
            return self._rng.choice(self._kinds)
        return None


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
        self._plan = FaultPlan()
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

    def lose_next_reply(self, command: str = "update", *, count: int = 1) -> None:
        """Let the server execute the next such command, then close the connection instead of delivering the reply."""
        with self._lock:
            self._plan.add(LOSE_REPLY, command=command, count=count)

    def cut_next(self, command: str = "update", *, count: int = 1) -> None:
        """Close the connection instead of forwarding the next such command."""
        with self._lock:
            self._plan.add(CUT, command=command, count=count)

    def hold_next(self, command: str = "update", *, count: int = 1) -> None:
        """Close the client's connection at the next such command, and keep the command for ``release``."""
        with self._lock:
            self._plan.add(HOLD, command=command, count=count)

    def random_faults(
        self,
        rate: float,
        rng: random.Random,
        *,
        kinds: Sequence[str] = (LOSE_REPLY, CUT),
        commands: Collection[str] = ("update",),
    ) -> None:
        """Break this share of the requests from now on. Planned faults come first.

        Args:
            rate: Share of the requests; 0 breaks none.
            rng: Chooses requests and faults. A seed repeats a run if one connection is used at a time.
            kinds: The faults. Held requests wait for ``release``.
            commands: The commands to break.
        """
        with self._lock:
            self._plan.set_random(rate, rng, kinds=kinds, commands=commands)

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

    def release(self) -> list[dict[str, Any]]:
        """Deliver the held requests to the server in their order, although their clients are gone.

        Returns:
            The server's answers. A request whose connection to the server ended has none.
        """
        with self._lock:
            held, self._held = self._held, []
        answers = [answer for answer in map(self._deliver_late, held) if answer is not None]
        with self._lock:
            self.faults["released"] += len(answers)
        return answers

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
            link.late_answers.put(None)

    def _pass_request(self, link: _Link, message: Message) -> bool:
        """Apply the fault of a request, if any, and return True if the connection stays open."""
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
            delay_s = self._delay_s
        if delay_s:
            self._closing.wait(delay_s)
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
