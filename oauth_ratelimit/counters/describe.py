"""
Decisions described with all their figures, from the buckets that a request concerns. Their lock is held by the caller.
"""

import math
from collections.abc import Sequence
from operator import itemgetter

from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.counters.bucket import Bucket


def over_limit(buckets: Sequence[Bucket], now_s: float, cost: int) -> list[Bucket]:
    """
    Return the buckets that do not admit a request.
    """
    return [bucket for bucket in buckets if bucket.estimate(now_s) > bucket.tier.limit - cost]


def admission(buckets: Sequence[Bucket], now_s: float) -> FullDecision:
    """
    Describe a request that all buckets admit: the one with least left is told of.
    """
    room, nearest = min(((bucket.tier.limit - bucket.estimate(now_s), bucket) for bucket in buckets), key=itemgetter(0))
    tier = nearest.tier
    return FullDecision(
        allowed=True,
        would_deny=False,
        mode=tier.mode,
        rule=tier.policy,
        remaining=int(room),
        reset_after_s=nearest.reset_after_s(now_s),
    )


def denial(buckets: Sequence[Bucket], over: Sequence[Bucket], now_s: float, *, cost: int) -> FullDecision:
    """
    Describe a request that is over the limit of some buckets: it fits when all that can deny it admit it at once.
    """
    denied = any(bucket.tier.is_enforced for bucket in over)
    concerned = [bucket for bucket in buckets if bucket.tier.is_enforced or not denied]
    retry_after_s, last = 0.0, over[0]
    while True:
        later_s, bucket = max(
            ((bucket.retry_after_s(now_s, cost=cost, later_s=retry_after_s), bucket) for bucket in concerned),
            key=itemgetter(0),
        )
        if later_s <= retry_after_s:
            break
        retry_after_s, last = later_s, bucket
        if math.isinf(later_s):
            break
    return FullDecision(
        allowed=not denied,
        would_deny=True,
        mode=last.tier.mode,
        rule=last.tier.policy,
        remaining=max(0, math.floor(min(bucket.tier.limit - bucket.estimate(now_s) for bucket in concerned))),
        reset_after_s=last.reset_after_s(now_s),
        retry_after_s=retry_after_s,
    )
