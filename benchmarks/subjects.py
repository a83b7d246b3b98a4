"""The limiter that is measured, and its configurations."""

import logging
import random
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.store.base import CounterStore

Hit = Callable[[str], object]
"""Makes a decision about one user."""

CLIENT_ID, USER = "partner-app", "user.1@example.com"
FIXED_TIME_S = 1_700_000_000.0
NO_LIMIT = 10**9  # hits per minute: none is denied


def silence_log() -> None:
    """Keep log events of the limiters off the terminal."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def user_names(count: int) -> list[str]:
    """Return names as issuers have them, mail addresses and UUIDs in turn, the same ones in each run."""
    source = random.Random(1)
    names = []
    for index in range(count):
        number = source.getrandbits(128)
        is_mail = index % 2
        names.append(f"user.{number % 10**9}@example.com" if is_mail else str(uuid.UUID(int=number, version=4)))
    return names


def settings_of(limit: int = NO_LIMIT, *, frames: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a configuration that enforces one limit per user and minute. ``more`` adds keys or replaces them."""
    policy: dict[str, Any] = {"limit": limit, "window": 60}
    if frames is not None:
        policy["frames"] = frames
    return {"mode": "enforce", "limits": {"user": [policy]}, **more}


MINUTE, TEN_SECONDS = {"limit": NO_LIMIT, "window": 60}, {"limit": NO_LIMIT, "window": 10}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "k = 1": settings_of(frames=1),
    "k = 60": settings_of(frames=60),
    "two tiers": settings_of(limits={"user": [MINUTE, TEN_SECONDS]}),
    "client_total": settings_of(limits={"user": [MINUTE], "client_total": [MINUTE]}),
    "override": settings_of(clients={CLIENT_ID: {"limits": {"user": [{"limit": 2 * NO_LIMIT, "window": 60}]}}}),
    "trusted": settings_of(trusted_clients=[CLIENT_ID]),
    "proportional": settings_of(limits={"user": [{**MINUTE, "estimator": "proportional"}]}),
}
"""Configurations that are compared with the plain one."""


def limiter(
    config: Mapping[str, Any] | None = None,
    store: CounterStore | None = None,
    *,
    clock: Callable[[], float] | None = None,
) -> Limiter:
    """Return our limiter, in the time of a clock or in the real one."""
    settings = load_config(config or settings_of())
    return Limiter(settings, store) if clock is None else Limiter(settings, store, clock=clock, monotonic=clock)


def ours(config: Mapping[str, Any] | None = None, *, clock: Callable[[], float] | None = None) -> Hit:
    """Return a hit on our limiter."""
    return partial(limiter(config, clock=clock).check, CLIENT_ID)
