"""The limiter that is measured, and what is asked of it."""

import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.statistics import Share
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.store.base import CounterStore

Hit = Callable[[str], object]

BASE, OURS = "unprotected", "ours"
CLIENT_ID = "partner-app"
STANDING_S = 1_700_000_000.0
NO_LIMIT = 10**9  # hits per minute: none is denied


def suppression() -> None:
    """Keep log events of the limiters off the terminal."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def user_names(count: int) -> list[str]:
    """Return names as issuers have them: every other one a mail address, the others UUIDs. Always the same ones."""
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


def limiter(
    config: Mapping[str, Any] | None = None,
    store: CounterStore | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> Limiter:
    """Return our limiter."""
    return Limiter(load_config(config or settings_of()), store=store, clock=clock)


def ours(config: Mapping[str, Any] | None = None, *, clock: Callable[[], float] = time.time) -> Hit:
    """Return a hit on our limiter, behind one call as those of its peers: ``hit(user)``."""
    return partial(limiter(config, clock=clock).check, CLIENT_ID)


def noted(config: Mapping[str, Any] | None = None) -> Hit:
    """Return a hit on our limiter that goes into the statistics, as behind the extension."""

    def clock() -> float:
        return STANDING_S

    check = limiter(config, clock=clock).check
    count = StatisticsRecorder(_Nowhere(), settings=StatisticsSettings, clock=clock).count

    def hit(user: str) -> None:
        decision = check(CLIENT_ID, user)
        count(decision, CLIENT_ID, username=user, grant="password")

    return hit


class _Nowhere:
    """Where statistics go that nobody reads."""

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> Sequence[int]:
        """Forget them."""
        return ()
