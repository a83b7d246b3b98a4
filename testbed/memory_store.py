"""Counters in the memory of one process, for tests and simulations."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.process.fork import call_in_child
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult

T = TypeVar("T")


class MemoryStore:
    """Shared counters of the limiters in one process. Thread-safe; nothing ever expires."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the two below
        self._documents: dict[Key, Snapshot] = {}
        self._expire_at_s: dict[Key, float] = {}
        call_in_child(self._renew_lock)

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        with self._lock:
            return {key: self._documents[key] for key in keys if key in self._documents}

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        with self._lock:
            return WriteResult(lost=[index for index, change in enumerate(changes) if not self._apply(writer, change)])

    def _apply(self, writer: str, change: Change) -> bool:
        found = self._documents.get(change.key)
        if not _is_expected(found, writer, change):
            return False
        found = found or Snapshot(0, {}, {})
        hits = {series: dict(frames) for series, frames in found.hits.items()}
        for series, start_s in change.expired_frames:
            if start_s not in change.hits.get(series, {}):
                hits.get(series, {}).pop(start_s, None)
        for series, frames in change.hits.items():
            counts = hits.setdefault(series, {})
            for start_s, count in frames.items():
                counts[start_s] = counts.get(start_s, 0) + count
        self._expire_at_s[change.key] = max(change.expire_at_s, self._expire_at_s.get(change.key, 0.0))
        horizons = dict(found.horizons)
        for series, horizon_s in change.horizons.items():
            horizons[series] = max(horizon_s, horizons.get(series, 0))
        self._documents[change.key] = Snapshot(
            change.next_version if change.mark is None else found.version + 1,
            hits,
            {**_without(found.writers, change.expired_writers), writer: change.write_number},
            horizons=horizons,
            seen={**_without(found.seen, change.expired_writers), writer: self._clock()},
        )
        return True

    def remove(self, key: Key) -> None:
        """Remove a document, as expiry or an operator would."""
        with self._lock:
            self._documents.pop(key, None)
            self._expire_at_s.pop(key, None)

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        with self._lock:
            last_first = sorted(self._documents, key=self._expire_at_s.__getitem__, reverse=True)
            return {key: self._documents[key] for key in last_first[:count]}

    def remove_marks(self, writer: str, marks: Mapping[Key, int]) -> None:
        with self._lock:
            for key, mark in marks.items():
                document = self._documents.get(key)
                if document is not None and document.writers.get(writer) == mark:
                    writers, seen = _without(document.writers, [writer]), _without(document.seen, [writer])
                    self._documents[key] = replace(document, writers=writers, seen=seen)

    def progress(self) -> None:
        """None: there is one state only."""

    def follow(self, progress: int) -> None:
        """Nothing to follow."""

    def time_s(self) -> float:
        return self._clock()

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """Nothing blocks here."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is open."""

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def _is_expected(found: Snapshot | None, writer: str, change: Change) -> bool:
    if found is None or change.version is None or change.mark is None:
        return change.version == (found.version if found else None)
    return change.version <= found.version <= change.last_version and found.writers.get(writer) == change.mark


def _without(marks: Mapping[str, T], writers: Sequence[str]) -> dict[str, T]:
    return {name: mark for name, mark in marks.items() if name not in writers}
