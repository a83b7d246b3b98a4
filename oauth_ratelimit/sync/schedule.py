"""Schedule of the keys that each sync cycle looks at.

A dirty key is flushed, or read if there is nothing to flush. A successful compare-and-set needs no read: it proves that
no other instance has written. A key without requests is read once more. After that it is followed only while a good
part of a limit is used up, because the hits of other instances may soon matter. It is forgotten when its last frame has
left every window.
"""

from collections.abc import Iterable

from oauth_ratelimit.counters.key_state import Due, KeyState

PULLS_PER_HORIZON = 30  # of a followed key that does not change; benchmarks/accuracy.py shows the cost of fewer
CLOSE_RATIO = 1 / 2  # of a limit: from here on twice as many


class SyncSchedule:
    """Keys of the next cycle and of later ones. Used by the sync cycle alone.

    Args:
        interval_s: Length of a cycle, the unit of the gaps between two reads.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._next: list[KeyState] = []
        self._later: dict[int, list[KeyState]] = {}  # by the number of the cycle
        self._cycle = 0  # number of the present cycle

    def add(self, states: Iterable[KeyState]) -> None:
        """Have the next cycle look at keys."""
        for state in states:
            if state.due_cycle is not Due.NEXT and state.due_cycle is not Due.FORGOTTEN:
                state.due_cycle = Due.NEXT
                self._next.append(state)

    def take(self, states: Iterable[KeyState]) -> list[KeyState]:
        """Return keys for the present cycle, each once."""
        taken = []
        for state in states:
            if state.due_cycle is not Due.TAKEN and state.due_cycle is not Due.FORGOTTEN:
                state.due_cycle = Due.TAKEN
                taken.append(state)
        return taken

    def due(self, now_s: float) -> list[KeyState]:
        """Take the keys that are due, except those taken already."""
        states = [state for state in self._next if state.due_cycle is Due.NEXT]
        self._next = []
        cycle = int(now_s / self.interval_s)
        stepped_back = cycle < self._cycle
        for passed in [later for later in self._later if later <= cycle or stepped_back]:
            # A key that was scheduled anew is in another list.
            states += [state for state in self._later.pop(passed) if state.due_cycle == passed]
        self._cycle = cycle
        return self.take(states)

    def listed(self) -> list[KeyState]:
        """Return the keys of the next cycle."""
        return list(self._next)

    def in_flight_hits(self) -> int:
        """Return the hits that were to be sent and are not yet known to have arrived."""
        # A request is in the hits of every tier and in those of the total: one of them is enough.
        return sum(
            max(sum(frames.values()) for frames in state.unsent.values())
            for state in self._next
            if state.unsent and not state.is_total
        )

    def all(self) -> list[KeyState]:
        """Return all keys, starting with those that are due last: they have been quiet longest."""
        later = [state for cycle in sorted(self._later, reverse=True) for state in self._later[cycle]]
        return later + self._next

    def drop_forgotten(self) -> None:
        """Drop keys that were forgotten before they were due, to free their memory."""
        self._next = [state for state in self._next if state.due_cycle is Due.NEXT]
        kept = (
            (cycle, [state for state in states if state.due_cycle == cycle]) for cycle, states in self._later.items()
        )
        self._later = {cycle: states for cycle, states in kept if states}

    def reschedule(self, state: KeyState) -> None:
        """Schedule the next read of a key: with exponential back-off, sooner near its limit."""
        if state.due_cycle is not Due.UNLISTED and state.due_cycle is not Due.TAKEN:
            return
        horizon = int(state.client.horizon_s / self.interval_s) + 1
        if state.is_filling:
            pulls = 2 * PULLS_PER_HORIZON if state.has_used(CLOSE_RATIO) else PULLS_PER_HORIZON
            state.pull_gap = min(max(1, horizon // pulls), state.pull_gap * 2 or 1)
        else:
            state.pull_gap = max(2, horizon)
        due_cycle = state.due_cycle = self._cycle + state.pull_gap
        self._later.setdefault(due_cycle, []).append(state)
