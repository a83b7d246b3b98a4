"""
The limiters that are compared, each behind one call: ``hit(user)``.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
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

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.store.base import CounterStore

Hit = Callable[[str], object]

CLIENT_ID = "partner-app"
NO_LIMIT = 10**9  # hits per minute: none is denied
STRATEGIES: dict[str, type[RateLimiter]] = {
    "fixed": FixedWindowRateLimiter,
    "sliding": SlidingWindowCounterRateLimiter,
    "moving": MovingWindowRateLimiter,
}


def silence() -> None:
    """
    Keep log events of the limiters off the terminal.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def user_names(count: int) -> list[str]:
    """
    Return names as issuers have them: every other one a mail address, the others UUIDs. Always the same ones.
    """
    source = random.Random(1)
    names = []
    for index in range(count):
        number = source.getrandbits(128)
        is_mail = index % 2
        names.append(f"user.{number % 10**9}@example.com" if is_mail else str(uuid.UUID(int=number, version=4)))
    return names


def settings_of(limit: int = NO_LIMIT, *, frames: int | None = None, **more: Any) -> dict[str, Any]:
    """
    Return a configuration that enforces one limit per user and minute; ``more`` stands beside it or instead of it.
    """
    policy: dict[str, Any] = {"limit": limit, "window": 60}
    if frames is not None:
        policy["frames"] = frames
    return {"mode": "enforce", "limits": {"user": [policy]}, **more}


def limiter(config: Mapping[str, Any] | None = None, store: CounterStore | None = None) -> Limiter:
    """
    Return our limiter.
    """
    return Limiter(load_config(config or settings_of()), store=store)


def ours(config: Mapping[str, Any] | None = None, *, client_id: str = CLIENT_ID) -> Hit:
    """
    Return a hit on our limiter.
    """
    return partial(limiter(config).check, client_id)


def limits(strategy: str = "sliding", *, limit: int = NO_LIMIT, storage: Storage | None = None) -> Hit:
    """
    Return a hit on the limits library.
    """
    strategy_of = STRATEGIES[strategy](storage or MemoryStorage())
    return partial(strategy_of.hit, RateLimitItemPerMinute(limit), CLIENT_ID)


def shared_limits(uri: str) -> Hit:
    """
    Return a hit on the limits library with a server, ``redis://`` or ``mongodb://``.
    """
    return limits(storage=storage_from_string(uri))  # type: ignore[arg-type]  # the sync one, by its scheme


def throttled(limit: int = NO_LIMIT) -> Hit:
    """
    Return a hit on throttled-py, sliding window.
    """
    store = MemoryStore(options={"MAX_SIZE": 10**7})
    return Throttled(using=RateLimiterType.SLIDING_WINDOW.value, quota=per_min(limit), store=store).limit


class _BucketPerName(BucketFactory):
    """
    The documented way to one limit per key; without its thread that forgets old hits.
    """

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
    """
    Return a hit on pyrate-limiter, its log of hits in memory.
    """
    return partial(PyrateLimiter(_BucketPerName(limit)).try_acquire, blocking=False)
