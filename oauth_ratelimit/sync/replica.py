"""Replica: one document as this host knows it, with the hits that it lacks, and writes whose outcome is unknown.

A replica is a row of the host table, loaded for one step of the sync cycle and stored when the step is done. So its
hits are in one place at any time, and a step that is interrupted has changed nothing. ``docs/guarantees.md`` has the
argument that each hit is stored once.
"""

import secrets
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, inf
from types import NoneType
from typing import Any

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Content, Series, Tier, extend_horizons
from oauth_ratelimit.core.window import MAX_FRAMES
from oauth_ratelimit.counters import urgency
from oauth_ratelimit.counters.hits import (
    Frames,
    Totals,
    bring_back,
    drop_expired,
    far_ahead_s,
    merged,
    pack,
    pack_hits,
    unpack_hits,
)
from oauth_ratelimit.counters.rules import RowLimits, is_total_scope
from oauth_ratelimit.store.base import VERSION_JUMP, Change, Hits, Snapshot
from oauth_ratelimit.sync.document import Attempt, Document, WriteOutcome
from oauth_ratelimit.sync.pruning import MAX_PRUNED, NOTHING_PRUNABLE, SLACK_S, Prunable, count_writers

MAX_OTHER_WRITES = 16  # of each instance, after which a write that compares the mark alone fails: then others are busy
_NUMBERS = int, float, NoneType
SPARE_FRAMES = 10  # that can wait to be sent besides those of the widest window: a clock may have stepped


@dataclass(slots=True, eq=False)
class Replica:
    """Row of the host table during one step of the sync cycle. What few steps need is unpacked at the first look."""

    name: str
    hits: bytes  # packed hits that decisions use
    packed_unsent: bytes | None  # of them, those that are in no write
    writer_count: int  # instances that have written the document lately, this one included; 0 if it was never read
    is_asked: bool  # a request came since the last cycle that took the row
    due_s: float
    urgent_s: float | None
    requested_s: float
    held: bytes | None  # packed hits of requests whose response is not known yet; decisions use them
    attempt: Attempt | None  # the write that is under way, or whose outcome is unknown
    document: Document
    change: int  # number of the row's last change
    columns: Sequence[Any]  # of the row, as it was loaded or stored
    known_writer_count: int  # the most instances that were seen on any key
    key: Key
    limits: RowLimits | None  # the limits that count in it, None without any
    is_forgotten: bool = False  # the row is removed at the end of the step
    _totals: Totals | None = None
    _horizons: Mapping[Series, int] | None = None
    _unsent: dict[Series, Frames] | None = None

    @property
    def totals(self) -> Totals:
        """Hits that decisions use, to look at."""
        if self._totals is None:
            self._totals = Totals(self.hits, inf)
        return self._totals

    @property
    def horizons(self) -> Mapping[Series, int]:
        """Seconds for which a frame of each series can matter."""
        if self._horizons is None:
            horizons = self.totals.horizons()  # of series with hits
            self._horizons = extend_horizons(horizons, self.limits.horizons) if self.limits else horizons
        return self._horizons

    @property
    def unsent(self) -> dict[Series, Frames]:
        """Hits that are in no write. Not to be changed in place: an attempt may hold them."""
        if self._unsent is None:
            self._unsent = unpack_hits(self.packed_unsent)
        return self._unsent

    @unsent.setter
    def unsent(self, hits: dict[Series, Frames]) -> None:
        self._unsent = hits

    @property
    def has_unsent(self) -> bool:
        return bool(self.packed_unsent) if self._unsent is None else bool(self._unsent)

    def check(self) -> None:
        """Raise an exception of ``DAMAGES`` if the row is none that was written by this package."""
        document = self.document
        numbers = self.due_s, self.urgent_s, self.requested_s, document.version, document.mark, document.newest_s
        for number in (*numbers, self.writer_count, document.read_s, document.known_s):
            if not isinstance(number, _NUMBERS):
                raise TypeError(f"no number: {number!r:.20}")
        for packed in (self.hits, self.packed_unsent, self.held):
            if packed and min(array("q", packed)) < 0:
                raise ValueError("negative number")
        for hits in (self.totals.horizons(), self.unsent, unpack_hits(self.held), self.attempt and self.attempt.hits):
            for series in hits or ():
                if not series.frame_s:
                    raise ValueError("no frame")

    @property
    def is_total(self) -> bool:
        """True if it counts all users of a client together."""
        return is_total_scope(self.key.scope)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        return self.limits.tiers if self.limits else ()

    @property
    def horizon_s(self) -> int:
        """Seconds for which the newest hit can matter."""
        return max(self.horizons.values(), default=0)

    @property
    def expected_writer_count(self) -> int:
        """Number of instances that may count this key, this one included: some may not have come to it yet."""
        return max(self.writer_count, self.known_writer_count)

    @property
    def is_clean(self) -> bool:
        """True if no hit is left to send."""
        return self.attempt is None and not self.has_unsent

    @property
    def in_flight(self) -> Hits:
        """Hits that were counted here and that no document is known to hold."""
        return merged(self.unsent, self.attempt.hits if self.attempt else {})

    def contents(self, now_s: float) -> Sequence[Content]:
        """Return the content of the window of each tier."""
        return self.totals.contents(self.tiers, now_s)

    def new_columns(self) -> Sequence[Any]:
        """Return the columns of the row as it is to be stored."""
        return (
            self.name,
            self.hits,
            self.packed_unsent if self._unsent is None else pack_hits(self._unsent),
            self.writer_count,
            self.is_asked,
            self.due_s,
            self.urgent_s,
            self.requested_s,
            self.held,
            self.attempt and self.attempt.dump(),
            *self.document.columns(),
        )

    def is_idle(self, now_s: float) -> bool:
        """Return whether all hits counted here have left every window."""
        return not self.is_asked and now_s - self.requested_s > self.horizon_s

    def is_far(self, now_s: float) -> bool:
        """Return whether the key is far from its limits, so that hits of others may wait."""
        return urgency.is_far(self.tiers, self.contents(now_s), writer_count=self.expected_writer_count)

    def used_ratio(self, now_s: float) -> float:
        """Return the share of a limit that is used up, the largest of all limits."""
        contents = zip(self.tiers, self.contents(now_s), strict=True)
        return max((content.estimate / tier.limit for tier, content in contents), default=0.0)

    @property
    def is_urgent_when_new(self) -> bool:
        """True if so few hits of the unread key may wait that a full cycle would come too late."""
        return urgency.is_urgent_when_new(self.tiers, writer_count=self.expected_writer_count)

    def goes_by_mark(self, now_s: float) -> bool:
        """Return whether the next write compares this writer's mark instead of the version, so that nothing is read.

        A write that removes anything must know that nobody has written since it was read.
        """
        is_known = self.document.mark is not None and self.attempt is None
        is_whole = self.document.prunable is NOTHING_PRUNABLE
        return is_known and is_whole and self.expected_writer_count > 1 and self.is_far(now_s)

    def note_requests(self, now_s: float) -> int:
        """Note the requests since the last cycle, and return the number of those dropped to bound the memory.

        No clock decides what is dropped: a clock that steps ahead must lose nothing.
        """
        if self.is_asked:
            self.is_asked, self.requested_s = False, now_s
        if not self.has_unsent or max(map(len, self.unsent.values())) <= SPARE_FRAMES:
            return 0
        counts = {series: self.horizon_s // series.frame_s + SPARE_FRAMES for series in self.unsent}
        before = self.request_count(self.unsent)
        self.unsent = {s: {at: frames[at] for at in nlargest(counts[s], frames)} for s, frames in self.unsent.items()}
        return before - self.request_count(self.unsent)

    def begin_write(self, write_number: int, now_s: float, monotonic_s: float) -> Change:
        """Record an attempt to write the unsent hits, or the one that is repeated, and return the change to send."""
        document, attempt, mark = self.document, self.attempt, None
        hits = attempt.hits if attempt else self.unsent
        missing = self._missing_horizons(hits)
        longest_s = max((*document.horizons.values(), *missing.values()))
        if attempt is None:
            attempt = Attempt(write_number, document.version, hits, monotonic_s, longest_s)
            if document.version is not None and not missing and self.goes_by_mark(now_s):
                mark = attempt.mark = document.mark
                attempt.last_version = document.version + MAX_OTHER_WRITES * self.expected_writer_count
            self.attempt, self.unsent = attempt, {}
        attempt.was_sent = True  # as far as anybody knows
        document.newest_s = max(document.newest_s, *map(max, hits.values()))
        return Change(
            self.key,
            document.version,
            _next_version(document.version, is_raising=bool(missing)),
            attempt.write_number,
            hits,
            float(document.newest_s + longest_s + SLACK_S),
            document.prunable.frames[:MAX_PRUNED],
            document.prunable.writers[:MAX_PRUNED],
            missing,
            mark,
            attempt.last_version,
        )

    def _missing_horizons(self, hits: Hits) -> dict[Series, int]:
        """Return the horizons of the tiers and of series with hits, as far as the document has shorter ones or none."""
        known = self.document.horizons
        concerned = {tier.series for tier in self.tiers}.union(hits) & self.horizons.keys()
        return {series: self.horizons[series] for series in concerned if self.horizons[series] > known.get(series, 0)}

    def commit(self, change: Change, now_s: float) -> Mapping[str, int]:
        """Note that a write was applied. No other instance has written since, unless it went by the mark.

        Returns:
            Hits of the write above each limit, by policy: the excess of the total, at most the hits of the write.
            Writes have an order, so no two instances count the same hit.
        """
        document = self.document
        if change.version is None:
            document.is_stale = self.known_writer_count > 2  # others will probably have written
            document.read_s, self.writer_count = now_s, max(1, self.writer_count)
        if change.mark is None:
            document.known_s = now_s
        else:
            document.is_stale = True
        document.version, document.mark = change.next_version, change.write_number
        self.attempt = None
        document.prunable = document.prunable.after_write()
        if change.horizons:
            document.horizons = extend_horizons(document.horizons, change.horizons)
        excesses = Counter[str]()
        for tier, content in zip(self.tiers, self.contents(now_s), strict=True):
            excess = content.estimate - tier.limit
            if excess > 0 and self.has_unsent:
                excess -= sum(self.unsent.get(tier.series, {}).values())
            if excess > 0 and not tier.count_denied:
                written = sum(change.hits.get(tier.series, {}).values())
                excesses[tier.policy.name] = min(written, ceil(excess))
        return excesses

    def fail_write(self, *, was_repeated: bool) -> None:
        """Note that the store has not applied a write. If it was a repeat, the first try may have been."""
        if not was_repeated:
            self._send_again()
        self.document.is_stale = True

    def _send_again(self) -> None:
        if self.attempt is not None:
            self.unsent, self.attempt = merged(self.attempt.hits, self.unsent), None

    def resolve(self, writer: str, snapshot: Snapshot | None, monotonic_s: float) -> int:
        """Settle the attempt if the document shows its outcome, and return the number of requests dropped.

        Their hits are dropped if the outcome can no longer be known: they may be in the document, and matter to nobody.
        """
        attempt = self.attempt
        if attempt is None:
            return 0
        outcome = attempt.outcome(snapshot, monotonic_s, writer=writer)
        if outcome is WriteOutcome.NOT_APPLIED:
            self._send_again()
        elif outcome is not WriteOutcome.UNKNOWN:
            self.attempt = None
        return self.request_count(attempt.hits) if outcome is WriteOutcome.EXPIRED else 0

    def merge(self, snapshot: Snapshot | None, now_s: float, *, writer: str, prunable: Prunable) -> int:
        """Take over the document that was read, and return how many hits of other instances were new here."""
        document = Document(is_stale=self.document.is_stale, read_s=now_s, known_s=now_s)
        stored: Hits = {}
        if snapshot:
            document.version, document.mark = snapshot.version, snapshot.writers.get(writer)
            document.newest_s, document.horizons, document.prunable = snapshot.newest_s, snapshot.horizons, prunable
            stored = snapshot.hits
            self.writer_count = count_writers(snapshot, writer=writer)
        self.writer_count = max(1, self.writer_count)
        self.document = document
        before = [content.current + sum(content.past) for content in self.contents(now_s)]
        horizons = extend_horizons(self.horizons, document.horizons)
        known = {series: frames for series, frames in stored.items() if series in horizons}
        hits = merged(_useful(known, now_s), self.in_flight, unpack_hits(self.held))
        bring_back(hits, now_s)
        drop_expired(hits, horizons, now_s)
        self.hits, self._totals, self._horizons = pack(hits, horizons), None, horizons
        after = [content.current + sum(content.past) for content in self.contents(now_s)]
        return max((new - old for new, old in zip(after, before, strict=True)), default=0)

    def request_count(self, hits: Hits) -> int:
        """Return the number of requests in hits. A request is in the hits of every tier but those on trial."""
        series = {tier.series for tier in self.tiers}
        counts = [(name in series, sum(frames.values())) for name, frames in hits.items()]
        return sum(max((count for own, count in counts if own is is_own), default=0) for is_own in (True, False))

    @property
    def unconfirmed_count(self) -> int:
        """Number of requests in a write that may have been applied."""
        return self.request_count(self.attempt.hits) if self.attempt and self.attempt.was_sent else 0

    def must_send(self, now_s: float) -> bool:
        """Return whether so many requests came meanwhile that the row is urgent."""
        return any(
            urgency.must_send(
                tier, content.estimate - fresh, fresh, writer_count=self.expected_writer_count, is_read=True
            )
            for tier, content in zip(self.tiers, self.contents(now_s), strict=True)
            if (fresh := sum(self.unsent.get(tier.series, {}).values()))
        )


def _useful(hits: Hits, now_s: float) -> Hits:
    """Return the newest frames of each series, as many as a limit can have, without those that are far ahead.

    The clock of an instance that counted those is wrong.
    """
    useful: dict[Series, Frames] = {}
    for series, frames in hits.items():
        ahead_s = far_ahead_s(series.frame_s, now_s)
        starts = nlargest(MAX_FRAMES + SPARE_FRAMES, (start_s for start_s in frames if start_s <= ahead_s))
        useful[series] = {start_s: frames[start_s] for start_s in starts}
    return useful


def _next_version(version: int | None, *, is_raising: bool) -> int:
    """Return the version after a write. One that raises a horizon must be noticed by writes that go by their mark.

    That of a first write is one that no earlier document of the key has had, by chance: one of 2^51 numbers.
    """
    if version is None:
        return secrets.randbelow(2**52) | 1
    return version + (VERSION_JUMP if is_raising else 1)
