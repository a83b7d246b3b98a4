"""
Which keys a cycle looks at: those with something to send, those to read again, those to forget.

A key that a request touched is flushed, or read if there was nothing to flush. A successful compare-and-set needs no
reading: it proves that nobody else has written. A key that nobody touches is read less and less often, and forgotten
when its last frame has left every window: idle keys cost nothing.
"""

from collections.abc import Iterable

from oauth_ratelimit.sync.keys import KeyState

MAX_PULL_GAP_SHARE = 4  # of a key's horizon: so long may a key that was quiet elsewhere have been busy unseen


class Agenda:
    """
    What the cycles to come have on their lists. Used by the sync cycle alone.

    Args:
        interval_s: Length of a cycle, the unit of the gaps between two reads.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._next: list[KeyState] = []
        self._later: dict[int, list[KeyState]] = {}
        self._slot = 0

    def add(self, states: Iterable[KeyState]) -> None:
        """
        Have the next cycle look at keys, unless a cycle to come will anyway.
        """
        for state in states:
            if not state.is_watched:
                state.is_watched = True
                self._next.append(state)

    def due(self, now_s: float) -> list[KeyState]:
        """
        Return the keys to look at now, and take them off the list.
        """
        states, self._next = self._next, []
        slot = int(now_s / self.interval_s)
        stepped_back = slot < self._slot
        for passed in [later for later in self._later if later <= slot or stepped_back]:
            states += self._later.pop(passed)
        self._slot = slot
        for state in states:
            state.is_watched = False
        return states

    def put_off(self, state: KeyState) -> None:
        """
        Have a key that did not change looked at again after twice the time that it was left alone before.
        """
        if state.is_watched:
            return
        state.is_watched = True
        longest = max(1, int(state.place.horizon_s / MAX_PULL_GAP_SHARE / self.interval_s))
        state.pull_gap = min(longest, state.pull_gap * 2 or 1)
        self._later.setdefault(self._slot + state.pull_gap, []).append(state)
