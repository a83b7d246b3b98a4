"""A child process that ends when this process ends, even if this one is killed."""

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# A watcher reads a pipe whose other end only this process holds. At its end of file it kills the child's process group,
# itself included. PR_SET_PDEATHSIG would fire as soon as the *thread* that started the child ends.
_WATCHED = """
exec 3<&0 </dev/null
( { read -r _ <&3 || kill -KILL -$$; } >/dev/null 2>&1 & )
exec "$@" 3<&-
"""


class Server(ABC):
    """A server that ``with`` starts and ends."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.start_and_wait()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def start_and_wait(self) -> None:
        """Start it, and return when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Kill it if it runs, and remove its files. Idempotent."""


class Child:
    """A running command in a process group of its own, so that Ctrl-C in the terminal does not reach it.

    Args:
        command: Program and arguments.
        log_path: File to which its output is appended.
        env: The whole environment; None inherits ours.
        cwd: Its working directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        """Process id of the command itself."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, None while it runs, negative if a signal ended it."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the command alone, unless it has ended."""
        self._process.send_signal(number)

    def stop(self, *, timeout_s: float = 30.0) -> int:
        """Send SIGTERM and wait; kill it when the time is up.

        Returns:
            The exit code.
        """
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.kill()

    def kill(self) -> int:
        """Kill it and everything that it started (SIGKILL). Idempotent.

        Returns:
            The exit code.
        """
        if self._process.stdin is not None and not self._process.stdin.closed:
            # The watcher is in the group, too, so no other process can have the group's number by now.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.stdin.close()
        return self._process.wait()


def is_running(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
