"""Counter documents as version 0.1.0 of November 2026 wrote them, for upgrades from it.

That version knows no horizons, does not have MongoDB date its marks, and removes frames and marks by its own clock and
its own window.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.counters import LOST_RACE_CODES, MongoStore
from oauth_ratelimit.store.mongo.document import NO_VERSION, document_id
from oauth_ratelimit.store.mongo.fields import date_of

SLACK_S = 60
WRITER_SLACK_S = 600
WIDEST_WINDOW_S = 366 * 86_400
MAX_STALE = 50


class FormerStore(MongoStore):
    """A store in MongoDB that reads and writes the former document, and removes by a clock of its own.

    Args:
        connection: The connection to the database; closed with the store.
        horizon_s: Window and frame of the limits of the instance.
        frame_s: Length of its frames; those of others are kept for a year.
        clock: The instance's clock.
    """

    def __init__(
        self, connection: Connection, *, horizon_s: int, frame_s: int, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(connection, closes_connection=True)
        self._horizon_s = horizon_s
        self._frame_s = frame_s
        self._clock = clock
        self._last_read: dict[Key, Snapshot] = {}

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Read what the former version read."""
        snapshots = {key: replace(found, horizons={}, seen={}) for key, found in super().read(keys).items()}
        self._last_read.update(snapshots)
        return snapshots

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Write as the former version did."""
        operations = [self._operation(writer, change) for change in changes]
        try:
            with translated_errors():
                opened = self._open()
                opened.collection.bulk_write(operations, ordered=False, session=opened.session)
        except BulkWriteError as exc:
            return WriteResult([error["index"] for error in exc.details["writeErrors"] if _is_lost_race(error)])
        return WriteResult()

    def leave(self, writer: str, keys: Sequence[Key]) -> None:
        """Leave the marks: the former version did not remove its own."""

    def _operation(self, writer: str, change: Change) -> UpdateOne:
        mark = f"writers.{writer}"
        increments: Document = {
            f"requestCounters.{series.frame_s}.{start_s}": count
            for series, frames in change.hits.items()
            for start_s, count in frames.items()
        }
        expire = date_of(change.expire_at_s)
        identity = document_id(change.key)
        if change.version is None:
            update: Document = {
                "$set": {"version": Int64(change.next_version), "expire": expire, mark: Int64(change.flush_id)},
                "$inc": increments,
            }
            return UpdateOne({"_id": identity, "version": NO_VERSION}, update, upsert=True)
        increments["version"] = change.next_version - change.version
        update = {
            "$inc": increments,
            "$set": {mark: Int64(change.flush_id)},
            "$max": {"expire": expire},
            "$setOnInsert": {"_id": None},
        }
        stale = [path for path in self._stale(change) if path != mark and path not in increments]
        if stale:
            update["$unset"] = dict.fromkeys(stale[:MAX_STALE], "")
        return UpdateOne({"_id": identity, "version": Int64(change.version)}, update, upsert=True)

    def _stale(self, change: Change) -> Iterator[str]:
        """Yield the paths that are over by the instance's own clock, marks by that of its process."""
        snapshot = self._last_read.get(change.key)
        if snapshot is None:
            return
        oldest_s = self._clock() - self._horizon_s - SLACK_S
        for series, frames in snapshot.hits.items():
            since_s = oldest_s if series.frame_s == self._frame_s else oldest_s - WIDEST_WINDOW_S
            yield from (f"requestCounters.{series.frame_s}.{start_s}" for start_s in frames if start_s < since_s)
        oldest_id = change.flush_id - (self._horizon_s + WRITER_SLACK_S) * 1000
        yield from (f"writers.{name}" for name, number in snapshot.writers.items() if number < oldest_id)


def _is_lost_race(error: Mapping[str, int]) -> bool:
    return error["code"] in LOST_RACE_CODES
