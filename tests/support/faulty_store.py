"""A store that fails as networks and databases do: before a write or after it. ``tests/simulation`` has more ways."""

import enum
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnavailable, StoreUnreachable
from oauth_ratelimit.store.base import Change, CounterStore, Snapshot, WriteResult
from testbed.clock import Clock
from testbed.memory_store import MemoryStore


class Fault(enum.Enum):
    """Fates of a write. The writer never learns more than that there was no answer."""

    LOST_REQUEST = "nothing is applied"
    LOST_REPLY = "everything is applied"


class FaultyStore:
    """Passes everything on to a store, but for the faults that were ordered."""

    def __init__(self, inner: CounterStore | None = None, clock: Clock | None = None) -> None:
        self.inner: CounterStore = MemoryStore() if inner is None else inner
        self.faults: deque[Fault | None] = deque()  # of the next writes, in this order
        self.error: BaseException | None = None  # what a fault raises, None for ``StoreUnavailable``
        self.is_down = False  # whether reads and writes fail without reaching the store
        self.refused: frozenset[Key] = frozenset()  # which the store does not write
        self.delay_s = 0.0  # until an answer, by the clock; an operation that a time limit cuts off fails
        self.is_reached = True  # whether an operation that is cut off may have arrived
        self.calls: list[tuple[str, int]] = []  # with the number of keys
        self.before_write: Callable[[], object] = bool  # does nothing
        self.before_read: Callable[[], object] = bool
        self._clock = clock or Clock()
        self._ends_s = [math.inf]

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        self._begin("read", keys)
        self.before_read()
        self._fail_if_down()
        return self.inner.read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        self._begin("write", changes)
        self.before_write()
        self._fail_if_down()
        fault = self.faults.popleft() if self.faults else None
        if fault is None:
            return self._write(writer, changes)
        if fault is Fault.LOST_REPLY:
            self.inner.compare_and_set(writer, changes)
        raise self.error or StoreUnavailable(fault.value)

    def _write(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        accepted = [change for change in changes if change.key not in self.refused]
        if len(accepted) == len(changes):
            return self.inner.compare_and_set(writer, changes)
        lost = {id(accepted[index]) for index in self.inner.compare_and_set(writer, accepted).lost}
        return WriteResult(
            [index for index, change in enumerate(changes) if id(change) in lost],
            {index: "no such field" for index, change in enumerate(changes) if change.key in self.refused},
        )

    def _begin(self, call: str, keys: Sequence[object]) -> None:
        self.calls.append((call, len(keys)))
        left_s = self._ends_s[-1] - self._clock()
        self._clock.advance(min(self.delay_s, left_s))
        if self.delay_s > left_s:
            raise StoreUnavailable("no answer") if self.is_reached else StoreUnreachable("no server")

    def _fail_if_down(self) -> None:
        if self.is_down:
            raise StoreUnreachable("down")

    def taken_calls(self) -> list[tuple[str, int]]:
        calls, self.calls = self.calls, []
        return calls

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        return self.inner.latest(count)

    def remove_marks(self, writer: str, marks: Mapping[Key, int]) -> None:
        self._begin("remove_marks", list(marks))
        self.inner.remove_marks(writer, marks)

    def progress(self) -> int | None:
        return self.inner.progress()

    def follow(self, progress: int) -> None:
        self.inner.follow(progress)

    def time_s(self) -> float:
        return self.inner.time_s()

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """See ``CounterStore.time_limit``. Time passes by ``delay_s`` alone."""
        self._ends_s.append(min(self._ends_s[-1], self._clock() + seconds))
        with self.inner.time_limit(seconds):
            yield
        self._ends_s.pop()

    def close(self) -> None:
        self.inner.close()
