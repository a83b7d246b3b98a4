"""Identity of a process: one that runs, or one of which another process has noted that it did."""

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def identity_of(pid: int | None = None) -> str:
    """Return the identity of a process, by default of this one: PID namespace, process id and time of its start.

    Parts that the system does not tell are empty.
    """
    pid = os.getpid() if pid is None else pid
    return f"{_namespace()} {pid} {_start_time(pid)}"


def has_ended(identity: str) -> bool:
    """Return True if a process does not run any more. One that cannot be seen from here may run."""
    namespace, pid, start_time = identity.split(" ")
    return bool(start_time) and namespace == _namespace() and _start_time(int(pid)) != start_time


def _namespace() -> str:
    with suppress(OSError):
        return f"{(_PROC / 'self/ns/pid').stat().st_ino}"
    return ""


def _start_time(pid: int) -> str:
    """Return the clock ticks from the start of the machine to that of a process, empty if there is no such process."""
    with suppress(OSError):
        found = (_PROC / f"{pid}/stat").read_text(errors="replace")
        return found.rpartition(")")[2].split()[19]  # the name in parentheses may hold anything
    return ""
