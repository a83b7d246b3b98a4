"""A clock that is never set."""

import time


def uptime_s() -> float:
    """Return the time of a clock that is never set, and that goes on while the machine sleeps where it can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
