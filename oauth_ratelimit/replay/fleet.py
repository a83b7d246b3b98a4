"""
Several instances that share their counts at an interval: how many, how often, and when their cycles come.
"""

import enum
import random
from dataclasses import dataclass

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.replay.accuracy import Tally
from oauth_ratelimit.replay.times import SECOND_US
from oauth_ratelimit.sync.scheduler import SHORTEST_TICK_S, TICKS_PER_INTERVAL

SEED = 2005  # the same file gives the same numbers again


class Sharing(enum.StrEnum):
    """
    How instances share what they count.
    """

    INTERVAL = "interval"
    """At the sync interval, and only then."""

    FLUSH = "flush"
    """Sooner where a key is new to an instance or it has used up its share: the default, ``near_limit: flush``."""

    RESERVE = "reserve"
    """As ``flush``, and the last requests of a quota wait for the database: ``near_limit: reserve``."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """
    What a fleet is made of.

    Args:
        instance_count: Instances; each request goes to one of them at random.

        interval_s: The time between two sync cycles of an instance.

        sharing: How they share what they count.
    """

    instance_count: int
    interval_s: float
    sharing: Sharing = Sharing.FLUSH


class Fleet:
    """
    What the keys of a fleet have in common.

    Args:
        plan: What it is made of.

        tally: Where to note what is done in the database.

        limit: Requests per window.

        window: The window, and its frames.

        estimator: How they are weighed.
    """

    def __init__(self, plan: FleetPlan, tally: Tally, *, limit: int, window: Window, estimator: Estimator) -> None:
        self.plan = plan
        self.tally = tally
        self.tier = Tier(Policy("replay", limit, window, estimator), Mode.ENFORCE, alone=True)
        self.interval_us = round(plan.interval_s * SECOND_US)
        self.tick_us = max(round(SHORTEST_TICK_S * SECOND_US), self.interval_us // TICKS_PER_INTERVAL)
        self.horizon_s = window.window_s + window.frame_s
        self.horizon_cycles = int(self.horizon_s / plan.interval_s) + 1
        self.hurries = plan.sharing is not Sharing.INTERVAL
        self.reserves = plan.sharing is Sharing.RESERVE
        random_source = random.Random(SEED)
        self.random = random_source.random
        self.phases_us = [int(self.random() * self.interval_us) for _ in range(plan.instance_count)]
        self.most_peers = [1] * plan.instance_count  # that each instance has seen on any key

    def next_cycle_us(self, instance: int, at_us: int) -> int:
        """
        Return when an instance's next full cycle begins.
        """
        return at_us + self.interval_us - (at_us - self.phases_us[instance]) % self.interval_us

    def next_tick_us(self, instance: int, at_us: int) -> int:
        """
        Return when an instance next looks at urgent keys.
        """
        return at_us + self.tick_us - (at_us - self.phases_us[instance]) % self.tick_us
