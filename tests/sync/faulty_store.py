"""A store that fails as networks and databases do: before a write, after it, in the middle of it, or long after it."""

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnavailable, StoreUnreachable
from oauth_ratelimit.store.base import Change, CounterStore, Snapshot, WriteResult


class Fault(enum.Enum):
    """Fates of a write. The writer never learns more than that there was no answer."""

    LOST_REQUEST = "nothing is applied"
    LOST_REPLY = "everything is applied"
    PARTLY = "every other change is applied"
    LATE = "it is applied when the test says so"


@dataclass(frozen=True)
class HeldWrite:
    """A write that the server has not come round to yet."""

    writer: str
    changes: Sequence[Change]


class FaultyStore:
    """Passes everything on to a store, but for the faults that were ordered.

    Args:
        inner: The store.

    Attributes:
        faults: What happens to the next writes, in this order; None is no fault.
        is_down: Whether reads and writes fail without reaching the store.
        held: Writes to be applied later.
        calls: ``read`` or ``write`` with the number of keys, for each call that came.
        before_write, before_read: Called first, for a test that wants to act in between.
    """

    def __init__(self, inner: CounterStore) -> None:
        self.inner = inner
        self.faults: deque[Fault | None] = deque()
        self.is_down = False
        self.held: list[HeldWrite] = []
        self.calls: list[tuple[str, int]] = []
        self.before_write: Callable[[], object] = _nothing
        self.before_read: Callable[[], object] = _nothing

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Read, unless the store is down."""
        self.calls.append(("read", len(keys)))
        self.before_read()
        if self.is_down:
            raise StoreUnreachable("down")
        return self.inner.read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Write, or fail as ordered."""
        self.calls.append(("write", len(changes)))
        self.before_write()
        if self.is_down:
            raise StoreUnreachable("down")
        fault = self.faults.popleft() if self.faults else None
        if fault is None:
            return self.inner.compare_and_set(writer, changes)
        if fault is Fault.LOST_REPLY:
            self.inner.compare_and_set(writer, changes)
        elif fault is Fault.PARTLY:
            self.inner.compare_and_set(writer, changes[::2])
        elif fault is Fault.LATE:
            self.held.append(HeldWrite(writer, list(changes)))
        raise StoreUnavailable(fault.value)

    def deliver(self, held: HeldWrite) -> list[Change]:
        """Apply a held write as far as it still can be.

        Returns:
            The changes that were applied.
        """
        self.held.remove(held)
        lost = self.inner.compare_and_set(held.writer, held.changes).lost
        return [change for index, change in enumerate(held.changes) if index not in lost]

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.latest``."""
        return self.inner.latest(count)

    def leave(self, writer: str, keys: Sequence[Key]) -> None:
        """See ``CounterStore.leave``."""
        self.inner.leave(writer, keys)

    def time_s(self) -> float:
        """See ``CounterStore.time_s``."""
        return self.inner.time_s()

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """See ``CounterStore.time_limit``."""
        return self.inner.time_limit(seconds)

    def close(self) -> None:
        """See ``CounterStore.close``."""
        self.inner.close()


def _nothing() -> None:
    pass
