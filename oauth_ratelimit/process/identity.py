"""Identity of a process: one that runs, or one of which another process has noted that it did."""

import os
from contextlib import suppress
from pathlib import Path

from oauth_ratelimit.process.fork import call_in_child

_PROC = Path("/proc")


def identity_of(pid: int | None = None) -> str:
    """Return the identity of a process, by default of this one: PID namespace, process id and time of its start.

    Parts that the system does not tell are empty.
    """
    pid = os.getpid() if pid is None else pid
    return f"{_namespace()} {pid} {_start_time(pid)}"


def begun_s() -> float | None:
    """Return the time at which this process was started, in seconds since the start of the machine; None if unknown."""
    ticks = _start_time(os.getpid())
    return int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def has_ended(identity: str, *, or_is_stopped: bool = False) -> bool:
    """Return True if a process does not run any more. One that cannot be seen from here may run.

    With ``or_is_stopped``, also if it was stopped by a signal.
    """
    namespace, pid, start_time = identity.split(" ")
    if not start_time or namespace != _namespace():
        return False
    try:
        state, found = _state_of(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # such as without a free descriptor
        return False
    return found != start_time or state in ("Z", "X") or (or_is_stopped and state == "T")


def _namespace() -> str:
    with suppress(OSError):
        return f"{(_PROC / 'self/ns/pid').stat().st_ino}"
    return ""


def _start_time(pid: int) -> str:
    with suppress(OSError):
        return _state_of(pid)[1]
    return ""


def _state_of(pid: int) -> tuple[str, str]:
    """Return the letter of a process's state, and the clock ticks from the start of the machine to that of the process.

    Raises ``OSError``.
    """
    found = (_PROC / f"{pid}/stat").read_text(errors="replace")
    fields = found.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return fields[0], fields[19]


class Parent:
    """Parent of this process, noted while it runs: it may be killed, and process 1 takes its place."""

    def __init__(self) -> None:
        self.note()
        call_in_child(self.note)

    def note(self) -> None:
        self.pid = os.getppid()
        self.identity = identity_of(self.pid)


PARENT = Parent()
