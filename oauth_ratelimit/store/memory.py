"""Counters in the memory of one process, for tests and simulations."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.process.fork import call_in_child
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult


class MemoryStore:
    """Shared counters of the limiters in one process. Thread-safe; nothing ever expires.

    Args:
        clock: Returns the store's time in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
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
            if start_s not in change.hits.get(series, {}):
                hits.get(series, {}).pop(start_s, None)
        seen = dict(document.seen) if document else {}
        for name in change.expired_writers:
            writers.pop(name, None)
            seen.pop(name, None)
        for series, frames in change.hits.items():
            counts = hits.setdefault(series, {})
            for start_s, count in frames.items():
                counts[start_s] = counts.get(start_s, 0) + count
        writers[writer], seen[writer] = change.flush_id, self._clock()
        horizons = dict(document.horizons) if document else {}
        for series, horizon_s in change.horizons.items():
            horizons[series] = max(horizon_s, horizons.get(series, 0))
        self._documents[change.key] = Snapshot(change.next_version, hits, writers, horizons=horizons, seen=seen)
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

    def leave(self, writer: str, keys: Sequence[Key]) -> None:
        """See ``CounterStore.leave``."""
        with self._lock:
            for key in keys:
                document = self._documents.get(key)
                if document is not None:
                    writers, seen = dict(document.writers), dict(document.seen)
                    writers.pop(writer, None)
                    seen.pop(writer, None)
                    self._documents[key] = replace(document, writers=writers, seen=seen)

    def time_s(self) -> float:
        """See ``CounterStore.time_s``."""
        return self._clock()

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """See ``CounterStore.time_limit``. Nothing blocks here."""
        return nullcontext()

    def close(self) -> None:
        """See ``CounterStore.close``."""

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def _latest_frame_s(document: Snapshot) -> int:
    return max((start_s for frames in document.hits.values() for start_s in frames), default=0)
