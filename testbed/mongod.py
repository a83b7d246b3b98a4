"""Starts and stops a real MongoDB: one server, or a replica set, on 127.0.0.1 and in a temporary directory."""

import contextlib
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from testbed.child import Child, Server
from testbed.clock import wait_until
from testbed.mongod_program import MONGO_URI_VARIABLE, MongodUnavailable, find_mongod

_HOST = "127.0.0.1"


@contextlib.contextmanager
def running_mongodb() -> Iterator[str]:
    """Yield the URI of a MongoDB: the one in the environment, else one that runs until the end of ``with``."""
    given = os.environ.get(MONGO_URI_VARIABLE)
    if given:
        yield given
        return
    with Mongod() as mongod:
        yield mongod.uri


class Mongod(Server):
    """One server. ``with`` or ``start()`` starts it; ``close()`` or the end of ``with`` removes its data.

    Args:
        arguments: Further arguments of ``mongod``.
        allow_failpoints: Enable the server's test commands, such as ``configureFailPoint``.

    Attributes:
        memory: A directory in memory for the data of servers made from now on, which begin with 10 MB instead of 300.
            A test that creates collections then waits for no disk. None: where temporary files are, as in production.
    """

    memory: ClassVar[str | None] = None

    def __init__(self, arguments: Sequence[str] = (), *, allow_failpoints: bool = False) -> None:
        self.port = free_port()
        self._arguments = [*arguments, *(["--setParameter=enableTestCommands=1"] if allow_failpoints else [])]
        self._arguments += ["--wiredTigerEngineConfigString=log=(prealloc=false,file_max=10MB)"] if self.memory else []
        self._directory = tempfile.TemporaryDirectory(prefix="oauth_ratelimit-mongod-", dir=self.memory)
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{_HOST}:{self.port}"

    @property
    def uri(self) -> str:
        """URI of this server alone, even if it belongs to a replica set."""
        return f"mongodb://{self.address}/?directConnection=true"

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return self._child.pid if self._child is not None and self._child.exit_code is None else None

    @property
    def log(self) -> str:
        """Log of the server so far."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def start_and_wait(self) -> None:
        """See ``start``."""
        self.start()

    def start(self) -> None:
        """Start the server with its former port and data, and return when it answers.

        Raises:
            MongodUnavailable: It ended at once or does not answer.
        """
        if self.pid is not None:
            return
        if self._child is not None:
            self._child.kill()  # it ended by itself
        program = find_mongod()
        command = [str(program.path), *self._options()]
        self._child = Child(command, log_path=self._log_path, env=program.environment())
        try:
            wait_until(self._listens, "mongod answers", error=self._start_error)
        except MongodUnavailable:
            self._child.kill()
            raise

    def stop(self) -> None:
        """Shut the server down (SIGTERM) and wait until it has ended."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """Kill the server (SIGKILL), as a power failure would."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Kill the server and remove its data. Idempotent."""
        self.kill()
        self._directory.cleanup()

    def client(self, **options: Any) -> MongoClient[dict[str, Any]]:
        """Return a client of this server, which the caller closes."""
        return MongoClient(self.uri, **options)

    def hello(self) -> dict[str, Any]:
        """Return the answer to ``hello``, empty if there is none."""
        if self.pid is None:
            return {}
        try:
            with self.client(serverSelectionTimeoutMS=2000) as client:
                return dict(client.admin.command("hello"))
        except PyMongoError:
            return {}

    @property
    def _log_path(self) -> Path:
        return Path(self._directory.name) / "mongod.log"

    def _options(self) -> list[str]:
        data_dir = Path(self._directory.name) / "data"
        data_dir.mkdir(exist_ok=True)
        return [
            f"--dbpath={data_dir}",
            f"--bind_ip={_HOST}",
            f"--port={self.port}",
            "--nounixsocket",
            "--quiet",
            "--wiredTigerCacheSizeGB=0.25",
            "--setParameter=ttlMonitorSleepSecs=1",
            "--setParameter=diagnosticDataCollectionEnabled=false",
            *self._arguments,
        ]

    def _listens(self) -> bool:
        if self._child is not None and self._child.exit_code is not None:
            raise self._start_error(f"mongod ended with exit code {self._child.exit_code}")
        with contextlib.suppress(OSError), socket.create_connection((_HOST, self.port), timeout=1):
            return True
        return False

    def _start_error(self, reason: str) -> MongodUnavailable:
        return MongodUnavailable(f"{reason}: {self.log[-1000:]}")


def free_port() -> int:
    """Return a free TCP port.

    It is below the range of outgoing connections. Otherwise a client that reconnects to a stopped server could be
    given the server's port, and the server could not restart.
    """
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            return port
    raise MongodUnavailable("no free TCP port found between 20000 and 32000")
