"""The protocol of a shared store, and the values that cross it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series

Hits = Mapping[Series, Mapping[int, int]]
"""Hits by series and frame start in seconds since the epoch."""

UNUSABLE_VERSION = -1
"""Of a document whose version is no version: it cannot be changed by compare-and-set, until somebody mends it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One document as it was read.

    Attributes:
        version: Grows by one with every write; never repeats, not even after the document was removed and made anew.
            ``UNUSABLE_VERSION`` if it is damaged.
        hits: What all instances have counted.
        writers: For each instance that wrote, the number of its last flush that is in the document.
        damage: Fields that are not of our form; what could not be read of them counts as not there.
    """

    version: int
    hits: Hits
    writers: Mapping[str, int]
    damage: tuple[str, ...] = ()


@dataclass(slots=True)
class Change:
    """Hits to be added to one document, if it is still at the version that was read.

    Args:
        key: The document.
        version: The version it must have; None if it must not exist.
        next_version: The version it will have.
        flush_id: The number of this attempt, left in the document as the writer's mark.
        hits: What to add.
        expire_at_s: When the last of these hits has left every window, seconds since the epoch.
        stale_frames: Series and frame starts to remove, because no window can hold them any more.
        stale_writers: Marks to remove, because nothing those instances sent can still matter.
    """

    key: Key
    version: int | None
    next_version: int
    flush_id: int
    hits: Hits
    expire_at_s: float
    expired_frames: Sequence[tuple[Series, int]] = ()
    expired_writers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did; every change in neither field was applied.

    Attributes:
        lost: Positions of the changes whose document was not at the expected version. Nothing of them was applied.
        rejected: By position, why the store will never apply this change.
    """

    lost: Sequence[int] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)


class CounterStore(Protocol):
    """Shared, versioned counters. Implementations compare and set; they never decide.

    All methods may block on the network. They raise ``StoreUnavailable`` when the store does not answer and
    ``StoreRejected`` when it refuses, and nothing else.
    """

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """
        Return the documents that exist. Only what a majority of servers has; never older than this store's own writes.
        """

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Apply each change whose document is at the expected version, in one round trip.

        Each change is atomic by itself. A retry never counts twice as long as it names the same version: the document
        moves on with the first that arrives. After ``StoreUnavailable`` each change may have been applied, or may be
        applied later; ``Snapshot.writers`` tells.
        """

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """Return up to ``count`` documents, those that were written for the latest frames first."""

    def clock_offset_s(self) -> float:
        """Return how far the store's clock is ahead of this machine's, in seconds, to about half a round trip."""

    def close(self) -> None:
        """Release connections. Idempotent."""
