"""The end of a process: a deadline for the parts that finish their work, and how others wait for it. A steady clock."""

import threading
import time
from collections.abc import Callable

# Of the seven seconds that the documentation promises: the driver may end its last call half a second late, and take
# two seconds to stop its threads.
ENDING_S = 4.5


class Deadline:
    """A point in time up to which work may go on."""

    def __init__(self, seconds: float = ENDING_S, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._end_s = monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._end_s - self._monotonic())

    @property
    def is_over(self) -> bool:
        return not self.remaining_s

    def part(self, share: float) -> "Deadline":
        """Return a deadline after a share of the time that is left."""
        return Deadline(self.remaining_s * share, monotonic=self._monotonic)


_ending_thread: int | None = None  # that finishes all work, before the interpreter ends


def begin_end() -> None:
    """Let all other threads wait in ``wait_for_end`` from now on."""
    global _ending_thread
    _ending_thread = threading.get_ident()


def wait_for_end() -> None:
    """Wait until the process has ended, if it is about to: nobody would send what a request counts by now.

    Most servers have ended their requests before. A worker of gunicorn with gevent goes on if its master was killed.
    Another exit handler may wait for this thread, so it does not wait for ever.
    """
    if _ending_thread not in (None, threading.get_ident()):
        time.sleep(2 * ENDING_S)


def uptime_s() -> float:
    """Return the time of a clock that is never set, and that goes on while the machine sleeps where it can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
