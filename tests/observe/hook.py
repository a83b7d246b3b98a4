"""
A webhook that a test listens at, over real HTTP.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Message:
    """
    What was posted.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """
        The body's content.
        """
        return json.loads(self.body)

    @property
    def client_id(self) -> str:
        """
        Whose digest it is.
        """
        return str(self.json["client_id"])


@dataclass
class Hook:
    """
    Remembers what it was sent, and answers as the test wants.

    Args:
        url: Its address.

        answers: The statuses of the next answers; 204 when there are no more.

        received: All messages, those that were not taken included.

        taken: Those answered with success.

        pause: Awaited before an answer, if the test sets it.
    """

    url: str = ""
    answers: list[int] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    taken: list[Message] = field(default_factory=list)
    pause: threading.Event | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def times_taken(self) -> dict[str, int]:
        """
        Return how often each client's digest was taken.
        """
        with self.lock:
            return dict(Counter(message.client_id for message in self.taken))


@contextmanager
def listening() -> Iterator[Hook]:
    """
    Serve a webhook on a free port of the loopback interface.
    """
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            message = Message(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            with hook.lock:
                hook.received.append(message)
                status = hook.answers.pop(0) if hook.answers else 204
                if 200 <= status < 300:
                    hook.taken.append(message)
            if hook.pause is not None:
                hook.pause.wait(10.0)
            if status == 0:
                return  # hang up without a word
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{hook.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="webhook")
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield hook
    finally:
        if hook.pause is not None:
            hook.pause.set()
        server.shutdown()
        thread.join()
        server.server_close()
