"""Which keys a cycle looks at: those with something to send, those to read again, those to forget.

A key that a request touched is flushed, or read if there was nothing to flush. A successful compare-and-set needs no
reading: it proves that nobody else has written. A key that nobody touches any more is read once more; after that it is
only followed while a good part of a limit is used up, so that what others count may soon matter here. It is forgotten
when its last frame has left every window: idle keys cost nothing.
"""

from collections.abc import Iterable

from oauth_ratelimit.counters.key_state import FORGOTTEN, UNLISTED, KeyState

PULLS_PER_HORIZON = 30  # of a followed key that does not change; benchmarks/accuracy.py tells what fewer would cost
CLOSE_RATIO = 1 / 2  # of a limit: from here on twice as many
NEXT = -1  # the slot of keys that the next cycle looks at
TAKEN = -3  # and of those that the present one looks at


class SyncSchedule:
    """What the cycles to come have on their lists. Used by the sync cycle alone.

    Args:
        interval_s: Length of a cycle, the unit of the gaps between two reads.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._next: list[KeyState] = []
        self._later: dict[int, list[KeyState]] = {}
        self._slot = 0

    def add(self, states: Iterable[KeyState]) -> None:
        """Have the next cycle look at keys."""
        for state in states:
            if state.due_cycle not in (NEXT, FORGOTTEN):
                state.due_cycle = NEXT
                self._next.append(state)

    def take(self, states: Iterable[KeyState]) -> list[KeyState]:
        """Return keys, each once, and have ``due`` leave them out: they are looked at now."""
        taken = []
        for state in states:
            if state.due_cycle not in (TAKEN, FORGOTTEN):
                state.due_cycle = TAKEN
                taken.append(state)
        return taken

    def due(self, now_s: float) -> list[KeyState]:
        """Return the keys to look at now, and take them off the list."""
        states = [state for state in self._next if state.due_cycle == NEXT]  # the others are looked at, or forgotten
        self._next = []
        slot = int(now_s / self.interval_s)
        stepped_back = slot < self._slot
        for passed in [later for later in self._later if later <= slot or stepped_back]:
            # A key that was added or put off again since is due at another time, or is on the list already.
            states += [state for state in self._later.pop(passed) if state.due_cycle == passed]
        self._slot = slot
        return self.take(states)

    def listed(self) -> list[KeyState]:
        """Return the keys that the next cycle looks at."""
        return list(self._next)

    def in_flight_hits(self) -> int:
        """Return the hits that were to be sent and are not yet known to have arrived."""
        # A request is in the hits of every tier of its key and in those of the total: one of them is enough.
        return sum(
            max(sum(frames.values()) for frames in state.unsent.values())
            for state in self._next
            if state.unsent and not state.client.is_total(state)
        )

    def all(self) -> list[KeyState]:
        """Return all keys, those first that are to be looked at last: they have been quiet longest."""
        later = [state for slot in sorted(self._later, reverse=True) for state in self._later[slot]]
        return later + self._next

    def drop_forgotten(self) -> None:
        """Let go of keys that were forgotten before their time, which would stay in memory until they were due."""
        self._next = [state for state in self._next if state.due_cycle == NEXT]
        kept = ((slot, [state for state in states if state.due_cycle == slot]) for slot, states in self._later.items())
        self._later = {slot: states for slot, states in kept if states}

    def reschedule(self, state: KeyState) -> None:
        """Have a key looked at again: if it is followed, after twice the time that it was left alone before,
        and the sooner the closer it is to its limit.
        """
        if state.due_cycle not in (UNLISTED, TAKEN):
            return
        horizon = int(state.client.horizon_s / self.interval_s) + 1
        if state.is_filling:
            pulls = 2 * PULLS_PER_HORIZON if state.has_used(CLOSE_RATIO) else PULLS_PER_HORIZON
            state.pull_gap = min(max(1, horizon // pulls), state.pull_gap * 2 or 1)
        else:
            state.pull_gap = max(2, horizon)
        state.due_cycle = self._slot + state.pull_gap
        self._later.setdefault(state.due_cycle, []).append(state)
