"""Parts of documents to remove: frames that no window reaches any more, and marks of instances that are gone.

No instance's own clock decides. The newest parts of a document show whether others may be over. Then the store is asked
for its time, and whatever is over by that time goes.
"""

from collections.abc import Callable
from typing import NamedTuple

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import MAX_HORIZON_S, Snapshot

SLACK_S = 60  # how long after its last use a part is kept: by so much may the clocks of a store's servers differ
UNDATED_SLACK_S = 86_400  # for marks that the store did not date, because an earlier version wrote them
LATELY_S = 60  # between the last writes of instances that count a key at the same time
MAX_PRUNED = 50  # frames and marks removed by one write: MongoDB looks through the whole document for each


class Prunable(NamedTuple):
    """Parts of a document that the next writes remove, ``MAX_PRUNED`` of each kind at a time.

    Attributes:
        frames: Series and start of each frame.
        writers: Names of writers whose marks are removed.
    """

    frames: tuple[tuple[Series, int], ...] = ()
    writers: tuple[str, ...] = ()

    def after_write(self) -> "Prunable":
        """Return the parts that are left for later writes."""
        if self is NOTHING_PRUNABLE:
            return self
        return _prunable(self.frames[MAX_PRUNED:], self.writers[MAX_PRUNED:])


NOTHING_PRUNABLE = Prunable()  # shared by nearly all keys


def prunable_of(snapshot: Snapshot, *, writer: str, store_time_s: Callable[[], float | None]) -> Prunable:
    """Return what a document can lose.

    Args:
        snapshot: The document.
        writer: This instance's name in the document. Its mark stays.
        store_time_s: Returns the time of the store's clock, None if it is not known; then nothing is removed.
    """
    frames_s = max((start_s for frames in snapshot.hits.values() for start_s in frames), default=0)
    seen_s = max(snapshot.seen.values(), default=0.0)
    undated_s = max(seen_s, max(snapshot.writers.values(), default=0) / 1000)
    if _over(snapshot, writer, frames_s=frames_s, seen_s=seen_s, undated_s=undated_s) is NOTHING_PRUNABLE:
        return NOTHING_PRUNABLE
    time_s = store_time_s()
    if time_s is None:
        return NOTHING_PRUNABLE
    return _over(snapshot, writer, frames_s=time_s, seen_s=time_s, undated_s=time_s)


def _over(snapshot: Snapshot, writer: str, *, frames_s: float, seen_s: float, undated_s: float) -> Prunable:
    """Return what is over at a time: that of frames, of marks, and of marks that the store did not date."""
    horizons, seen = snapshot.horizons, snapshot.seen
    frames = tuple(
        (series, start_s)
        for series, frames in snapshot.hits.items()
        for start_s in frames
        if start_s + horizons.get(series, MAX_HORIZON_S) + SLACK_S < frames_s
    )
    longest_s = max(horizons.values(), default=MAX_HORIZON_S)
    oldest_seen_s = seen_s - longest_s - SLACK_S
    oldest_number = (undated_s - longest_s - UNDATED_SLACK_S) * 1000
    marks = [name for name, at_s in seen.items() if at_s < oldest_seen_s and name != writer]
    marks += [
        name
        for name, number in snapshot.writers.items()
        if number < oldest_number and name not in seen and name != writer
    ]
    return _prunable(frames, tuple(marks))


def _prunable(frames: tuple[tuple[Series, int], ...], writers: tuple[str, ...]) -> Prunable:
    return Prunable(frames, writers) if frames or writers else NOTHING_PRUNABLE


def recent_writer_count(snapshot: Snapshot, *, horizon_s: int) -> int:
    """Return the number of instances that have written a document lately, judged by its newest mark.

    Args:
        snapshot: The document.
        horizon_s: How long marks of earlier versions are recent: the store did not date them.
    """
    since_s = max(snapshot.seen.values(), default=0.0) - LATELY_S
    since_number = max(snapshot.writers.values(), default=0) - horizon_s * 1000
    dated = sum(at_s >= since_s for at_s in snapshot.seen.values())
    return dated + sum(number >= since_number for name, number in snapshot.writers.items() if name not in snapshot.seen)
