"""Schedule of the keys that each sync cycle reads or writes.

A dirty key is flushed, or read if there is nothing to flush. A successful compare-and-set needs no read: it proves that
no other instance has written. A key without requests is read once more, unless it is far below its limits. After that
it is pulled only while it is filling up: so much of a limit is used that the hits of other instances may soon matter.
It is forgotten when its last frame has left every window.
"""

import math
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from oauth_ratelimit.core.window import shared
from oauth_ratelimit.counters.key_state import FILLING_RATIO, Due, KeyState

PULLS_PER_HORIZON = 30  # of a key that is filling up and does not change
CLOSE_RATIO = 1 / 2  # of a limit: a key above it is pulled twice as often
FAR_RATIO = 1 / 5  # of a limit: below it a key is not read again when its requests end
SHORTEST_GAP_S = 0.003  # between two reads of a key that is filling up
MAX_EARLY_READS = 1000  # further keys wait for the next cycle


def early_read_s(room: float, *, passed_s: float, remote_hits: int | None) -> float:
    """Return the seconds until half of what is left of a limit will be used up at the present rate.

    Args:
        room: Hits that are left.
        passed_s: Seconds since the read before.
        remote_hits: Hits of other instances in that time, None if it is not known.
    """
    gap_s = max(passed_s, SHORTEST_GAP_S) * room / (2 * (remote_hits or 1))
    return max(gap_s, SHORTEST_GAP_S if remote_hits else 2 * passed_s)


class EarlyReads:
    """Keys that other instances are filling up, to be read again before the next cycle. Used by the sync cycle alone.

    Each is read again when half of what is left would be used up at the present rate, so a few reads are enough.

    Args:
        interval_s: Length of a cycle. A key that can wait for the next one is not added.
    """

    def __init__(self, interval_s: float) -> None:
        self._longest_s = interval_s / 2
        self._due: list[tuple[float, int, KeyState]] = []
        self._valid: dict[KeyState, tuple[int, float]] = {}  # number of the entry that counts, and its gap in seconds
        self._count = 0

    @property
    def next_s(self) -> float:
        """Time at which the next key is due, ``inf`` if there is none."""
        return self._due[0][0] if self._due else math.inf

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next key is due, None if there is none."""
        if not self._due:
            return None
        # A clock that stepped back must not delay it.
        return min(max(0.0, self.next_s - now_s), self._longest_s)

    def gap_s(self, state: KeyState) -> float:
        """Return the seconds between the last read of a key and the one that is planned, ``inf`` if none is."""
        return self._valid[state][1] if state in self._valid else math.inf

    def take(self, now_s: float) -> list[KeyState]:
        """Return the keys that are due."""
        states = []
        # A clock that stepped back leaves entries that are far ahead.
        while self._due and not now_s < self._due[0][0] <= now_s + self._longest_s:
            _, number, state = heappop(self._due)
            if state in self._valid and self._valid[state][0] == number:
                states.append(state)
        return states

    def plan(self, state: KeyState, now_s: float, *, passed_s: float, remote_hits: int | None) -> None:
        """Plan the next read of a key, after a read.

        Args:
            state: The key.
            now_s: The time.
            passed_s: Seconds since the read before.
            remote_hits: Hits of other instances in that time, None if it is not known.
        """
        self._valid.pop(state, None)
        peers = max(state.peers, state.client.peers.most_count)  # others may have counted it and not written yet
        if state.due_cycle is Due.FORGOTTEN or peers < 2 or not state.is_filling:
            return
        room = state.room(now_s)
        if room < 1:
            return
        gap_s = early_read_s(room, passed_s=passed_s, remote_hits=remote_hits)
        if gap_s > self._longest_s or len(self._valid) >= MAX_EARLY_READS:
            return
        self._count += 1
        self._valid[state] = (self._count, gap_s)
        heappush(self._due, (now_s + gap_s, self._count, state))

    def drop_forgotten(self) -> None:
        """Drop keys that were forgotten, to free their memory."""
        self._due = [entry for entry in self._due if entry[2].due_cycle is not Due.FORGOTTEN]
        heapify(self._due)
        self._valid = {state: entry for state, entry in self._valid.items() if state.due_cycle is not Due.FORGOTTEN}


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
        """Have the next cycle take keys."""
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

    def quarantined_count(self) -> int:
        """Return the number of keys whose document is not written, because it is damaged."""
        return sum(state.is_quarantined for state in self._next)

    def all(self) -> list[KeyState]:
        """Return all keys."""
        return [state for states in self._later.values() for state in states] + self._next

    def dispensable(self) -> Iterator[KeyState]:
        """Yield all keys: first those that are far below their limits, the one that was quiet longest at first."""
        later = [state for cycle in sorted(self._later) for state in self._later[cycle]]
        filling = []
        for state in (*later, *self._next):
            if state.is_filling:
                filling.append(state)
            else:
                yield state
        yield from filling

    def drop_forgotten(self) -> None:
        """Drop keys that were forgotten before they were due, to free their memory."""
        self._next = [state for state in self._next if state.due_cycle is Due.NEXT]
        kept = (
            (cycle, [state for state in states if state.due_cycle == cycle]) for cycle, states in self._later.items()
        )
        self._later = {cycle: states for cycle, states in kept if states}

    def reads_again(self, state: KeyState) -> bool:
        """Return whether a key is read once more after its requests.

        Windows that are over within two cycles do not count: what is read would be out of date when it matters.
        """
        return state.has_used(FAR_RATIO, longer_than_s=2 * self.interval_s)

    def follows(self, state: KeyState) -> bool:
        """Return whether full cycles go on reading a key, because others may be filling it up.

        In a window of one cycle little of what is read matters until the next one: half of the limit must be used up.
        """
        return state.has_used(FILLING_RATIO, longer_than_s=self.interval_s) or state.has_used(CLOSE_RATIO)

    def needs_pull(self, state: KeyState) -> bool:
        """Return whether a due key is read although it was not requested: busy in the last cycle, or filling up."""
        return not state.pull_gap or self.follows(state)

    def reschedule(self, state: KeyState) -> None:
        """Schedule the next read of a key: with exponential back-off, sooner near its limit."""
        if state.due_cycle is not Due.UNLISTED and state.due_cycle is not Due.TAKEN:
            return
        horizon = int(state.client.horizon_s / self.interval_s) + 1
        if self.follows(state):
            pulls = 2 * PULLS_PER_HORIZON if state.has_used(CLOSE_RATIO) else PULLS_PER_HORIZON
            state.pull_gap = min(max(1, horizon // pulls), state.pull_gap * 2 or 1)
        else:
            state.pull_gap = max(2, horizon)
        due_cycle = state.due_cycle = shared(self._cycle + state.pull_gap)
        self._later.setdefault(due_cycle, []).append(state)
