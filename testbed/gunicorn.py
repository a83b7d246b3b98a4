"""A gunicorn server with real worker processes."""

import contextlib
import http.client
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from oauth_ratelimit.errors import RateLimitError
from testbed.child import Child, Server, is_running
from testbed.clock import wait_until
from testbed.mongod import free_port

_HOST = "127.0.0.1"
_ROOT = Path(__file__).parents[1]
_START_TIMEOUT_S = 60.0

# A worker that is not ready would lose a signal, so each reports when it is ready. The settings are in a file, because
# older versions of gunicorn refuse unknown ones on the command line.
_CONFIG = """
import sys

control_socket_disable = True

def post_worker_init(worker):
    sys.stderr.write(f"worker {worker.pid} is ready\\n")  # in one piece: workers share the log
"""
# Workers start in a third of the time. gevent replaces parts of the library first, in each of them.
_IMPORT_ONCE = """
import apscheduler.schedulers.background, authlib.integrations.flask_oauth2, flask, pymongo, structlog
"""


class ServerFailed(RateLimitError):
    """A server did not start. The message holds the end of its log."""


class Gunicorn(Server):
    """A gunicorn master with its workers on a free port. ``with`` starts it and ends it.

    Args:
        app_import: The application, ``package.module:app`` or ``package.module:make_app()``, seen from the repository.
        worker_class: ``sync``, ``gthread`` or ``gevent``.
        workers: Number of worker processes.
        threads: Number of threads in each, for ``gthread``.
        preload: Import the application in the master, before it forks.
        env: Added to our own environment.
        extra: Further arguments of gunicorn.
        config: Python text at the end of gunicorn's configuration file.

    Attributes:
        port: The port.
        log_path: File with the output of master and workers.
    """

    def __init__(
        self,
        app_import: str,
        *,
        worker_class: str = "sync",
        workers: int = 1,
        threads: int = 1,
        preload: bool = False,
        env: Mapping[str, str] | None = None,
        extra: Sequence[str] = (),
        config: str = "",
    ) -> None:
        self.port = free_port()
        self._workers = workers
        self._directory = tempfile.TemporaryDirectory(prefix="oauth_ratelimit-gunicorn-")
        self.log_path = Path(self._directory.name) / "log"
        self._config_path = Path(self._directory.name) / "gunicorn.conf.py"
        self._config_path.write_text(
            _CONFIG + (_IMPORT_ONCE if workers > 1 and worker_class != "gevent" else "") + config
        )
        self._command = [
            *(str(Path(sys.executable).with_name("gunicorn")), app_import),
            f"--config={self._config_path}",
            f"--bind={_HOST}:{self.port}",
            f"--worker-class={worker_class}",
            f"--workers={workers}",
            f"--threads={threads}",
            *(["--preload"] if preload else []),
            *extra,
        ]
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._log = ""
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{_HOST}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the server, without a slash at the end."""
        return f"http://{self.address}"

    @property
    def log(self) -> str:
        """Output of master and workers so far; it stays readable after the end."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else self._log

    @property
    def master_pid(self) -> int:
        """Process id of the master."""
        return self._running().pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the master, None while it runs."""
        return self._running().exit_code

    def start_and_wait(self) -> None:
        """Start it, and wait until every worker is ready."""
        self.start()
        self.wait_until_ready()

    def start(self) -> None:
        """Start it without waiting until it is ready."""
        self._child = Child(self._command, log_path=self.log_path, env=self._env, cwd=_ROOT)

    def wait_until_ready(self) -> None:
        """Wait until every worker is ready and the server answers.

        Raises:
            ServerFailed: It ended instead.
        """
        wait_until(self._answers, f"gunicorn answers: {' '.join(self._command)}", _START_TIMEOUT_S)

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are ready."""
        children = Path(f"/proc/{self.master_pid}/task/{self.master_pid}/children").read_text().split()
        log = self.log
        return [int(pid) for pid in children if f"worker {pid} is ready\n" in log]

    def signal(self, number: int) -> None:
        """Send a signal to the master: HUP reloads, TTIN and TTOU add and remove a worker."""
        self._running().signal(number)

    def stop(self, *, timeout_s: float = 40.0) -> int:
        """Send SIGTERM, which lets the workers finish and run their exit handlers, and wait.

        Returns:
            The master's exit code.
        """
        return self._running().stop(timeout_s=timeout_s)

    def kill(self) -> None:
        """Kill master and workers (SIGKILL): no exit handler runs."""
        pids = self.pids()
        self._running().kill()
        wait_until(lambda: not any(map(is_running, pids)), f"workers {pids} end")

    def close(self) -> None:
        """Kill it if it runs, and remove its files. Idempotent."""
        if self._child is not None:
            self._child.kill()
        self._log = self.log
        self._directory.cleanup()

    def _running(self) -> Child:
        assert self._child is not None, "use it in a with statement"
        return self._child

    def _answers(self) -> bool:
        if self.exit_code is not None:
            raise ServerFailed(f"gunicorn ended with exit code {self.exit_code}:\n{self.log[-1500:]}")
        if len(self.pids()) < self._workers:
            return False
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=_START_TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            connection.request("GET", "/")
            connection.getresponse().read()
            return True
        return False
