"""Parts of documents to remove: frames that no window reaches any more, and marks of instances that are gone.

No instance's own clock decides. The newest parts of a document show whether others may be over. Then the store is asked
for its time, and whatever is over by that time goes.
"""

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import MAX_HORIZON_S, Snapshot

SLACK_S = 60  # how long after its last use a part is kept: by so much may the clocks of a store's servers differ
LATELY_S = 60  # between the last writes of instances that count a key at the same time
MAX_PRUNED = 50  # frames and marks removed by one write: MongoDB looks through the whole document for each
MAX_KEPT = 10 * MAX_PRUNED  # of each kind that one read finds; the next one finds the rest


class Prunable(NamedTuple):
    """Parts of a document that the next writes remove, ``MAX_PRUNED`` of each kind at a time."""

    frames: tuple[tuple[Series, int], ...] = ()  # series and start of each frame
    writers: tuple[str, ...] = ()  # names of writers whose marks are removed

    def after_write(self) -> "Prunable":
        """Return the parts that are left for later writes."""
        return _prunable(self.frames[MAX_PRUNED:], self.writers[MAX_PRUNED:])


NOTHING_PRUNABLE = Prunable()  # shared by nearly all keys


def prunable_of(snapshot: Snapshot, *, writer: str, store_time_s: Callable[[], float | None]) -> Prunable:
    """Return what a document can lose, but for the writer's own mark. Nothing while the store's time is not known."""
    seen_s = max(snapshot.seen.values(), default=0.0)
    if _over(snapshot, writer, frames_s=snapshot.newest_s, seen_s=seen_s) is NOTHING_PRUNABLE:
        return NOTHING_PRUNABLE
    time_s = store_time_s()
    return NOTHING_PRUNABLE if time_s is None else _over(snapshot, writer, frames_s=time_s, seen_s=time_s)


def _over(snapshot: Snapshot, writer: str, *, frames_s: float, seen_s: float) -> Prunable:
    """Return what is over at a time: that of frames, and that of marks."""
    horizons = snapshot.horizons
    frames = (
        (series, start_s)
        for series, hits in snapshot.hits.items()
        for oldest_s in [frames_s - horizons.get(series, MAX_HORIZON_S) - SLACK_S]
        if hits and min(hits) < oldest_s
        for start_s in hits
        if start_s < oldest_s
    )
    oldest_seen_s = seen_s - max(horizons.values(), default=MAX_HORIZON_S) - SLACK_S
    marks = (name for name, at_s in snapshot.seen.items() if at_s < oldest_seen_s and name != writer)
    return _prunable(tuple(islice(frames, MAX_KEPT)), tuple(islice(marks, MAX_KEPT)))


def _prunable(frames: tuple[tuple[Series, int], ...], writers: tuple[str, ...]) -> Prunable:
    return Prunable(frames, writers) if frames or writers else NOTHING_PRUNABLE


def count_writers(snapshot: Snapshot, *, writer: str) -> int:
    """Return the number of instances that have written a document lately by its newest mark, this one included."""
    since_s = max(snapshot.seen.values(), default=0.0) - LATELY_S
    return 1 + sum(at_s >= since_s for name, at_s in snapshot.seen.items() if name != writer)
