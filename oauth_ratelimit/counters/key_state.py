"""State of one key in an instance: its counts, and the synchronisation with its document.

``docs/guarantees.md`` draws the states that hits in flight go through.

While the outcome is unknown and the document has not moved on, the same write is sent again: same hits, same number,
same version. The late write and the new one exclude each other. Hits that came since wait until the outcome is known.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest

from oauth_ratelimit.core.cached_denial import CachedDenial
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series, Tier
from oauth_ratelimit.core.window import shared
from oauth_ratelimit.counters import hits as arithmetic
from oauth_ratelimit.counters.attempt import Attempt, Outcome
from oauth_ratelimit.counters.bucket import NO_FRAMES, Bucket, Frames, KeyBuckets
from oauth_ratelimit.counters.client_scope import NO_HORIZONS, ClientScope
from oauth_ratelimit.counters.pruning import NOTHING_PRUNABLE, Prunable, recent_writer_count
from oauth_ratelimit.store.base import MAX_HORIZON_S, UNUSABLE_VERSION, Hits, Snapshot

SPARE_FRAMES = 10  # that can wait to be sent besides those of the widest window: a clock may have stepped
FILLING_RATIO = 1 / 4  # of a limit; below it, reading at the next request is cheaper (benchmarks/scaling.py)


class Due(enum.Enum):
    """Position of a key in the sync schedule, if it is not due in a later cycle."""

    UNLISTED = enum.auto()
    """In no cycle, until a request marks the key as dirty."""

    NEXT = enum.auto()
    """In the next cycle."""

    TAKEN = enum.auto()
    """In the present cycle."""

    FORGOTTEN = enum.auto()
    """Never again: the key was dropped."""


class Horizons(enum.Enum):
    """State of the horizons of the key's tiers."""

    MISSING = enum.auto()
    """Not known, so the next write raises them."""

    SENT = enum.auto()
    """A write under way raises them."""

    STORED = enum.auto()
    """The document holds them."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Hits of a key, as an instance knows them.

    Attributes:
        shared_hits: The global snapshot, ``g``.
        in_flight_hits: Counted here and not acknowledged by the store, ``i``.
    """

    shared_hits: int
    in_flight_hits: int


class KeyState(KeyBuckets):
    """State of one key. There is one for each document in a process.

    The client's lock guards the buckets, ``pending``, ``cached_denial``, ``is_dirty`` and ``horizons``. The sync cycle
    alone uses the rest.

    Attributes:
        cached_denial: The denial to repeat, if there is one.
        is_dirty: A request came since the last cycle.
        is_urgent: The key is to be synchronised before the next cycle.
        read_before_write: The document has probably changed, so the next write reads it first.
        version: The document's version as last known; None if there is no document, or it was not read yet.
        unsent: Hits that the cycle has taken and the document is not known to hold. Never changed in place.
        attempt: The write whose outcome is unknown, None if there is none.
        horizons: Whether the document holds the horizons of the tiers.
        longest_s: Longest horizon in the document, that of a write under way included; 0 if there is none.
        newest_s: Start of the newest frame in the document, likewise.
        is_marked: Whether the document holds this instance's mark.
        peers: Number of instances that have written the document lately, this one included.
        prunable: Parts that the next writes remove from the document.
        seen_s: Time of the last cycle that found requests.
        read_s: Time of the last read; ``-inf`` if the document may hold hits of a series that is new here. Guarded by
            the client's lock, too.
        pull_gap: Cycles from one read to the next while nothing happens.
        due_cycle: Number of the next cycle that takes the key, or a position in the schedule.
    """

    __slots__ = (
        "attempt",
        "cached_denial",
        "client",
        "due_cycle",
        "horizons",
        "is_dirty",
        "is_marked",
        "is_urgent",
        "longest_s",
        "newest_s",
        "peers",
        "prunable",
        "pull_gap",
        "read_before_write",
        "read_s",
        "scope",
        "seen_s",
        "unsent",
        "username",
        "version",
    )

    def __init__(
        self, client: ClientScope, username: str | None, scope: str | None, tiers: tuple[Tier, ...], now_s: float
    ) -> None:
        super().__init__(tiers, now_s)
        self.client = client
        self.username = username
        self.scope = scope
        self.cached_denial: CachedDenial | None = None
        self.is_dirty = False
        self.read_before_write = False
        self.is_urgent = False
        self.version: int | None = None
        self.unsent: Hits | None = None
        self.attempt: Attempt | None = None
        self.horizons = Horizons.MISSING
        self.longest_s = 0
        self.newest_s = 0
        self.is_marked = False
        self.peers = 1
        self.prunable = NOTHING_PRUNABLE
        self.seen_s = now_s
        self.read_s = now_s
        self.pull_gap = 0
        self.due_cycle: Due | int = Due.UNLISTED
        for bucket in self.buckets if client.peers.is_shared else ():
            if client.peers.reserves:
                bucket.distrust()
            else:
                bucket.watch_unread(peers=client.peers.most_count)

    @property
    def key(self) -> Key:
        """The document's identity."""
        return Key(self.client.client_id, self.username, self.scope)

    @property
    def is_total(self) -> bool:
        """True if the key counts all users of the client together."""
        return self.scope != self.client.scope

    def take(self) -> int:
        """Move the fresh hits to ``unsent``, and return the number of hits that were dropped to bound the memory.

        No clock decides what is dropped: a clock that steps ahead must lose nothing.
        """
        with self.client.lock:
            self.is_dirty = False
            fresh = self.drain_all()
        taken = arithmetic.added(self.unsent, fresh) if self.unsent else fresh
        dropped = 0
        # The first test alone is quick.
        if max(map(len, taken.values()), default=0) > SPARE_FRAMES and any(
            len(frames) > self._max_frames(series) for series, frames in taken.items()
        ):
            dropped = arithmetic.total(taken)
            sent = self.attempt.hits if self.attempt else {}
            taken = {
                series: _newest(frames, self._max_frames(series), kept=sent.get(series, NO_FRAMES))
                for series, frames in taken.items()
            }
            dropped -= arithmetic.total(taken)
        self.unsent = taken or None
        return dropped

    def discard(self) -> None:
        """Drop all hits that were not sent. The client's lock is held."""
        self.drain_all()
        self.is_dirty = False
        self.unsent = self.attempt = None

    def _max_frames(self, series: Series) -> int:
        """Return how many frames of a series can wait to be sent, besides those of the attempt."""
        return self.client.horizon_s // series.frame_s + SPARE_FRAMES

    @property
    def is_quarantined(self) -> bool:
        """True if the document is damaged, so that it is not written. Hits are kept until it is repaired or gone."""
        return self.version == UNUSABLE_VERSION

    def resolve(self, writer: str, snapshot: Snapshot | None, monotonic_s: float) -> int:
        """Settle the attempt if the document shows its outcome, and return the number of hits dropped.

        Hits are dropped if the outcome can no longer be known: they may be in the document, and matter to nobody.

        Args:
            writer: This instance's name in the document.
            snapshot: The document; None if it does not exist.
            monotonic_s: The time, by a clock that is never set.
        """
        if self.attempt is None:
            return 0
        outcome = self.attempt.outcome(snapshot, monotonic_s, writer=writer)
        if outcome is Outcome.PENDING:
            return 0
        attempt, self.attempt = self.attempt, None
        if outcome is not Outcome.NOT_APPLIED:
            self.unsent = arithmetic.taken_off(self.unsent or {}, attempt.hits) or None
        return self._request_count(attempt.hits) if outcome is Outcome.EXPIRED else 0

    def merge(
        self, snapshot: Snapshot | None, now_s: float, *, writer: str, prunable: Prunable = NOTHING_PRUNABLE
    ) -> int:
        """Take over the document that was read, and return how many hits of other instances were new here.

        Args:
            snapshot: The document; None if it does not exist.
            now_s: The time.
            writer: This instance's name in the document.
            prunable: Parts of it that the next writes remove.
        """
        hits: Hits = snapshot.hits if snapshot else {}
        self.version = snapshot.version if snapshot else None
        self.prunable = prunable
        self.is_marked = snapshot is not None and writer in snapshot.writers
        if snapshot:
            self._note_writers(snapshot)
        stored = snapshot.horizons if snapshot else NO_HORIZONS
        self.longest_s = max(stored.values(), default=0)
        self.newest_s = shared(max(map(max, filter(None, hits.values())), default=0))
        with self.client.lock:
            is_stored = all(stored.get(series, 0) >= horizon_s for series, horizon_s in self._own_horizons().items())
            self.horizons = Horizons.STORED if is_stored else Horizons.MISSING
            self.read_s = now_s
            self.cached_denial = None
            sources = [source for source in (hits, self.unsent, self.pending) if source]
            remote_hits = 0
            for bucket in self.buckets:
                bucket.left_s(now_s)
                before = bucket.full
                bucket.load(now_s, *(source.get(bucket.tier.series, NO_FRAMES) for source in sources))
                remote_hits = max(remote_hits, bucket.full - before)
                self._watch(bucket, now_s)
        return remote_hits

    def _watch(self, bucket: Bucket, now_s: float) -> float:
        others = self.client.peers
        # Expect instances that have not come to this key yet.
        return bucket.watch(now_s, peers=max(self.peers, others.most_count), reserves=others.reserves)

    def _note_writers(self, snapshot: Snapshot) -> None:
        # This instance counts before its first write, too.
        self.peers = recent_writer_count(snapshot, horizon_s=self.client.horizon_s) + (not self.is_marked)
        self.client.peers.most_count = max(self.client.peers.most_count, self.peers)

    def change_tiers(self, tiers: tuple[Tier, ...], now_s: float) -> bool:
        """Apply other tiers, and return whether the document must be read for it. See ``KeyBuckets.replace_tiers``."""
        self.cached_denial = None
        self.horizons = Horizons.MISSING
        incomplete = self.replace_tiers(tiers, now_s, unsent=self.unsent)
        for bucket in self.buckets if self.client.peers.is_shared else ():
            self._watch(bucket, now_s)
        if incomplete:
            self.read_s = -math.inf
            if self.client.peers.reserves:
                for bucket in incomplete:
                    bucket.distrust()
        return bool(incomplete)

    def raise_horizons(self) -> Mapping[Series, int]:
        """Return the horizons that the document may lack, for the write that is to raise them."""
        if self.horizons is Horizons.STORED:
            return NO_HORIZONS
        with self.client.lock:
            self.horizons = Horizons.SENT
            horizons = self._own_horizons()
        self.longest_s = max(self.longest_s, *horizons.values())
        return horizons

    def end_s(self, hits: Hits) -> int:
        """Note hits of a write, and return when no window holds any frame of the document any more."""
        self.newest_s = shared(max(self.newest_s, *map(max, hits.values())))
        return self.newest_s + self.longest_s

    def _own_horizons(self) -> dict[Series, int]:
        """Return the horizons of the tiers, and of the series with hits to be sent."""
        former = self.client.former_horizons
        horizons: dict[Series, int] = {}
        for bucket in self.buckets:
            series = bucket.tier.series
            horizon_s = max(bucket.tier.horizon_s, former.get(series, 0), horizons.get(series, 0))
            horizons[series] = min(horizon_s, MAX_HORIZON_S)
        for series in self.unsent or ():
            horizons.setdefault(series, former.get(series, self.client.horizon_s))
        return horizons

    def commit(self, version: int, hits: Hits, now_s: float) -> Mapping[str, int]:
        """Note that a write was applied, and that no other instance has written the document.

        Returns:
            Hits of the write above each limit, by policy: the excess of the total, at most the hits of the write.
            Writes have an order, so no two instances count the same hit.

        Args:
            version: The version of the document.
            hits: The hits of the write.
            now_s: The time.
        """
        self.version = version
        self.unsent = None if hits is self.unsent else arithmetic.taken_off(self.unsent or {}, hits) or None
        self.attempt = None
        self.prunable = self.prunable.after_write()
        self.is_marked = True
        if self.horizons is Horizons.SENT:
            with self.client.lock:
                if self.horizons is Horizons.SENT:  # else the tiers have changed since
                    self.horizons = Horizons.STORED
        over: dict[str, int] = {}
        with self.client.lock:
            for bucket in self.buckets:
                estimate = self._watch(bucket, now_s)
                excess = bucket.excess(estimate) if estimate > bucket.tier.limit else 0
                if excess:
                    own = sum(hits.get(bucket.tier.series, NO_FRAMES).values())
                    over[bucket.tier.policy.name] = min(own, excess)
        return over

    def counts(self) -> Counts:
        """Return the shared hits in the frames of the widest window, and all hits in flight."""
        frames = self.frames()
        taken = arithmetic.added(self.unsent or {}, self.pending or {})
        own = [
            taken.get(self.tier.series, NO_FRAMES),
            self.carried or NO_FRAMES,
            {self.frame_start_s: self.full - self.sent},
        ]
        fresh = sum(sum(hits.values()) for hits in own[1:])
        known = sum(hits for source in own for start_s, hits in source.items() if start_s in frames)
        return Counts(max(0, sum(frames.values()) - known), self._request_count(taken) + fresh)

    @property
    def unconfirmed_hits(self) -> int:
        """Number of hits in a write that may have been applied."""
        return self._request_count(self.attempt.hits) if self.attempt and self.attempt.was_sent else 0

    def _request_count(self, hits: Hits) -> int:
        """Return the number of requests in hits. A request is in the hits of every tier: one of them is enough."""
        series = {bucket.tier.series for bucket in self.buckets}
        of_former_tiers = (sum(frames.values()) for name, frames in hits.items() if name not in series)
        return sum(hits.get(self.tier.series, NO_FRAMES).values()) + max(of_former_tiers, default=0)

    def must_read(self, now_s: float) -> bool:
        """Return whether the document is read although the write was no conflict.

        The reading finds parts to remove, and the hits of a series that is new here.
        """
        return now_s - self.read_s > 2 * self.client.horizon_s

    def room(self, now_s: float) -> float:
        """Return the hits that are left of the limit with least left, ``inf`` if no limit is filling up."""
        with self.client.lock:
            used = [(bucket.tier.limit, bucket.estimate(now_s)) for bucket in self.buckets]
        is_filling = any(estimate >= FILLING_RATIO * limit for limit, estimate in used)
        return min(limit - estimate for limit, estimate in used) if is_filling else math.inf

    @property
    def is_filling(self) -> bool:
        """True if so much of a limit is used up that the hits of other instances may soon matter."""
        return self.has_used(FILLING_RATIO)

    def is_idle(self, now_s: float) -> bool:
        """Return whether all hits counted here have left every window."""
        return now_s - self.seen_s > self.client.horizon_s

    @property
    def is_settled(self) -> bool:
        """True if the key can be forgotten without losing a hit. The client's lock is held."""
        return not (self.is_dirty or self.unsent or self.attempt)


def _newest(frames: Frames, count: int, *, kept: Frames) -> Frames:
    """Return the newest frames, and older ones that are to be kept."""
    newest = nlargest(count, frames)
    return {start_s: hits for start_s, hits in frames.items() if start_s >= newest[-1] or start_s in kept}
