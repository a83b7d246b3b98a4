"""Bell: wakes the thread that synchronises urgent rows, from any process of a host."""

import os
import select
import stat
import threading
import weakref
from contextlib import suppress
from io import FileIO

from oauth_ratelimit.counters.host_place import BELL

BELL_SIZE = 4096  # bytes: more rings at once are one


class Bell:
    """Bell of a process, with one listener; or that of a file, which all processes ring that count in it.

    Raises ``OSError`` if that of a file cannot be used.
    """

    def __init__(self, path: str | None = None) -> None:
        self._silent = threading.Lock()  # released when the bell rings
        self._silent.acquire()
        # Not a descriptor: another thread may close it meanwhile, and its number may become that of another file.
        self._pipe: FileIO | None = None
        if path is not None:
            self._pipe = FileIO(path + BELL, "r+", opener=_open_bell)
            weakref.finalize(self, self._pipe.close)

    def ring(self) -> None:
        """End the waiting. Never waits."""
        # Not an Event: one that Ctrl-C interrupts leaves a lock of its own behind.
        with suppress(RuntimeError):  # it has rung already
            self._silent.release()
        if self._pipe is not None:
            with suppress(OSError, ValueError):  # nobody listens to one that is closed
                self._pipe.write(b".")  # does nothing if it is full, so that it has rung already

    def clear(self) -> None:
        """Forget that it has rung."""
        self._silent.acquire(blocking=False)
        if self._pipe is not None:
            with suppress(OSError, ValueError):
                self._pipe.read(BELL_SIZE)

    def wait(self, timeout_s: float | None, *, hears_others: bool) -> None:
        """Block until the bell rings or the time is over. Without ``hears_others`` other processes do not matter."""
        if self._pipe is None or self._pipe.closed or not hears_others:
            self._silent.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
            return
        poll = select.poll()
        with suppress(ValueError):  # it is closed by now
            poll.register(self._pipe, select.POLLIN)
            poll.poll(None if timeout_s is None else 1000 * timeout_s)

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()


def _open_bell(path: str, _: int) -> int:
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # For reading and writing, so that it never waits for another process, and never reads an end.
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(f"{path} is not a pipe of this user")
    return descriptor
