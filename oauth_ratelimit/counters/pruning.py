"""What documents can lose: frames that no window reaches any more, and marks of instances that are gone."""

from collections.abc import Collection
from typing import NamedTuple

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Snapshot

SLACK_S = 60  # how long after its last use a frame is kept, for instances with another clock or a wider window
WIDEST_WINDOW_S = 366 * 86_400  # of an instance with other limits, whose frames are not ours to judge
WRITER_SLACK_S = 600  # how much longer a writer's mark is kept, which is dated by the writer's clock
MAX_PRUNED = 50  # frames and marks removed by one write: MongoDB looks through the whole document for each


class Prunable(NamedTuple):
    """What the next writes remove from a document, ``MAX_PRUNED`` of each.

    Attributes:
        frames: Series and frame starts.
        writers: Marks.
    """

    frames: tuple[tuple[Series, int], ...] = ()
    writers: tuple[str, ...] = ()

    def after_write(self) -> "Prunable":
        """Return what is left for later writes."""
        if self is NOTHING_PRUNABLE:
            return self
        return _prunable(self.frames[MAX_PRUNED:], self.writers[MAX_PRUNED:])


NOTHING_PRUNABLE = Prunable()  # of nearly all keys: one object instead of many


def prunable_of(
    snapshot: Snapshot, own: Collection[Series], *, horizon_s: int, now_s: float, flush_id: int
) -> Prunable:
    """Return what a document can lose.

    Args:
        snapshot: The document.
        own: The series that this instance counts in; those of others are kept for the widest window there can be.
        horizon_s: How long a frame can matter here, from its start.
        now_s: The time.
        flush_id: This instance's present flush number, to tell old marks by.
    """
    oldest_s = now_s - horizon_s - SLACK_S
    frames = tuple(
        (series, start_s)
        for series, frames in snapshot.hits.items()
        for start_s in frames
        if start_s < (oldest_s if series in own else oldest_s - WIDEST_WINDOW_S)
    )
    oldest_id = flush_id - (horizon_s + WRITER_SLACK_S) * 1000
    return _prunable(frames, tuple(name for name, last_id in snapshot.writers.items() if last_id < oldest_id))


def _prunable(frames: tuple[tuple[Series, int], ...], writers: tuple[str, ...]) -> Prunable:
    return Prunable(frames, writers) if frames or writers else NOTHING_PRUNABLE
