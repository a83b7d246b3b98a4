"""A clock that its owner moves, and waiting by the real one."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


class Clock:
    """A clock that is moved by hand. Callable like ``time.time``.

    It starts in the future, so that MongoDB does not expire what was just written.
    """

    def __init__(self, now_s: float = 2_000_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Move the clock."""
        self.now_s += duration_s


def wait_until(
    predicate: Callable[[], Seen | None],
    what: str,
    timeout_s: float = 60.0,
    *,
    error: Callable[[str], Exception] = AssertionError,
) -> Seen:
    """Return the predicate's value as soon as it is true; fail when the time is up.

    Args:
        predicate: Called every few milliseconds. It raises if waiting is in vain.
        what: The awaited state, for the message.
        timeout_s: Seconds of real time, enough for a busy machine.
        error: Returns the exception to raise when the time is up.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() > deadline_s:
            raise error(f"not within {timeout_s:g} s: {what}")
        # The state changes in another thread or process, which cannot wake this one.
        time.sleep(0.005)
