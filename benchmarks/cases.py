"""The decisions that are compared, by name, each as a function of the number of decisions to make."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from operator import getitem
from typing import Any

from benchmarks import subjects
from benchmarks.subjects import NO_LIMIT, STANDING_S, Hit, settings_of
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.memory import MemoryStore

Repeated = Callable[[int], object]

MANY_COUNT = 1_000  # keys of the instruction counts; more would only take longer
USER = "user.1@example.com"
MINUTE, TEN_SECONDS = {"limit": NO_LIMIT, "window": 60}, {"limit": NO_LIMIT, "window": 10}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "k = 1": settings_of(frames=1),
    "k = 60": settings_of(frames=60),
    "two tiers": settings_of(limits={"user": [MINUTE, TEN_SECONDS]}),
    "client_total": settings_of(limits={"user": [MINUTE], "client_total": [MINUTE]}),
    "override": settings_of(
        clients={subjects.CLIENT_ID: {"limits": {"user": [{"limit": 2 * NO_LIMIT, "window": 60}]}}}
    ),
    "trusted": settings_of(trusted_clients=[subjects.CLIENT_ID]),
    "proportional": settings_of(limits={"user": [{**MINUTE, "estimator": "proportional"}]}),
}
"""Configurations of ours, beside the plain one."""


def hot(hit: Hit) -> Repeated:
    """Return hits on one key."""

    def run(count: int) -> None:
        for _ in repeat(None, count):
            hit(USER)

    return run


def many(hit: Hit) -> Repeated:
    """Return hits on many keys in random order, all of them known."""
    users = subjects.user_names(MANY_COUNT)
    random.Random(2).shuffle(users)
    for user in users:
        hit(user)

    def run(count: int) -> None:
        for _ in repeat(None, count // MANY_COUNT):
            for user in users:
                hit(user)

    return run


def cycles(pause_s: float, config: Mapping[str, Any] | None = None, store: CounterStore | None = None) -> Repeated:
    """Return hits on many keys, one each and then a sync cycle, with so much time between."""
    moment = [STANDING_S]
    limiter = subjects.limiter(config, store, clock=_reading(moment))
    users = subjects.user_names(MANY_COUNT)

    def run(count: int) -> None:
        for _ in repeat(None, count // MANY_COUNT):
            for user in users:
                limiter.check(subjects.CLIENT_ID, user)
            moment[0] += pause_s
            limiter.sync()

    return run


def bare() -> Repeated:
    """Return the least that Python can do for a decision: look the key up, ask the time, compare, count, answer."""
    counters, lock = {USER: Counter()}, threading.Lock()

    def check(user: str) -> tuple[Counter, int, float]:
        now_s = time.time()
        lock.acquire()
        try:
            counter = counters[user]
            full = counter.full + 1
            if full <= counter.ceiling and now_s < counter.frame_end_s:
                counter.full = full
            return counter, full, now_s
        finally:
            lock.release()

    return hot(check)


class Counter:
    """What the bare decision counts in."""

    __slots__ = ("ceiling", "frame_end_s", "full")

    def __init__(self) -> None:
        self.full = 0
        self.ceiling = NO_LIMIT
        self.frame_end_s = 1e12


def _ours(config: Mapping[str, Any] | None = None) -> Hit:
    return subjects.ours(config, clock=_reading([STANDING_S]))


def _reading(moment: list[float]) -> Callable[[], float]:
    """Return a clock that reads a list: no frame ends by chance, and no Python function is called for it."""
    return partial(getitem, moment, 0)  # type: ignore[return-value]


def _hot_with(config: Mapping[str, Any]) -> Repeated:
    return hot(_ours(config))


CASES: Mapping[str, Callable[[], Repeated]] = {
    "bare": bare,
    "ours": lambda: hot(_ours()),
    "ours, many keys": lambda: many(_ours()),
    "ours, denied": lambda: hot(_ours(settings_of(1))),
    **{f"ours, {name}": partial(_hot_with, config) for name, config in VARIANTS.items()},
    "ours, noted": lambda: hot(subjects.noted()),
    "ours, noted, two tiers": lambda: hot(subjects.noted(VARIANTS["two tiers"])),
    "ours, cycles": lambda: cycles(1.0),
    "ours, cycles of a frame": lambda: cycles(6.0),
    "ours, cycles of a window": lambda: cycles(60.0),
    "ours, shared cycles": lambda: cycles(1.0, store=MemoryStore()),
}
"""What instructions are counted of, by name."""
