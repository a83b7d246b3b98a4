"""Counters in the memory of one process, for tests and simulations."""

import threading
from collections.abc import Mapping, Sequence

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.process.fork import call_in_child
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult


class MemoryStore:
    """Shared counters of the limiters in one process. Thread-safe; nothing ever expires."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _documents
        self._documents: dict[Key, Snapshot] = {}
        call_in_child(self._renew_lock)

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.read``."""
        with self._lock:
            return {key: self._documents[key] for key in keys if key in self._documents}

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``."""
        with self._lock:
            return WriteResult(lost=[index for index, change in enumerate(changes) if not self._apply(writer, change)])

    def _apply(self, writer: str, change: Change) -> bool:
        document = self._documents.get(change.key)
        if change.version != (document.version if document else None):
            return False
        hits = {series: dict(frames) for series, frames in document.hits.items()} if document else {}
        writers = dict(document.writers) if document else {}
        for series, start_s in change.expired_frames:
            hits.get(series, {}).pop(start_s, None)
        for name in change.expired_writers:
            writers.pop(name, None)
        for series, frames in change.hits.items():
            counts = hits.setdefault(series, {})
            for start_s, count in frames.items():
                counts[start_s] = counts.get(start_s, 0) + count
        writers[writer] = change.flush_id
        self._documents[change.key] = Snapshot(change.next_version, hits, writers)
        return True

    def remove(self, key: Key) -> None:
        """Remove a document, as expiry or an operator would."""
        with self._lock:
            self._documents.pop(key, None)

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """See ``CounterStore.latest``."""
        with self._lock:
            by_time = sorted(self._documents.items(), key=lambda item: -_latest_frame_s(item[1]))
            return dict(by_time[:count])

    def clock_offset_s(self) -> float:
        """See ``CounterStore.clock_offset_s``."""
        return 0.0

    def close(self) -> None:
        """See ``CounterStore.close``."""

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def _latest_frame_s(document: Snapshot) -> int:
    return max((start_s for frames in document.hits.values() for start_s in frames), default=0)
