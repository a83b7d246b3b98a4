"""Writes whose outcome is unknown, and the outcome that a document shows. ``docs/guarantees.md`` has the argument."""

import enum
from dataclasses import dataclass

from oauth_ratelimit.store.base import UNUSABLE_VERSION, Hits, Snapshot


class Outcome(enum.Enum):
    """Outcome of a write, as a document shows it."""

    PENDING = enum.auto()
    """It may have been applied, or may still be."""

    APPLIED = enum.auto()
    """The document holds its mark."""

    NOT_APPLIED = enum.auto()
    """The document has moved on without it, so that it never will be applied."""

    EXPIRED = enum.auto()
    """The document may have lost its mark. No window that was known when it was written holds its hits any more."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write whose outcome is unknown.

    Attributes:
        flush_id: The number that the document holds as this writer's mark if the write was applied.
        version: The version that the document must have for it; None if it must not exist.
        hits: The hits of the write.
        begun_s: Time of the first try, by a clock that is never set.
        horizon_s: Longest horizon that the document had if the write was applied, as far as it was known at that time.
        was_sent: False if it surely never reached a server.
    """

    flush_id: int
    version: int | None
    hits: Hits
    begun_s: float
    horizon_s: int
    was_sent: bool = True

    def outcome(self, snapshot: Snapshot | None, monotonic_s: float, *, writer: str) -> Outcome:
        """Return the outcome that a document shows.

        Args:
            snapshot: The document; None if it does not exist.
            monotonic_s: The time, by a clock that is never set.
            writer: This instance's name in the document.
        """
        if snapshot is None:
            return Outcome.PENDING if self.version is None else Outcome.NOT_APPLIED
        if snapshot.writers.get(writer) == self.flush_id:
            return Outcome.APPLIED
        # In quarantine the mark may be among what cannot be read.
        if snapshot.version in (self.version, UNUSABLE_VERSION):
            return Outcome.PENDING
        if not self.was_sent:
            return Outcome.NOT_APPLIED
        # Not the horizons of now: they may have been raised after the mark was removed.
        # Nor a minute more: the mark is dated and removed by servers whose clocks may differ by that much.
        if monotonic_s - self.begun_s > self.horizon_s:
            return Outcome.EXPIRED
        # A first write can still be applied: as soon as the document is removed.
        return Outcome.PENDING if self.version is None else Outcome.NOT_APPLIED
