"""A document as this host knows it, and a write to it whose outcome may be unknown."""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.hits import pack_hits, pack_horizons, unpack_hits, unpack_horizons
from oauth_ratelimit.store.base import UNUSABLE_VERSION, Hits, Snapshot
from oauth_ratelimit.sync.pruning import NOTHING_PRUNABLE, Prunable

MAX_NUMBER = 2**62  # of a row and of a document: they have 64 bits


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
        hits = (pack_hits(self.hits) or b"").hex()
        others = self.begun_s, self.horizon_s, self.was_sent, self.mark, self.last_version
        return json.dumps((self.write_number, self.version, hits, *others))

    @classmethod
    def of(cls, dumped: str) -> "Attempt":
        write_number, version, hits, *others = json.loads(dumped)
        found = cls(write_number, version, unpack_hits(bytes.fromhex(hits)), *others)
        known = [each for each in (version, found.mark) if each is not None]
        for each in (write_number, found.begun_s, found.horizon_s, found.last_version, *known):
            if not isinstance(each, int | float) or abs(each) > MAX_NUMBER:
                raise TypeError(f"no number of an attempt: {each!r:.20}")
        return found

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


@dataclass(slots=True, eq=False)
class Document:
    """Known state of a document: by the last read, and by own writes since."""

    version: int | None = None  # None without a document, or if it was not read yet
    mark: int | None = None  # the number of this writer's last write in it
    is_stale: bool = False  # it has probably changed, so it is read before the next write
    read_s: float | None = None  # time of the last read; None if it was never read, or must be
    known_s: float | None = None  # time at which the last read or write has shown all hits of others
    newest_s: int = 0  # start of the newest frame in it, that of a write under way included
    horizons: Mapping[Series, int] = field(default_factory=dict)
    prunable: Prunable = NOTHING_PRUNABLE  # parts that the next writes remove from it

    @property
    def is_quarantined(self) -> bool:
        """True if it is damaged, so that it is not written. Hits are kept until it is repaired or gone."""
        return self.version == UNUSABLE_VERSION

    @classmethod
    def of(cls, columns: Sequence[Any]) -> "Document":
        version, mark, is_stale, read_s, known_s, newest_s, horizons, prunable = columns
        parts = NOTHING_PRUNABLE
        if prunable is not None:
            frames, writers = json.loads(prunable)
            parts = Prunable(tuple((Series(*series), start_s) for series, start_s in frames), tuple(writers))
        return cls(version, mark, bool(is_stale), read_s, known_s, newest_s, unpack_horizons(horizons), parts)

    def columns(self) -> Sequence[Any]:
        plain = self.version, self.mark, self.is_stale, self.read_s, self.known_s, self.newest_s
        prunable = None if self.prunable is NOTHING_PRUNABLE else json.dumps(self.prunable)
        return *plain, pack_horizons(self.horizons), prunable
