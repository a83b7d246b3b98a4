"""Queue of keys by the time at which they are synchronised next.

A request makes a key due with the next cycle, or at once; a scheduled cycle leaves keys that are far from their limits
to a later one. The cycle makes it due again: with the next cycle, at a time before that, or much later. A key due
before the next full cycle is urgent. Requests append and the cycle takes, without waiting for each other.
"""

import enum
import math
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from oauth_ratelimit.process.yielding import yield_between

if TYPE_CHECKING:
    from oauth_ratelimit.counters.key import KeyState

MAX_TIMED = 1000  # keys that are urgent from a time on; further ones wait for the next cycle
MAX_WAITING = 20_000  # keys whose hits wait for a later cycle: an end has seconds to flush them
SPARE_ENTRIES = 1000  # may be out of date, besides one for each key
SLOTS_AHEAD = 1000  # so many a key's due time may be ahead; slots that are further ahead are longer


class Due(enum.Enum):
    """Position of a key that has no due time."""

    NEW = enum.auto()
    """In no cycle yet, until a request comes."""

    TAKEN = enum.auto()
    """In the present cycle."""

    FORGOTTEN = enum.auto()
    """Never again: the key was dropped."""


class Slot:
    """Keys that are due at one time. An entry counts only while the key's ``due`` is this slot."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: list[KeyState] = []

    def put(self, key: "KeyState") -> None:
        key.due = self
        self.keys.append(key)

    @property
    def is_empty(self) -> bool:
        return not any(key.due is self for key in self.keys)

    def valid(self) -> list["KeyState"]:
        """Return the keys that are still due with this slot."""
        return [key for key in yield_between(self.keys) if key.due is self]

    def renewed(self) -> "Slot":
        """Return a slot to replace this one, with one entry for each key that is still due."""
        slot = Slot()
        for key in yield_between(self.keys):
            if key.due is self:
                slot.put(key)
        return slot


class DueQueue:
    """Keys to be synchronised. Methods for requests need the lock of the key's client; one thread at a time takes.

    Keys that are due later than the next cycle share slots, mostly as long as the interval. Without a store no key is
    due at once.
    """

    def __init__(self, interval_s: float, *, is_shared: bool, max_interval_s: float = 0.0) -> None:
        self.interval_s = interval_s
        self._max_interval_s = max_interval_s
        self._is_shared = is_shared
        self._requested: deque[KeyState] = deque()
        self._urgent: deque[KeyState] = deque()
        self._has_urgent = threading.Event()
        self._next = Slot()
        self._timed: list[tuple[float, int, Slot]] = []  # heap by time; each slot holds one key
        self._timed_count = 0
        self._later = defaultdict[int, Slot](Slot)  # by time in intervals
        self._kept_count = self._put_count = 0  # entries there when outdated ones were last dropped, and those since
        self._waiting = defaultdict[int, Slot](Slot)  # the same, of keys with hits
        self._ends_waiting = False
        self._cycle = 0  # time of the last cycle in intervals

    def add(self, key: "KeyState") -> None:
        """Have the next cycle synchronise a key that a request changes."""
        if not key.is_dirty:
            key.is_dirty = True
            self._requested.append(key)

    def add_urgent(self, key: "KeyState") -> None:
        """Have a key synchronised at once, in the background."""
        if self._is_shared and not key.is_urgent:
            key.is_urgent = True
            self._urgent.append(key)
            if not self._has_urgent.is_set():  # faster than to set it again
                self._has_urgent.set()

    @property
    def has_urgent(self) -> bool:
        """True if a key is due at once."""
        return bool(self._urgent)

    @property
    def next_urgent_s(self) -> float:
        """Time at which the next key is urgent: ``-inf`` now, ``inf`` none."""
        if self._urgent:
            return -math.inf
        return min((at_s for at_s, _, _ in self._timed[:1]), default=math.inf)  # another thread may take it meanwhile

    def wait(self, now_s: float) -> None:
        """Block until a key is urgent, or ``wake`` is called."""
        left_s = self.next_urgent_s - now_s
        # A clock that stepped back must not delay it.
        self._has_urgent.wait(None if left_s == math.inf else min(max(0.0, left_s), self.interval_s / 2))

    def wake(self) -> None:
        """End the waiting of another thread."""
        self._has_urgent.set()

    def take_urgent(self, now_s: float) -> list["KeyState"]:
        """Take the urgent keys: those that are due at once, and those whose time has come."""
        self._has_urgent.clear()  # first, so that a key that comes meanwhile wakes the thread again
        at_once = [key for key in _drained(self._urgent) if key.due is not Due.FORGOTTEN]
        for key in at_once:
            key.is_urgent = False
            key.due = Due.TAKEN  # a full cycle may have taken it: then it comes before the rest of that
        timed: list[KeyState] = []
        # A clock that stepped back leaves entries that are far ahead.
        while self._timed and not now_s < self._timed[0][0] <= now_s + self.interval_s / 2:
            timed += heappop(self._timed)[2].valid()
        return at_once + self._taken(timed)

    def take(self, now_s: float, *, waits: bool = False) -> list["KeyState"]:
        """Take the keys that are due with this cycle, those with requests first. Far ones go on if it ``waits``."""
        cycle = int(now_s / self.interval_s)
        stepped_back, self._cycle = cycle < self._cycle, cycle
        waits = waits and not self._ends_waiting
        self._ends_waiting = False
        if self._put_count > self._kept_count + SPARE_ENTRIES:  # a busy key leaves one with each cycle
            self.drop_outdated()
        keys = [key for key in _drained(self._requested) if key.is_dirty]  # else it was synchronised since
        if waits:
            room = MAX_WAITING - self.waiting_count
            keys = keys[room:] + [key for key in yield_between(keys[:room]) if not self._put_waiting(key)]
        keys += self._next.valid()
        self._next = Slot()
        for slots, takes_all in ((self._later, stepped_back), (self._waiting, stepped_back or not waits)):
            for passed in [time for time in slots if time <= cycle or takes_all]:
                keys += slots.pop(passed).valid()
        return self._taken(keys)

    def _put_waiting(self, key: "KeyState") -> bool:
        """Leave a key with hits to a later cycle if it may wait, and return whether it does."""
        # The first hit may have come just after the last cycle.
        cycles = int(min(key.wait_s, self._max_interval_s) / self.interval_s) - 1
        if cycles > 0 and key.due is not Due.TAKEN and not key.has_reached_alert:  # else it is urgent
            self._waiting[self._cycle + cycles].put(key)
            return True
        return False

    @property
    def waiting_count(self) -> int:
        """Number of keys whose hits wait for a later cycle."""
        return sum(len(slot.keys) for slot in self._waiting.values())

    def end_waiting(self) -> None:
        """Have the next cycle take the keys whose hits wait, because limits have changed."""
        self._ends_waiting = True

    @staticmethod
    def _taken(keys: Iterable["KeyState"]) -> list["KeyState"]:
        """Return the keys that are not taken yet, and mark them."""
        taken = []
        for key in yield_between(keys):
            if key.due is not Due.TAKEN and key.due is not Due.FORGOTTEN:
                key.due = Due.TAKEN
                taken.append(key)
        return taken

    def restart(self, keys: Iterable["KeyState"]) -> None:
        """Have the next cycle take all keys, because one was interrupted: some may be in no slot."""
        self._timed, self._later, self._waiting, self._next = [], defaultdict(Slot), defaultdict(Slot), Slot()
        for key in (*keys, *_drained(self._urgent)):  # one that is new since may be in the queue alone
            key.is_urgent = False
            self.put_next(key)

    def take_all(self) -> list["KeyState"]:
        """Take all keys that are due at any time."""
        return self._taken(list(self))

    def put_next(self, key: "KeyState") -> None:
        """Have the next cycle take a key."""
        if key.due is not self._next and key.due is not Due.FORGOTTEN:
            self._next.put(key)

    def put_urgent(self, key: "KeyState", at_s: float) -> bool:
        """Have a key taken at a time before the next full cycle. Return False if there are too many of them."""
        if len(self._timed) >= MAX_TIMED:
            self._timed = [entry for entry in self._timed if not entry[2].is_empty]
            heapify(self._timed)
        if len(self._timed) >= MAX_TIMED:
            return False
        slot = Slot()
        slot.put(key)
        self._timed_count += 1
        heappush(self._timed, (at_s, self._timed_count, slot))
        if self._timed[0][2] is slot:
            self._has_urgent.set()  # the thread that waits for a key waits anew
        return True

    def put_later(self, key: "KeyState", gap_s: float) -> None:
        """Have a later cycle take a key, the next one at the earliest."""
        cycles = max(1, int(gap_s / self.interval_s))
        length = 1 + cycles // SLOTS_AHEAD
        self._later[math.ceil((self._cycle + cycles) / length) * length].put(key)
        self._put_count += 1

    def __iter__(self) -> Iterator["KeyState"]:
        """Yield all keys that are due at any time, those that were quiet longest first."""
        later = [self._later[cycle] for cycle in sorted(self._later)]
        for slot in (*later, *self._waiting.values(), *(slot for _, _, slot in self._timed), self._next):
            yield from slot.valid()

    def next_keys(self) -> list["KeyState"]:
        """Return the keys of the next cycle that the last one has put there."""
        return self._next.valid()

    def drop_outdated(self) -> None:
        """Drop entries of keys that were forgotten or taken before they were due, to free their memory."""
        for slot in [*self._waiting.values(), *(slot for _, _, slot in self._timed), self._next]:
            slot.keys = slot.valid()
        renewed = {time: slot.renewed() for time, slot in self._later.items()}
        self._later = defaultdict(Slot, {time: slot for time, slot in renewed.items() if slot.keys})
        self._kept_count, self._put_count = sum(len(slot.keys) for slot in self._later.values()), 0


def _drained(queue: "deque[KeyState]") -> Iterator["KeyState"]:
    return (queue.popleft() for _ in yield_between(range(len(queue))))
