"""A key as an instance knows it.

The states of a key, seen from the cycle that synchronises it::

                    a request             the cycle takes the hits
        fresh ───────────────► in flight ─────────────────────────► flushing
          ▲                        ▲                                 │  │  │
          │ applied                │ not applied: lost the race      │  │  │ no answer
          ├────────────────────────┼─────────────────────────────────┘  │  ▼
          │                        └── conflict: read, merge ◄──────────┘ unknown
          │                        ▲                                        │ read
          └────────────────────────┴────────────────────────────────────────┘
            the document holds the mark    it has moved on without the mark

While the outcome is unknown and the document has not moved on, the hits are sent again for the same version: the write
that may still arrive and the new one exclude each other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oauth_ratelimit.core.decision import CachedDenial
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series, Tier
from oauth_ratelimit.counters import hits as arithmetic
from oauth_ratelimit.counters.bucket import NO_FRAMES, Bucket
from oauth_ratelimit.counters.pruning import NOTHING_PRUNABLE, prunable_of
from oauth_ratelimit.store.base import UNUSABLE_VERSION, Hits, Snapshot

if TYPE_CHECKING:
    from oauth_ratelimit.counters.client_state import ClientState


class Buckets(Bucket):
    """The buckets of one key: one for each of its tiers.

    It is the bucket of its first tier itself: most keys have no other, and then one object is all that a request has to
    fetch and the garbage collector to look at.

    Attributes:
        others: The buckets of further tiers.
        pending: Hits by series that were counted before the tiers changed and that no flush has taken yet; None if
            there are none.
    """

    __slots__ = ("others", "pending")

    def __init__(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        self._begin(tiers, now_s)
        self.pending: Hits | None = None

    def _begin(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        Bucket.__init__(self, tiers[0], now_s)
        self.others = tuple(Bucket(tier, now_s) for tier in tiers[1:])

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """One for each tier."""
        return (self, *self.others)

    @property
    def is_near_limit(self) -> bool:
        """Whether the next request should not be decided without asking the store. The lock of the place is held."""
        return any(bucket.full >= bucket.alert for bucket in self.buckets)

    def has_used(self, ratio: float) -> bool:
        """Whether at least this share of a limit is used up. A glance without the lock, good enough to choose
        what to read.
        """
        return any(bucket.full + bucket.edge >= ratio * bucket.tier.limit for bucket in self.buckets)

    def drain_all(self) -> Hits:
        """Return the hits that no flush has taken yet, by series, and mark them as taken.

        Tiers of the same series count the same requests, so one of their buckets is enough. The lock of the place is
        held by the caller.
        """
        fresh: dict[Series, dict[int, int]] = {}
        for bucket in self.buckets:
            frames = bucket.drain()
            if frames:
                fresh.setdefault(bucket.tier.series, frames)
        if self.pending is None:
            return fresh
        pending, self.pending = self.pending, None
        return arithmetic.added(pending, fresh)

    def replace_tiers(self, tiers: tuple[Tier, ...], now_s: float, *, unsent: Hits | None) -> list[Bucket]:
        """
        Apply other tiers. A series that stays the same keeps its counts; another starts with its in-flight hits only.

        Hits that no flush has taken stay pending in the series that they were counted in. The lock of the place is held
        by the caller.

        Args:
            tiers: The new tiers.
            now_s: The time.
            unsent: In-flight hits that a flush has taken.

        Returns:
            The new buckets that lack what the document may hold of their series.
        """
        pending = self.drain_all()
        former: dict[Series, Bucket] = {}
        for bucket in (self.copy(), *self.others):
            former.setdefault(bucket.tier.series, bucket)  # of several, the one of the widest window
        self._begin(tiers, now_s)
        self.pending = pending or None
        incomplete = []
        for bucket in self.buckets:
            series = bucket.tier.series
            before = former.get(series)
            if before is not None:
                bucket.continue_from(before, now_s)
            else:
                bucket.load(now_s, *(hits.get(series, NO_FRAMES) for hits in (pending, unsent) if hits))
            if before is None or before.tier.frame_count < bucket.tier.frame_count:
                incomplete.append(bucket)
        return incomplete


FOLLOWED_RATIO = 1 / 4  # of a limit; less is cheaper to learn anew when a request comes (benchmarks/accuracy.py)
UNLISTED, FORGOTTEN = 0, -2  # no slot of the agenda; and never one again


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write whose outcome is unknown. All attempts of a key name the same version, so at most one is ever applied."""

    flush_id: int
    hits: Hits


@dataclass(frozen=True, slots=True)
class Counts:
    """What an instance knows of a key.

    Attributes:
        shared_hits: The global snapshot, ``g``.
        in_flight_hits: Counted here and not known to be in the store, ``i``.
    """

    shared_hits: int
    in_flight_hits: int


class KeyState(Buckets):
    """All that an instance knows of one key.

    The client's lock guards the buckets, ``cached_denial`` and ``is_dirty``; only the sync cycle uses the rest.

    Attributes:
        refusal: What requests are told until a moment, if nothing changes.
        is_touched: A request came since the last cycle.
        is_contested: The last write lost a race, so the next one reads first.
        is_urgent: A request asked for a sync before the next cycle.
        version: The document's version as last known; None if there is no document, or none was read yet.
        unsent: Hits that the cycle has taken and that are not known to be in the document. Never changed in place.
        attempts: Writes whose outcome is unknown.
        peers: How many instances have written the document lately, this one included.
        stale: What the next writes remove from the document.
        seen_s: When the cycle last saw a request's touch.
        read_s: When the document was last read; ``-inf`` if it may hold hits of a series that is new here. Guarded by
            the lock of the place, too.
        pull_gap: Cycles from one read to the next while nothing happens.
        agenda_slot: When the key is next looked at, see ``SyncSchedule``.
    """

    __slots__ = (
        "attempts",
        "cached_denial",
        "client",
        "due_cycle",
        "is_dirty",
        "is_urgent",
        "peers",
        "prunable",
        "pull_gap",
        "read_s",
        "reads_first",
        "scope",
        "seen_s",
        "unsent",
        "username",
        "version",
    )

    def __init__(
        self, client: "ClientState", username: str | None, scope: str | None, tiers: tuple[Tier, ...], now_s: float
    ) -> None:
        super().__init__(tiers, now_s)
        self.client = client
        self.username = username
        self.scope = scope
        self.cached_denial: CachedDenial | None = None
        self.is_dirty = False
        self.reads_first = False
        self.is_urgent = False
        self.version: int | None = None
        self.unsent: Hits | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.peers = 1
        self.prunable = NOTHING_PRUNABLE
        self.seen_s = now_s
        self.read_s = now_s
        self.pull_gap = 0
        self.due_cycle = UNLISTED

    @property
    def key(self) -> Key:
        """The document's identity."""
        return Key(self.client.client_id, self.username, self.scope)

    def take(self, now_s: float) -> int:
        """Move what requests have counted to ``unsent``.

        Returns:
            How many hits were dropped, because their frames have left every window.
        """
        with self.client.lock:
            self.is_dirty = False
            fresh = self.drain_all()
        taken = arithmetic.added(self.unsent, fresh) if self.unsent else fresh
        oldest_s = now_s - self.client.horizon_s
        dropped = 0
        if any(min(frames) <= oldest_s for frames in taken.values()):
            dropped = arithmetic.total(taken)
            taken = arithmetic.later_than(taken, oldest_s)
            dropped -= arithmetic.total(taken)
        self.unsent = taken or None
        if not taken:
            self.attempts = ()  # nothing is left that they could have sent
        return dropped

    @property
    def is_quarantined(self) -> bool:
        """Whether nothing can be sent, because the document is damaged. Hits are kept as long as they matter."""
        return self.version == UNUSABLE_VERSION

    def resolve(self, writer: str, snapshot: Snapshot | None) -> None:
        """Decide the attempts of unknown outcome, as far as the document tells.

        Args:
            writer: This instance's name in the document.
            snapshot: The document; None if it does not exist.
        """
        mark = snapshot.writers.get(writer) if snapshot else None
        for attempt in self.attempts:
            if attempt.flush_id == mark:
                self.unsent = arithmetic.taken_off(self.unsent or {}, attempt.hits) or None
                self.attempts = ()
        if self.attempts and self.version != (snapshot.version if snapshot else None):
            self.attempts = ()  # the version they name is over, so none of them can be applied any more

    def merge(self, snapshot: Snapshot | None, now_s: float, *, flush_id: int) -> None:
        """Take over what was read.

        Args:
            snapshot: The document; None if it does not exist.
            now_s: The time.
            flush_id: This instance's present flush number, to tell old marks by.
        """
        hits: Hits = snapshot.hits if snapshot else {}
        self.version = snapshot.version if snapshot else None
        if snapshot:
            series = {bucket.tier.series for bucket in self.buckets}
            self.prunable = prunable_of(
                snapshot, series, horizon_s=self.client.horizon_s, now_s=now_s, flush_id=flush_id
            )
            self._note_writers(snapshot.writers, flush_id)
        with self.client.lock:
            self.read_s = now_s
            self.cached_denial = None
            sources = [source for source in (hits, self.unsent, self.pending) if source]
            for bucket in self.buckets:
                bucket.load(now_s, *(source.get(bucket.tier.series, NO_FRAMES) for source in sources))
                self._watch(bucket, now_s)

    def _watch(self, bucket: Bucket, now_s: float) -> None:
        reserves = self.client.reserves
        # Who asks for certainty reckons with every instance that counts anything, not only with those seen on this key.
        peers = max(self.peers, self.client.dirty_queue.peer_count) if reserves else self.peers
        bucket.watch(now_s, peers=peers, reserves=reserves)

    def _note_writers(self, writers: Mapping[str, int], flush_id: int) -> None:
        lately_id = flush_id - self.client.horizon_s * 1000
        self.peers = max(1, sum(last_id >= lately_id for last_id in writers.values()))
        self.client.dirty_queue.see_peers(self.peers)

    def change_tiers(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        """
        Apply other tiers, see ``Buckets.replace_tiers``. A series that is new here is soon read from the document. The
        lock of the place is held by the caller.
        """
        self.cached_denial = None
        incomplete = self.replace_tiers(tiers, now_s, unsent=self.unsent)
        for bucket in self.buckets:
            self._watch(bucket, now_s)
        if incomplete:
            self.read_s = -math.inf
            self.client.dirty_queue.mark_urgent(self)
            if self.client.reserves:
                for bucket in incomplete:
                    bucket.distrust()

    def commit(self, version: int, now_s: float) -> None:
        """Note that the hits in ``unsent`` are in the document, and that nobody else has written it."""
        self.version = version
        self.unsent = None
        self.attempts = ()
        self.prunable = self.prunable.after_write()
        if self.peers > 1 or self.client.reserves:
            with self.client.lock:
                for bucket in self.buckets:
                    self._watch(bucket, now_s)

    def counts(self) -> Counts:
        """
        Return the hits of the widest window's frames, and all that are in flight. The lock of the place is held by the
        caller.
        """
        frames = self.frames()
        taken = arithmetic.added(self.unsent or {}, self.pending or {})
        own = [
            taken.get(self.tier.series, NO_FRAMES),
            self.carried or NO_FRAMES,
            {self.frame_start_s: self.full - self.sent},
        ]
        series = {bucket.tier.series for bucket in self.buckets}
        before = (sum(hits.values()) for name, hits in taken.items() if name not in series)  # the tiers changed
        in_flight = sum(sum(hits.values()) for hits in own) + max(before, default=0)
        known = sum(hits for source in own for start_s, hits in source.items() if start_s in frames)
        return Counts(max(0, sum(frames.values()) - known), in_flight)

    def is_to_be_read(self, now_s: float) -> bool:
        """Whether a document that is written without conflict should be read all the same: to see what it can lose, and
        what it holds of a series that is new here.
        """
        return now_s - self.read_s > 2 * self.client.horizon_s

    @property
    def is_filling(self) -> bool:
        """Whether so much of a limit is used up that what others count may soon matter."""
        return self.has_used(FOLLOWED_RATIO)

    @property
    def is_followed(self) -> bool:
        """Whether the document is to be read although nobody asks for the key here."""
        return not self.pull_gap or self.is_filling

    def is_idle(self, now_s: float) -> bool:
        """Whether everything counted here has left every window."""
        return now_s - self.seen_s > self.client.horizon_s

    @property
    def is_settled(self) -> bool:
        """Whether nothing would be lost if the key were forgotten. Only true while the lock of the place is held."""
        return not (self.is_dirty or self.unsent or self.attempts)
