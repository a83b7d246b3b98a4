"""
All buckets of a key: one for each of its tiers, and what is left of tiers that it had before.
"""

from typing import NamedTuple

from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.store.base import Hits
from oauth_ratelimit.sync.counters import Bucket, Frames, refit


class Former(NamedTuple):
    """
    What is left of tiers that a key had before.

    Attributes:
        retired: Their buckets whose hits are still to be taken.

        inherited: Hits counted in frames of their length, as estimates start from them; they are never sent again.
    """

    retired: tuple[Bucket, ...] = ()
    inherited: Hits = {}  # noqa: RUF012  # a default that nobody changes


NO_FORMER = Former()  # of nearly all keys: one object instead of many


class Buckets(Bucket):
    """
    The buckets of one key.

    It is the bucket of its first tier itself: most keys have no other, and then one object is all that a request has to
    fetch and the garbage collector to look at.

    Attributes:
        others: The buckets of further tiers.

        former: What is left of tiers that it had before.
    """

    __slots__ = ("former", "others")

    def __init__(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        self._begin(tiers, now_s)
        self.former = NO_FORMER

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

    def inherit(self, hits: Hits, now_s: float) -> None:
        """
        Start from what a document holds of tiers that this process never had, because it started after they changed.

        Only where nothing was counted under the present tiers: else hits of both could be the same requests'. The lock
        of the place is held by the caller.

        Args:
            hits: What the document holds.

            now_s: The time.
        """
        if not hits or self.former.inherited or any(bucket.tier.series in hits for bucket in self.buckets):
            return
        finest_s, finest = min((int(series.partition("+")[0]), series) for series in hits)
        inherited = {
            bucket.tier.series: _refitted(hits[finest], bucket.tier, from_s=finest_s, now_s=now_s)
            for bucket in self.buckets
        }
        self.former = Former(self.former.retired, inherited)

    def adopt(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        """
        Go on under new tiers from what is known under the old ones. The lock of the place is held by the caller.
        """
        if [bucket.tier for bucket in self.buckets] == list(tiers):
            return
        buckets = (self.copy(), *self.others)
        former = {bucket.tier.series: bucket for bucket in reversed(buckets)}
        finest = min(buckets, key=lambda bucket: bucket.tier.frame_s)
        inherited = dict(self.former.inherited)
        self._begin(tiers, now_s)
        for bucket in self.buckets:
            series = bucket.tier.series
            if series in former:
                bucket.continue_from(former[series], now_s)
            else:
                inherited[series] = _refitted(finest.frames(), bucket.tier, from_s=finest.tier.frame_s, now_s=now_s)
                bucket.load(now_s, inherited[series])
        kept = {tier.series for tier in tiers}
        retired = tuple(bucket for series, bucket in former.items() if series not in kept)
        self.former = Former(self.former.retired + retired, inherited)


def _refitted(frames: Frames, tier: Tier, *, from_s: int, now_s: float) -> Frames:
    window = tier.policy.window
    oldest_s = window.frame_start_s(now_s) - window.window_s
    return refit(frames, from_s=from_s, to_s=window.frame_s, oldest_s=oldest_s, now_s=now_s)
