"""Protocol of the shared counters, and the values that cross it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series

Hits = Mapping[Series, Mapping[int, int]]
"""Hits by series and frame start in seconds since the epoch."""

MAX_HORIZON_S = 366 * 86_400
"""The longest horizon of a series, in seconds. It holds for a series whose horizon is not known."""

UNUSABLE_VERSION = -1
"""Version of a document that is in quarantine: nothing is written to it until somebody repairs or removes it."""


ERASURES = Key("", None, "oauth_ratelimit:erasures")
"""Key under which ``read`` returns the erasures of users: in ``seen``, the time of each by its ``erasure_mark``."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One document as it was read.

    Attributes:
        version: Grows with every write and never repeats, not even after the document was removed and created again.
            ``UNUSABLE_VERSION`` if the document is in quarantine, because it holds values of another form.
        hits: The hits that all instances have counted.
        writers: The number of the last flush of each instance that is in the document.
        damage: Fields with a wrong form; the wrong parts are missing from this snapshot.
        horizons: Seconds for which a frame of a series can matter to any instance, from its start. Missing for series
            that only earlier versions have written.
        seen: Time of the last flush of each instance by the store's clock, seconds since the epoch. Missing for
            instances of earlier versions. Not compared.
    """

    version: int
    hits: Hits
    writers: Mapping[str, int]
    damage: tuple[str, ...] = ()
    horizons: Mapping[Series, int] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class Change:
    """Hits to be added to one document, if it is still at the version that was read.

    Args:
        key: The document.
        version: The version it must have; None if it must not exist.
        next_version: The version it will have.
        flush_id: The number of this attempt, stored in the document as the writer's mark.
        hits: The hits to add.
        expire_at_s: Time at which the document's newest hit has left every window, seconds since the epoch.
        expired_frames: Series and frame starts to remove, because no window holds them any more.
        expired_writers: Writers whose marks are removed, because none of their writes can still arrive. The writer's
            own mark and frames that hits are added to stay.
        horizons: Horizons of series, which are raised to these and never lowered.
    """

    key: Key
    version: int | None
    next_version: int
    flush_id: int
    hits: Hits
    expire_at_s: float
    expired_frames: Sequence[tuple[Series, int]] = ()
    expired_writers: Sequence[str] = ()
    horizons: Mapping[Series, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of a write. Every change that is in neither field was applied.

    Attributes:
        lost: Positions of the changes whose document was not at the expected version; they were not applied.
        rejected: Reasons by position of the changes that the store will never apply.
    """

    lost: Sequence[int] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)


class CounterStore(Protocol):
    """Shared, versioned counters. Implementations compare and set; they never decide.

    All methods may block on the network. They raise ``StoreUnavailable`` if the store does not answer, its subclass
    ``StoreUnreachable`` if nothing was sent, ``StoreRejected`` if it refuses, and nothing else. One sync cycle uses a
    store at a time; ``latest`` may run beside it. A store can be created before a fork and used in the child.
    """

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Return the documents that exist, as a majority of servers has them and never older than the last write.

        ``ERASURES`` comes with them if users were erased lately.
        """

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Apply each change whose document is at the expected version, in one round trip.

        Each change is atomic by itself. A retry with the same version never counts twice: only the first that arrives
        finds this version. After ``StoreUnavailable`` each change may have been applied or may be applied later;
        ``Snapshot.writers`` shows which. The store dates the writer's mark by its own clock.
        """

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """Return up to ``count`` documents, those with the latest frames first. Large ones are left out."""

    def leave(self, writer: str, keys: Sequence[Key]) -> None:
        """Remove a writer's marks from documents, without a new version. The writer does not write again.

        Best effort: marks that stay are removed by later writers.
        """

    def time_s(self) -> float:
        """Return the time of the store's clock in seconds since the epoch."""

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """Let all operations of this thread in a ``with`` block end within some seconds together.

        Blocks may be nested; the one that ends first counts. An operation that is cut off raises ``StoreUnavailable``.
        """

    def close(self) -> None:
        """Release connections. Idempotent."""
