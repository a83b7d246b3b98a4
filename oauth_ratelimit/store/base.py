"""Protocol of the shared counters, and the values that cross it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.core.window import MAX_WINDOW_S

Hits = Mapping[Series, Mapping[int, int]]
"""Hits by series and frame start in seconds since the epoch."""

MAX_HORIZON_S = 2 * MAX_WINDOW_S
"""The longest horizon of a series, in seconds: a window and one frame. It holds if the horizon is not known."""

VERSION_JUMP = 2**20
"""Added to a version by a change that every instance has to notice: more than a ``last_version`` is ahead."""

UNUSABLE_VERSION = -1
"""Version of a document that is in quarantine: nothing is written to it until somebody repairs or removes it."""

TOO_LARGE = "size"
"""Damage of a document that is too large to be read."""

MAX_WHOLE = 16
"""Documents that can be read at once, whatever valid size they have."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One document as it was read."""

    # Chosen by the writer. Grows with every write and never repeats, not even after the document was removed and
    # created again. ``UNUSABLE_VERSION`` if the document is in quarantine, because it holds a value of another form.
    # Then nothing else is known of it.
    version: int
    hits: Hits  # the hits that all instances have counted
    writers: Mapping[str, int]  # the number of the last write of each instance that is in the document
    damage: str | None = None  # field for which the document is in quarantine; None if it is not
    # Seconds for which a frame of a series can matter to any instance, from its start
    horizons: Mapping[Series, int] = field(default_factory=dict)
    # Time of the last write of each instance by the store's clock, seconds since the epoch. Not compared.
    seen: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def newest_s(self) -> int:
        """Start of the newest frame, 0 without one."""
        return max(map(max, filter(None, self.hits.values())), default=0)


@dataclass(slots=True, eq=False)
class Change:
    """Hits to be added to one document, if it is still at the version that was read.

    Or, with a ``mark``, if this writer's own mark is still that and the version at most ``last_version``: what others
    have written since does not matter.
    """

    key: Key
    version: int | None  # the version it must have; None if it must not exist
    next_version: int  # the version it will have; with a mark, as much above the one that it has by then
    write_number: int  # the number of the write, stored in the document as the writer's mark
    hits: Hits
    # Time at which the document's newest hit has left every window, plus a minute's slack; seconds since the epoch. The
    # store may remove the document after it, never before; a later change only raises it.
    expire_at_s: float
    # Series and frame starts to remove, because no window holds them any more
    expired_frames: Sequence[tuple[Series, int]] = ()
    # Writers whose marks are removed, because none of their writes can still arrive. The writer's own mark and frames
    # that hits are added to stay.
    expired_writers: Sequence[str] = ()
    # Horizons of series, which are raised to these and never lowered
    horizons: Mapping[Series, int] = field(default_factory=dict)
    mark: int | None = None
    last_version: int = 0


class WriteResult(NamedTuple):
    """Result of a write. Every change that is in neither field was applied."""

    # Positions of the changes whose document was not at the expected version; they were not applied
    lost: Sequence[int] = ()
    # Reasons by position of the changes that the store refused, not as a lost race
    rejected: Mapping[int, str] = MappingProxyType({})


class CounterStore(Protocol):
    """Shared, versioned counters. Implementations compare and set; they never decide.

    All methods may block on the network. They raise ``StoreUnavailable`` if the store does not answer, its subclass
    ``StoreUnreachable`` if nothing was sent, ``StoreRejected`` if it refuses, and nothing else. Calls come from several
    threads, one at a time; only ``latest`` and ``close`` may come while another one runs. A store can be created before
    a fork and used in the child (``process.fork.call_in_child``). Names have at most 512 characters of valid Unicode,
    NUL included; None and "" differ.
    """

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Return the documents that exist, as a majority of servers has them and never older than the last write.

        Of more than ``MAX_WHOLE``, larger ones may be ``TOO_LARGE`` to be read together.
        """

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Apply each change whose document is at the expected version, or holds the expected mark, in one round trip.

        Each change is atomic by itself. A retry with the same version never counts twice: only the first that arrives
        finds this version. After ``StoreUnavailable`` each change may have been applied or may be applied later;
        ``Snapshot.writers`` shows which. The store dates the writer's mark by its own clock.
        """

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """Return up to ``count`` documents, those that may be removed last first. Large ones are left out."""

    def remove_marks(self, writer: str, marks: Mapping[Key, int]) -> None:
        """Remove a writer's marks from documents, without a new version, where they still are those of its last writes.

        Best effort: marks that stay are removed by later writers.
        """

    def progress(self) -> int | None:
        """Return how far the state has come that this process has seen, to be followed by another; None if unknown."""

    def follow(self, progress: int) -> None:
        """Let no later read return an older state than another process has seen, whose ``progress`` this is."""

    def time_s(self) -> float:
        """Return the time of the store's clock in seconds since the epoch."""

    def time_limit(self, seconds: float) -> AbstractContextManager[None]:
        """Let all operations of this thread in a ``with`` block end within some seconds together.

        Blocks may be nested; the one that ends first counts. An operation that is cut off raises ``StoreUnavailable``.
        """

    def close(self) -> None:
        """Release connections. Idempotent."""
