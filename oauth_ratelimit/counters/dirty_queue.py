"""Queue of keys that requests have changed since the last sync cycle."""

import threading
from collections import deque

from oauth_ratelimit.counters.key_state import KeyState

CRITICAL_RATIO = 1 / 2  # of a limit


class DirtyQueue:
    """Dirty and urgent keys. Requests append and the cycle takes, without waiting for each other.

    An urgent key wakes the thread that waits for one. A critical key is an urgent one that has used half of a limit.

    Args:
        is_shared: Whether there is a store; without one no key is urgent.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._dirty: deque[KeyState] = deque()
        self._urgent: deque[KeyState] = deque()
        self._has_urgent = threading.Event()
        self._has_critical = threading.Event()

    @property
    def has_urgent(self) -> bool:
        """True if a key should be synchronised before the next cycle."""
        return bool(self._urgent)

    def mark_dirty(self, state: KeyState) -> None:
        """Have the next cycle synchronise a key. The client's lock is held."""
        if not state.is_dirty:
            state.is_dirty = True
            self._dirty.append(state)

    def mark_urgent(self, state: KeyState) -> None:
        """Have a key synchronised at once, in the background."""
        if self._is_shared and not state.is_urgent:
            state.is_urgent = True
            self._urgent.append(state)
            if not self._has_urgent.is_set():  # faster than to set it again
                self._has_urgent.set()
            if not self._has_critical.is_set() and state.has_used(CRITICAL_RATIO):
                self._has_critical.set()

    def wait_for_urgent(self, timeout_s: float | None) -> None:
        """Wait until a key is urgent, ``wake`` is called or the time is over."""
        self._has_urgent.wait(timeout_s)

    def wait_for_critical(self, timeout_s: float) -> None:
        """Wait until a key is critical, ``wake`` is called or the time is over."""
        self._has_critical.wait(timeout_s)

    def wake_for_urgent(self) -> None:
        """End the waiting for an urgent key, so that the thread waits anew for the time that is due now."""
        self._has_urgent.set()

    def wake(self) -> None:
        """End all waiting, until the urgent keys are taken."""
        self._has_urgent.set()
        self._has_critical.set()

    def take_dirty(self) -> list[KeyState]:
        """Take the dirty keys, except those that were synchronised since."""
        return [state for state in _drained(self._dirty) if state.is_dirty]

    def take_urgent(self) -> list[KeyState]:
        """Take the urgent keys."""
        self._has_urgent.clear()  # first, so that a key that comes meanwhile wakes the thread again
        self._has_critical.clear()
        states = _drained(self._urgent)
        for state in states:
            state.is_urgent = False
        return states


def _drained(queue: deque[KeyState]) -> list[KeyState]:
    return [queue.popleft() for _ in range(len(queue))]
