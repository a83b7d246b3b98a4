"""What requests tell the sync cycle."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oauth_ratelimit.counters.key_state import KeyState


class DirtyQueue:
    """Keys that the sync cycle is to look at. Requests append, the cycle takes; neither waits for the other.

    Args:
        is_shared: Whether counters are shared at all, so that a key can be urgent.

    Attributes:
        peer_count: The most instances that were seen to count one key.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.peer_count = 1
        self._is_shared = is_shared
        self._touched: deque[KeyState] = deque()
        self._urgent: deque[KeyState] = deque()

    @property
    def has_urgent(self) -> bool:
        """Whether a key should not wait for the next cycle."""
        return bool(self._urgent)

    def mark_dirty(self, state: "KeyState") -> None:
        """
        Have the next cycle look at a key, or the next tick if it was left alone for some cycles, so that what is known
        of it is old. The lock of its place is held by the caller.
        """
        if not state.is_dirty:
            state.is_dirty = True
            self._touched.append(state)
            if state.pull_gap > 1:
                self.mark_urgent(state)

    def mark_urgent(self, state: "KeyState") -> None:
        """Have a key looked at before the next cycle."""
        if self._is_shared and not state.is_urgent:
            state.is_urgent = True
            self._urgent.append(state)

    def see_peers(self, count: int) -> None:
        """Note how many instances count a key."""
        self.peer_count = max(self.peer_count, count)

    def take_dirty(self) -> list["KeyState"]:
        """Return the keys that requests have touched, and forget them here."""
        return _drained(self._touched)

    def take_urgent(self) -> list["KeyState"]:
        """Return the urgent keys, and forget them here."""
        states = _drained(self._urgent)
        for state in states:
            state.is_urgent = False
        return states


def _drained(queue: "deque[KeyState]") -> list["KeyState"]:
    return [queue.popleft() for _ in range(len(queue))]
