"""A deadline that several parts share, such as those that finish their work when a process ends, and a steady clock."""

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


def uptime_s() -> float:
    """Return the time of a clock that is never set, and that goes on while the machine sleeps where it can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
