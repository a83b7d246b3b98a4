"""State of one key: its counters, and what ``sync/protocol.py`` knows of the document that all instances share."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import TYPE_CHECKING

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Content, Series, Tier
from oauth_ratelimit.counters.attempt import Attempt
from oauth_ratelimit.counters.bucket import FAR_RATIO, FEWEST_UNSENT, NO_FRAMES, UNSENT_RATIO, Bucket
from oauth_ratelimit.counters.due_queue import Due, Slot
from oauth_ratelimit.counters.pruning import NOTHING_PRUNABLE, Prunable
from oauth_ratelimit.store.base import UNUSABLE_VERSION, Hits

if TYPE_CHECKING:
    from oauth_ratelimit.counters.client import ClientState

NO_HORIZONS: Mapping[Series, int] = {}
FEW_HITS = 10  # a new key with a lower alert is synchronised at once, any other with the next cycle
WAITS_PER_WINDOW = 10  # so that hits are sent while they matter


@dataclass(slots=True, eq=False)
class SharingState:
    """Other instances that count the same keys."""

    is_shared: bool = True  # there is a store that other instances may use, too
    max_writer_count: int = 1  # the largest number of instances seen on one key, this one included


@dataclass(slots=True, eq=False)
class KeyState:
    """State of one key. There is one for each document in a process. The client's lock guards the counters."""

    client: "ClientState"
    username: str | None  # pseudonym of the user, None for grants without one
    scope: str | None  # what the document counts besides the plain token counter
    tiers: InitVar[tuple[Tier, ...]]
    requested_s: float  # time of the last cycle that found requests
    first: Bucket = field(init=False)  # of the tier with the widest window; it is linked to those of further tiers
    # Hits of earlier frames and former tiers that no flush has taken, None if there are none. Never changed in place.
    fresh_past: Hits | None = None
    is_dirty: bool = False  # a request came since the last cycle
    is_urgent: bool = False  # to be synchronised at once; false for a key that becomes urgent at a time

    # Of the sync cycle alone:
    due: Due | Slot = Due.NEW  # when the cycle takes the key next
    version: int | None = None  # the document's, as last known; None without one, or if it was not read yet
    mark: int | None = None  # the number of this writer's last write in the document, as last known
    unsent: Hits | None = None  # hits that the cycle has taken and that are in no write; never changed in place
    attempt: Attempt | None = None  # the write that is under way, or whose outcome is unknown
    is_stale: bool = False  # the document has probably changed, so it is read before the next write
    horizons: Mapping[Series, int] = field(default_factory=lambda: NO_HORIZONS)  # of the document, as far as known
    newest_s: int = 0  # start of the newest frame in the document, that of a write under way included
    writer_count: int = 1  # instances that have written the document lately, this one included
    prunable: Prunable = NOTHING_PRUNABLE  # parts that the next writes remove from the document
    read_s: float = field(init=False)  # time of the last read; ``-inf`` if a series that is new here may have hits

    def __post_init__(self, tiers: tuple[Tier, ...]) -> None:
        self.first = Bucket(tiers, self.requested_s)
        self.read_s = self.requested_s
        if self.client.sharing.is_shared:
            for bucket in self.buckets():
                bucket.watch_unread(writer_count=self.client.sharing.max_writer_count)

    @property
    def key(self) -> Key:
        return Key(self.client.client_id, self.username, self.scope)

    @property
    def is_total(self) -> bool:
        """True if the key counts all users of the client together."""
        return self.scope != self.client.scope

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the bucket of each tier, the widest window first."""
        buckets: tuple[Bucket, ...] = (self.first,)
        while (bucket := buckets[-1].next) is not None:
            buckets += (bucket,)
        return buckets

    def advance(self, now_s: float) -> None:
        """Move on to the frames that ``now_s`` lies in. Hits of frames that have ended wait for the next flush."""
        for bucket in self.buckets():
            if not bucket.is_current(now_s):
                with AllOrNothing(self, (bucket,)):
                    start_s, fresh = bucket.turn(now_s)
                    if fresh and bucket.tier.sends:
                        self._put_aside(bucket.tier.series, start_s, fresh)

    def _put_aside(self, series: Series, start_s: int, hits: int) -> None:
        # The frame is there already if the clock stepped back into it.
        added = {series: {start_s: hits}}
        self.fresh_past = merged(self.fresh_past, added) if self.fresh_past else added

    def counted(self) -> tuple[Content, ...]:
        """Return the content of the window of each tier."""
        bucket = self.first
        if bucket.next is None:
            return ((bucket.full, bucket.edge, bucket.past, bucket.frame_end_s),)  # quicker than ``content``
        return tuple(bucket.content for bucket in self.buckets())

    @property
    def has_reached_alert(self) -> bool:
        """True if a bucket has reached its alert."""
        return any(bucket.full >= bucket.alert for bucket in self.buckets())

    @property
    def is_urgent_when_new(self) -> bool:
        """True if an unread key's alert is so low that a cycle would come too late: its first hit makes it urgent."""
        return any(bucket.alert < FEW_HITS for bucket in self.buckets())

    @property
    def used_ratio(self) -> float:
        """The share of a limit that is used up, the largest of all limits. Approximate: it needs no lock."""
        return max((bucket.full + bucket.edge) / bucket.tier.limit for bucket in self.buckets())

    @property
    def expected_writer_count(self) -> int:
        """Number of instances that may count this key, this one included: some may not have come to it yet."""
        return max(self.writer_count, self.client.sharing.max_writer_count)

    @property
    def is_far(self) -> bool:
        """True if only ``FAR_RATIO`` of a limit would be used up if every instance had counted as much as this one."""
        writer_count = self.expected_writer_count
        return self.used_ratio < FAR_RATIO / writer_count and all(
            bucket.tier.limit * UNSENT_RATIO >= FEWEST_UNSENT * writer_count for bucket in self.buckets()
        )

    @property
    def goes_by_mark(self) -> bool:
        """True if the next write compares this writer's mark instead of the version, so that nothing is read for it.

        A write that removes anything must know that nobody has written since it was read.
        """
        is_known = self.mark is not None and self.attempt is None and self.prunable is NOTHING_PRUNABLE
        return is_known and self.expected_writer_count > 1 and self.is_far

    @property
    def wait_s(self) -> float:
        """Seconds for which hits may wait to be sent, 0.0 unless the document is known and the key is far."""
        if self.version is None or self.unsent or self.attempt or not self.is_far:
            return 0.0
        return min(bucket.tier.window_s for bucket in self.buckets()) / WAITS_PER_WINDOW

    def gather(self) -> None:
        """Move the fresh hits of the current frames to ``fresh_past``."""
        for bucket in self.buckets():
            fresh = bucket.take_fresh()
            if fresh and bucket.tier.sends:
                self._put_aside(bucket.tier.series, bucket.frame_start_s, fresh)

    def _set_aside(self) -> tuple[Hits | None, ...]:
        """Return the hits in flight but those that are fresh in the buckets."""
        return self.fresh_past, self.unsent, None if self.attempt is None else self.attempt.hits

    def in_flight(self) -> Hits:
        """Return the hits that were counted here and that the store has not acknowledged. The client's lock is held."""
        fresh = {
            bucket.tier.series: {bucket.frame_start_s: bucket.fresh}
            for bucket in self.buckets()
            if bucket.tier.sends and bucket.fresh
        }
        return merged(fresh, *self._set_aside())

    def load(self, hits: Hits, now_s: float) -> None:
        """Replace the counts by those of a document and what it lacks."""
        self.advance(now_s)
        sources = (hits, *self._set_aside())
        with AllOrNothing(self, self.buckets()):
            for bucket in self.buckets():
                bucket.load(*(source.get(bucket.tier.series, NO_FRAMES) for source in sources if source))
        self.client.denials.pop(self, None)

    def watch(self, now_s: float) -> dict[Tier, float]:
        """Set the alerts, and return the excess of limits that are exceeded. The frames are those of ``now_s``."""
        excesses = {}
        writer_count = self.expected_writer_count
        for bucket in self.buckets():
            excess = bucket.watch(now_s, writer_count=writer_count)
            if excess > 0:
                excesses[bucket.tier] = excess
        return excesses

    def change_tiers(self, tiers: tuple[Tier, ...], now_s: float) -> bool:
        """Apply other tiers, and return whether the document must be read for it. The client's lock is held.

        A series that stays the same keeps its counts; a new one starts with its in-flight hits.
        """
        self.advance(now_s)
        self.gather()
        former: dict[Series, Bucket] = {}
        for bucket in self.buckets():
            former.setdefault(bucket.tier.series, bucket)  # the widest window comes first
        self.first = Bucket(tiers, now_s)
        self.client.denials.pop(self, None)
        is_incomplete = False
        for bucket in self.buckets():
            before = former.get(bucket.tier.series)
            if before is None:
                bucket.load(*(hits.get(bucket.tier.series, NO_FRAMES) for hits in self._set_aside() if hits))
            else:
                bucket.continue_from(before)
            is_incomplete |= before is None or before.tier.frame_count < bucket.tier.frame_count
        if self.client.sharing.is_shared:
            self.watch(now_s)
        if is_incomplete:
            self.read_s = -inf
        return is_incomplete

    def is_empty(self, now_s: float) -> bool:
        """Return whether no window holds a hit."""
        self.advance(now_s)
        return not any(bucket.full or bucket.edge for bucket in self.buckets())

    def request_count(self, hits: Hits) -> int:
        """Return the number of requests in hits. A request is in the hits of every tier but those on trial."""
        series = {bucket.tier.series for bucket in self.buckets()}
        counts = [(name in series, sum(frames.values())) for name, frames in hits.items()]
        return sum(max((count for own, count in counts if own is is_own), default=0) for is_own in (True, False))

    @property
    def is_quarantined(self) -> bool:
        """True if the document is damaged, so that it is not written. Hits are kept until it is repaired or gone."""
        return self.version == UNUSABLE_VERSION

    @property
    def is_settled(self) -> bool:
        """True if the key can be forgotten without losing a hit."""
        return not self.is_dirty and not any(self._set_aside())

    def is_idle(self, now_s: float) -> bool:
        """Return whether all hits counted here have left every window."""
        return now_s - self.requested_s > self.client.horizon_s

    @property
    def unconfirmed_hits(self) -> int:
        """Number of hits in a write that may have been applied."""
        return self.request_count(self.attempt.hits) if self.attempt and self.attempt.was_sent else 0


class AllOrNothing:
    """Takes back a half-done move of a key's hits: Ctrl-C raises in a caller of ``sync`` anywhere. The lock is held.

    ``buckets`` are those that it changes.
    """

    __slots__ = ("_buckets", "_hits", "_key")

    def __init__(self, key: KeyState, buckets: Sequence[Bucket] = ()) -> None:
        self._key = key
        self._hits = key.fresh_past, key.unsent, key.attempt, key.is_dirty
        self._buckets = [(bucket, bucket.values()) for bucket in buckets]

    def __enter__(self) -> None:
        """Nothing was changed yet."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._key.fresh_past, self._key.unsent, self._key.attempt, self._key.is_dirty = self._hits
            for bucket, values in self._buckets:
                bucket.restore(values)


def merged(*sources: Hits | None) -> Hits:
    """Return the sum of hits. None are changed in place, because a write may be under way with them."""
    found = list(filter(None, sources))
    if len(found) < 2:
        return found[0] if found else {}
    total: dict[Series, dict[int, int]] = {}
    for hits in found:
        for series, frames in hits.items():
            counts = total.setdefault(series, {})
            for start_s, count in frames.items():
                counts[start_s] = counts.get(start_s, 0) + count
    return total
