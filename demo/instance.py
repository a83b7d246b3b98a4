"""One instance of an OAuth server: gunicorn with real processes, on a port of its own."""

import contextlib
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.child import Child
from oauth_ratelimit.errors import RateLimitError
from tests.support.mongod import free_port

HOST = "127.0.0.1"

_START_TIMEOUT_S = 60.0
_POLL_S = 0.02

# A file, because gunicorn ignores there what it does not know: older ones have no control socket to switch off.
_GUNICORN_CONFIG = "control_socket_disable = True\n"


class InstanceFailed(RateLimitError):
    """A server did not start, or ended too early. The message shows the end of its log."""


class Instance:
    """A gunicorn with one worker process and some threads, from ``with`` until the end of it.

    Args:
        name: For the log file and messages.
        app: The WSGI application, ``module:name``.
        directory: Where its log goes.
        env: Added to our own environment.
        tool: The command that runs it, none by default.
    """

    def __init__(
        self, name: str, app: str, *, directory: Path, env: Mapping[str, str], tool: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.port = free_port()
        self.log_path = directory / f"{name}.log"
        config_path = directory / "gunicorn.conf.py"
        config_path.write_text(_GUNICORN_CONFIG)
        self._command = [
            *(*tool, sys.executable, "-m", "gunicorn", app),
            f"--config={config_path}",
            f"--bind={HOST}:{self.port}",
            *("--worker-class=gthread", "--workers=1", "--threads=8"),
            "--keep-alive=60",  # longer than any pause of ours, so that no connection closes under a request
        ]
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
        self._child: Child | None = None

    def __enter__(self) -> Self:
        self._child = Child(self._command, log_path=self.log_path, env=self._env)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.kill()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    def wait_until_ready(self) -> None:
        """Return when it answers.

        Raises:
            InstanceFailed: It ended, or the time is up.
        """
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self.exit_code is not None or time.monotonic() > deadline_s:
                raise InstanceFailed(f"{self.name} does not start: {self.log[-1500:]}")
            time.sleep(_POLL_S)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._child is None else self._child.exit_code

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the logged events of a name."""
        for line in self.log.splitlines():
            if line.startswith("{") and f'"{name}"' in line:
                event = json.loads(line)
                if event["event"] == name:
                    yield event

    def ask_to_stop(self) -> None:
        """Send SIGTERM: requests are finished, counters flushed, then it ends."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM)

    def wait_for_end(self) -> None:
        """Return when it has ended after ``ask_to_stop``."""
        if self._child is not None:
            self._child.stop()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_START_TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            connection.request("GET", "/jwks")
            return connection.getresponse().status == http.client.OK
        return False


def stop_all(instances: Sequence[Instance]) -> None:
    """Stop several at the same time, in good order."""
    for instance in instances:
        instance.ask_to_stop()
    for instance in instances:
        instance.wait_for_end()
