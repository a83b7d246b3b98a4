"""Queue of keys that requests have changed since the last sync cycle."""

from collections import deque

from oauth_ratelimit.counters.key_state import KeyState


class DirtyQueue:
    """Dirty and urgent keys. Requests append and the cycle takes, without waiting for each other.

    Args:
        is_shared: Whether there is a store; without one no key is urgent.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._dirty: deque[KeyState] = deque()
        self._urgent: deque[KeyState] = deque()

    @property
    def has_urgent(self) -> bool:
        """True if a key should be synchronised before the next cycle."""
        return bool(self._urgent)

    def mark_dirty(self, state: KeyState) -> None:
        """Have the next cycle synchronise a key. The client's lock is held.

        A key that was left alone for some cycles is urgent, because its counts are old.
        """
        if not state.is_dirty:
            state.is_dirty = True
            self._dirty.append(state)
            if state.pull_gap > 1:
                self.mark_urgent(state)

    def mark_urgent(self, state: KeyState) -> None:
        """Have a key synchronised before the next cycle."""
        if self._is_shared and not state.is_urgent:
            state.is_urgent = True
            self._urgent.append(state)

    def take_dirty(self) -> list[KeyState]:
        """Take the dirty keys."""
        return _drained(self._dirty)

    def take_urgent(self) -> list[KeyState]:
        """Take the urgent keys."""
        states = _drained(self._urgent)
        for state in states:
            state.is_urgent = False
        return states


def _drained(queue: deque[KeyState]) -> list[KeyState]:
    return [queue.popleft() for _ in range(len(queue))]
