"""
The decisions that are compared, by name, each as a function of the number of decisions to make.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from operator import getitem
from typing import Any

from benchmarks import subjects
from benchmarks.subjects import NO_LIMIT, Hit, settings_of
from oauth_ratelimit import Limiter, load_config

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
    """
    Return hits on one key.
    """

    def run(count: int) -> None:
        for _ in repeat(None, count):
            hit(USER)

    return run


def many(hit: Hit) -> Repeated:
    """
    Return hits on many keys in random order, all of them known.
    """
    users = subjects.user_names(MANY_COUNT)
    random.Random(2).shuffle(users)
    for user in users:
        hit(user)

    def run(count: int) -> None:
        for _ in repeat(None, count // MANY_COUNT):
            for user in users:
                hit(user)

    return run


def cycles(pause_s: float) -> Repeated:
    """
    Return hits on many keys, one each and then a sync cycle, with so much time between.
    """
    moment = [1_700_000_000.0]
    limiter = Limiter(load_config(settings_of()), clock=partial(getitem, moment, 0))  # type: ignore[arg-type]
    users = subjects.user_names(MANY_COUNT)

    def run(count: int) -> None:
        for _ in repeat(None, count // MANY_COUNT):
            for user in users:
                limiter.check(subjects.CLIENT_ID, user)
            limiter.sync()
            moment[0] += pause_s

    return run


def _hot_with(config: Mapping[str, Any]) -> Repeated:
    return hot(subjects.ours(config))


CASES: Mapping[str, Callable[[], Repeated]] = {
    "ours": lambda: hot(subjects.ours()),
    "ours, many keys": lambda: many(subjects.ours()),
    "ours, cycles": lambda: cycles(0.0),
    "ours, cycles of a frame": lambda: cycles(6.0),
    "ours, cycles of a window": lambda: cycles(66.0),
    "ours, denied": lambda: hot(subjects.ours(settings_of(1))),
    **{f"ours, {name}": partial(_hot_with, config) for name, config in VARIANTS.items()},
    "limits": lambda: hot(subjects.limits()),
    "limits, many keys": lambda: many(subjects.limits()),
    "limits, denied": lambda: hot(subjects.limits(limit=1)),
}
