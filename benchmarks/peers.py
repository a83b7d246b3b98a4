"""The limiters that ours is compared with, each behind one call: ``hit(user)``."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, Storage, storage_from_string
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)
from pyrate_limiter import BucketFactory, InMemoryBucket, Rate, RateItem
from pyrate_limiter import Limiter as PyrateLimiter
from throttled import RateLimiterType, Throttled, per_min
from throttled.store import MemoryStore

from benchmarks.cases import Repeated, hot, many
from benchmarks.subjects import CLIENT_ID, NO_LIMIT, Hit

STRATEGIES: dict[str, type[RateLimiter]] = {
    "fixed": FixedWindowRateLimiter,
    "sliding": SlidingWindowCounterRateLimiter,
    "moving": MovingWindowRateLimiter,
}


def limits(strategy: str = "sliding", *, limit: int = NO_LIMIT, storage: Storage | None = None) -> Hit:
    """Return a hit on the limits library."""
    strategy_of = STRATEGIES[strategy](storage or MemoryStorage())
    return partial(strategy_of.hit, RateLimitItemPerMinute(limit), CLIENT_ID)


def shared_limits(uri: str) -> Hit:
    """Return a hit on the limits library with a server, ``redis://`` or ``mongodb://``."""
    return limits(storage=storage_from_string(uri))  # type: ignore[arg-type]  # the sync one, by its scheme


def throttled(limit: int = NO_LIMIT) -> Hit:
    """Return a hit on throttled-py, sliding window."""
    store = MemoryStore(options={"MAX_SIZE": 10**7})
    return Throttled(using=RateLimiterType.SLIDING_WINDOW.value, quota=per_min(limit), store=store).limit


class _BucketPerName(BucketFactory):
    """The documented way to one limit per key; without its thread that forgets old hits."""

    def __init__(self, limit: int) -> None:
        self._rates = [Rate(limit, 60_000)]
        self._buckets: dict[str, InMemoryBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, int(time.monotonic() * 1000), weight=weight)

    def get(self, item: RateItem) -> InMemoryBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = InMemoryBucket(self._rates)
        return bucket


def pyrate(limit: int = NO_LIMIT) -> Hit:
    """Return a hit on pyrate-limiter, its log of hits in memory."""
    return partial(PyrateLimiter(_BucketPerName(limit)).try_acquire, blocking=False)


CASES: Mapping[str, Callable[[], Repeated]] = {
    "limits": lambda: hot(limits()),
    "limits, many keys": lambda: many(limits()),
    "limits, denied": lambda: hot(limits(limit=1)),
}
"""As ``benchmarks.cases.CASES``."""
