"""Pruning of documents: frames that have left every window, and marks of instances that are gone."""

from collections.abc import Collection
from typing import NamedTuple

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Snapshot

SLACK_S = 60  # for which a frame is kept after it has left every window, for instances whose clock is behind
WIDEST_WINDOW_S = 366 * 86_400  # for series of instances with other limits
WRITER_SLACK_S = 600  # for which a mark is kept longer than a frame, because the writer's clock dates it
MAX_PRUNED = 50  # frames, and marks, per write: MongoDB searches the whole document for each


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


def prunable_of(
    snapshot: Snapshot, own: Collection[Series], *, horizon_s: int, now_s: float, flush_id: int
) -> Prunable:
    """Return the parts of a document that can be removed.

    Args:
        snapshot: The document.
        own: The series that this instance counts in. Others are kept for the widest window there can be.
        horizon_s: Seconds for which a frame can matter here, from its start.
        now_s: The time.
        flush_id: This instance's present flush number. Much lower writer marks are old.
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
