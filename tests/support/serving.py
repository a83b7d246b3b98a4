"""A WSGI application behind real HTTP, for as long as a test needs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

POLL_S = 0.02  # how soon a server notices that it is to end


class _QuietHandler(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep requests out of the test's output."""


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    """Serve the application on a free port of the loopback interface, one thread per request.

    Yields:
        The base URL, without a slash at its end.
    """
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="test-server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
