"""Limiters in the time of a recording, as ``replay`` has them, on a store that counts what they ask of it."""

from collections.abc import Mapping, Sequence

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreUnreachable
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from testbed.fleet import Fleet
from testbed.memory_store import MemoryStore


class CountingStore(MemoryStore):
    """A store in memory that counts what instances ask of it, in documents and writes that lost a race."""

    is_reachable = True
    trips = 0  # calls; the flusher asks for one batch at a time, so each is a round trip
    written = read_count = conflicts = 0

    @property
    def operations(self) -> int:
        return self.written + self.read_count

    def _make_trip(self) -> None:
        if not self.is_reachable:
            raise StoreUnreachable("the instance is cut off")
        self.trips += 1

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        self._make_trip()
        self.read_count += len(keys)
        return super().read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        self._make_trip()
        self.written += len(changes)
        result = super().compare_and_set(writer, changes)
        self.conflicts += len(result.lost)
        return result


class CountingFleet(Fleet):
    """Fleet on a ``CountingStore``."""

    store_class = CountingStore
    store: CountingStore
