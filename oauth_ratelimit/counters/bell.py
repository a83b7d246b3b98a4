"""Bell that ends the waiting of a thread, of this process or of another one that counts in the same file."""

import os
import select
import stat
import threading
from contextlib import suppress

from oauth_ratelimit.counters.host_place import BELL

_READ_SIZE = 4096


class Bell:
    """Bell of a process, with one listener; or that of a file, which all processes ring that count in it.

    Raises ``OSError`` if that of a file cannot be used.
    """

    def __init__(self, path: str | None = None) -> None:
        self._silent = threading.Lock()  # released when the bell rings
        self._silent.acquire()
        self._descriptor: int | None = None
        if path is not None:
            self._descriptor = _open(path + BELL)

    def ring(self) -> None:
        """End the waiting. Never waits."""
        # Not an Event: one that Ctrl-C interrupts leaves a lock of its own behind.
        with suppress(RuntimeError):  # it has rung already
            self._silent.release()
        if self._descriptor is not None:
            with suppress(OSError):  # it is full, so it has rung already
                os.write(self._descriptor, b".")

    def silence(self) -> None:
        """Forget that it has rung."""
        self._silent.acquire(blocking=False)
        if self._descriptor is not None:
            with suppress(OSError):  # it is empty
                os.read(self._descriptor, _READ_SIZE)

    def wait(self, timeout_s: float | None, *, hears_others: bool) -> None:
        """Block until the bell rings or the time is over. Without ``hears_others`` other processes do not matter."""
        if self._descriptor is None or not hears_others:
            self._silent.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
            return
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(None if timeout_s is None else 1000 * timeout_s)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open(path: str) -> int:
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # For reading and writing, so that it never waits for another process, and never reads an end.
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(f"{path} is not a pipe of this user")
    return descriptor
