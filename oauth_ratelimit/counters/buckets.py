"""
The buckets of one key, and what happens to its counts when its tiers change.
"""

from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.counters import hits as arithmetic
from oauth_ratelimit.counters.bucket import NO_FRAMES, Bucket
from oauth_ratelimit.store.base import Hits


class Buckets(Bucket):
    """
    The buckets of one key: one for each of its tiers.

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
        """
        One for each tier.
        """
        return (self, *self.others)

    @property
    def is_near_limit(self) -> bool:
        """
        Whether the next request should not be decided without asking the store. The lock of the place is held.
        """
        return any(bucket.full >= bucket.alert for bucket in self.buckets)

    def has_used(self, ratio: float) -> bool:
        """
        Whether at least this share of a limit is used up. A glance without the lock, good enough to choose
        what to read.
        """
        return any(bucket.full + bucket.edge >= ratio * bucket.tier.limit for bucket in self.buckets)

    def drain_all(self) -> Hits:
        """
        Return the hits that no flush has taken yet, by series, and mark them as taken.

        Tiers of the same series count the same requests, so one of their buckets is enough. The lock of the place is
        held by the caller.
        """
        fresh: dict[str, dict[int, int]] = {}
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
        former: dict[str, Bucket] = {}
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
