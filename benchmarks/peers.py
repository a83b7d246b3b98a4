"""The limiters that ours is compared with, each behind one call: ``hit(user)``."""

import time
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

from benchmarks.subjects import CLIENT_ID, NO_LIMIT, Hit

STRATEGIES: dict[str, type[RateLimiter]] = {
    "fixed": FixedWindowRateLimiter,
    "sliding": SlidingWindowCounterRateLimiter,
    "moving": MovingWindowRateLimiter,
}


def limits(strategy: str = "sliding", *, limit: int = NO_LIMIT, storage: Storage | None = None) -> Hit:
    """Return a hit on the limits library."""
    limiter = STRATEGIES[strategy](storage or MemoryStorage())
    return partial(limiter.hit, RateLimitItemPerMinute(limit), CLIENT_ID)


def shared_limits(uri: str) -> Hit:
    """Return a hit on the limits library with a server, ``redis://`` or ``mongodb://``."""
    return limits(storage=storage_from_string(uri))  # type: ignore[arg-type]  # not async, by its scheme


def throttled(limit: int = NO_LIMIT) -> Hit:
    """Return a hit on throttled-py with a sliding window."""
    store = MemoryStore(options={"MAX_SIZE": 10**7})
    return Throttled(using=RateLimiterType.SLIDING_WINDOW.value, quota=per_min(limit), store=store).limit


class _BucketPerName(BucketFactory):
    """Creates one bucket per key, as the library's documentation does, without the thread that forgets old hits."""

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
    """Return a hit on pyrate-limiter, whose log of hits is in memory."""
    return partial(PyrateLimiter(_BucketPerName(limit)).try_acquire, blocking=False)
