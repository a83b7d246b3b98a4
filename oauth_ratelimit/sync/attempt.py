"""Writes whose outcome is unknown, and the outcome that a document shows. ``docs/guarantees.md`` has the argument."""

import enum
import json
from dataclasses import dataclass

from oauth_ratelimit.store.base import UNUSABLE_VERSION, Hits, Snapshot


class WriteOutcome(enum.Enum):
    """Outcome of a write, as a document shows it."""

    UNKNOWN = enum.auto()
    """It may have been applied, or may still be."""

    APPLIED = enum.auto()
    """The document holds its mark."""

    NOT_APPLIED = enum.auto()
    """The document has moved on without it, so that it never will be applied."""

    EXPIRED = enum.auto()
    """The document may have lost its mark. No window that was known when it was written holds its hits any more."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A write that is under way, or whose outcome is unknown. It is recorded before it is sent.

    While the document has not moved on, the same write is sent again: same hits, same number, and the version that was
    read. The late write and the new one exclude each other. Hits that came since wait until the outcome is known.
    """

    write_number: int  # the number that the document holds as this writer's mark if the write was applied
    version: int | None  # the version that the document must have for it; None if it must not exist
    hits: Hits
    begun_s: float  # time of the first try, by a clock that is never set
    # Longest horizon that the document had if the write was applied, as far as it was known at that time
    horizon_s: int
    was_sent: bool = True  # False if no try has reached a server
    mark: int | None = None  # this writer's mark that the document must hold instead of the version
    last_version: int = 0  # the highest version that it may have then

    def dump(self) -> str:
        """Return all but the hits as text."""
        return json.dumps(
            (
                self.write_number,
                self.version,
                self.begun_s,
                self.horizon_s,
                self.was_sent,
                self.mark,
                self.last_version,
            )
        )

    @classmethod
    def of(cls, dumped: str, hits: Hits) -> "Attempt":
        write_number, version, *others = json.loads(dumped)
        return cls(write_number, version, hits, *others)

    def outcome(self, snapshot: Snapshot | None, monotonic_s: float, *, writer: str) -> WriteOutcome:
        """Return the outcome that a document shows; None is one that does not exist."""
        if snapshot is None:
            return WriteOutcome.UNKNOWN if self.version is None else WriteOutcome.NOT_APPLIED
        if snapshot.writers.get(writer) == self.write_number:
            return WriteOutcome.APPLIED
        # In quarantine the mark may be among what cannot be read.
        if snapshot.version in (self.version, UNUSABLE_VERSION):
            return WriteOutcome.UNKNOWN
        is_marked = self.mark is not None and snapshot.writers.get(writer) == self.mark
        if is_marked and snapshot.version <= self.last_version:
            return WriteOutcome.UNKNOWN
        if not self.was_sent:
            return WriteOutcome.NOT_APPLIED
        # Not the horizons of now: they may have been raised after the mark was removed.
        # Nor a minute more: the mark is dated and removed by servers whose clocks may differ by that much.
        if monotonic_s - self.begun_s > self.horizon_s:
            return WriteOutcome.EXPIRED
        # A first write can still be applied: as soon as the document is removed.
        return WriteOutcome.UNKNOWN if self.version is None else WriteOutcome.NOT_APPLIED
