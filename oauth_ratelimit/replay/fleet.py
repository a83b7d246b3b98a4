"""Simulation of several instances that share their counts at a sync interval."""

import enum
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import ROUNDING_S, Estimator, Window
from oauth_ratelimit.counters.bucket import Bucket
from oauth_ratelimit.counters.key_state import FOLLOWED_RATIO
from oauth_ratelimit.replay.accuracy import Tally
from oauth_ratelimit.replay.formats import SECOND_US
from oauth_ratelimit.sync.schedule import CLOSE_RATIO, PULLS_PER_HORIZON
from oauth_ratelimit.sync.scheduler import SHORTEST_TICK_S, TICKS_PER_INTERVAL

SEED = 2005  # fixed, so that the same file gives the same numbers


class Sharing(enum.StrEnum):
    """Sharing strategy of instances."""

    INTERVAL = "interval"
    """Synchronise at the sync interval only."""

    FLUSH = "flush"
    """Synchronise early if a key is new to an instance or near its limit: ``near_limit: flush``, the default."""

    RESERVE = "reserve"
    """As ``flush``, but the last requests of a quota wait for the database: ``near_limit: reserve``."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Size and settings of a fleet.

    Args:
        instance_count: Number of instances; each request goes to a random one.
        interval_s: Time between two sync cycles of an instance.
        sharing: Sharing strategy of the instances.
    """

    instance_count: int
    interval_s: float
    sharing: Sharing = Sharing.FLUSH


class Fleet:
    """Instances of a simulation, with the settings that all their keys share.

    Args:
        plan: Size and settings.
        tally: Counts database operations.
        limit: Requests per window.
        window: The window and its frames.
        estimator: The estimator.
    """

    def __init__(self, plan: FleetPlan, tally: Tally, *, limit: int, window: Window, estimator: Estimator) -> None:
        self.plan = plan
        self.tally = tally
        self.tier = Tier(Policy("replay", limit, window, estimator), Mode.ENFORCE, alone=True)
        self.interval_us = round(plan.interval_s * SECOND_US)
        self.tick_us = max(round(SHORTEST_TICK_S * SECOND_US), self.interval_us // TICKS_PER_INTERVAL)
        self.horizon_s = window.window_s + window.frame_s
        self.horizon_cycles = int(self.horizon_s / plan.interval_s) + 1
        self.flushes_early = plan.sharing is not Sharing.INTERVAL
        self.reserves = plan.sharing is Sharing.RESERVE
        self.random = random.Random(SEED).random
        self.phases_us = [int(self.random() * self.interval_us) for _ in range(plan.instance_count)]
        self.most_peers = [1] * plan.instance_count  # by instance, on any of its keys

    def next_cycle_us(self, instance: int, at_us: int) -> int:
        """Return the time of an instance's next full cycle."""
        return at_us + self.interval_us - (at_us - self.phases_us[instance]) % self.interval_us

    def next_tick_us(self, instance: int, at_us: int) -> int:
        """Return the time at which an instance next synchronises its urgent keys."""
        return at_us + self.tick_us - (at_us - self.phases_us[instance]) % self.tick_us


class InstanceKey:
    """State of one key on one instance.

    Attributes:
        instance: Number of the instance.
        bucket: Counter state of the key.
        version: Last known version of the document.
        peers: Instances that have written the document within the horizon.
        is_dirty: True if a request came since the last full cycle.
        is_contested: True if the last write lost a race, so that the next one reads first.
        cycle_us: Time of the next full cycle; 0 if none is scheduled.
        urgent_us: Time of the next urgent tick; 0 if none is scheduled.
        pull_gap: Cycles between two reads of an idle key.
        used_us: Time of the last cycle that found requests.
        denied_until_us: End of the time in which requests are denied without a new estimate.
    """

    __slots__ = (
        "bucket",
        "cycle_us",
        "denied_until_us",
        "instance",
        "is_contested",
        "is_dirty",
        "peers",
        "pull_gap",
        "urgent_us",
        "used_us",
        "version",
    )

    def __init__(self, instance: int, bucket: Bucket, at_us: int) -> None:
        self.instance = instance
        self.bucket = bucket
        self.version = 0
        self.peers = 1
        self.is_dirty = False
        self.is_contested = False
        self.cycle_us = 0
        self.urgent_us = 0
        self.pull_gap = 0
        self.used_us = at_us
        self.denied_until_us = 0


class FleetKey:
    """Counter of one key that all instances share through its document.

    Args:
        fleet: The instances.

    Attributes:
        frames: Content of the document: hits by frame start, in seconds since the epoch.
    """

    __slots__ = ("_due", "_fleet", "_keys", "_version", "_written_us", "frames")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._keys: list[InstanceKey | None] = [None] * fleet.plan.instance_count
        self._due: list[tuple[int, int]] = []  # time and instance; outdated entries are skipped
        self.frames: dict[int, int] = {}
        self._version = 0  # of the document
        self._written_us: dict[int, int] = {}  # time of the last write by instance

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        fleet, keys, due = self._fleet, self._keys, self._due
        draw, count = fleet.random, fleet.plan.instance_count
        decisions = []
        for at_us in times:
            while due and due[0][0] <= at_us:
                self._run(*heapq.heappop(due))
            instance = int(draw() * count)
            key = keys[instance] or self._add_key(instance, at_us)
            now_s = at_us / SECOND_US
            if not key.is_dirty or key.pull_gap > 1:
                self._mark_dirty(key, at_us)
            decisions.append(key.bucket.try_add(1, now_s) or self._decide_near_limit(key, at_us, now_s))
        return decisions

    def finish(self) -> None:
        """Run the pending cycles until every instance has dropped the key."""
        while self._due:
            self._run(*heapq.heappop(self._due))

    def _add_key(self, instance: int, at_us: int) -> InstanceKey:
        bucket = Bucket(self._fleet.tier, at_us / SECOND_US)
        key = self._keys[instance] = InstanceKey(instance, bucket, at_us)
        if self._fleet.reserves:
            bucket.distrust()
        self._mark_urgent(key, at_us)
        return key

    def _mark_dirty(self, key: InstanceKey, at_us: int) -> None:
        if key.pull_gap > 1:
            self._mark_urgent(key, at_us)
        if not key.is_dirty:
            key.is_dirty = True
            self._schedule(key, self._fleet.next_cycle_us(key.instance, at_us))

    def _mark_urgent(self, key: InstanceKey, at_us: int) -> None:
        if self._fleet.flushes_early and not key.urgent_us:
            key.urgent_us = self._fleet.next_tick_us(key.instance, at_us)
            heapq.heappush(self._due, (key.urgent_us, key.instance))

    def _schedule(self, key: InstanceKey, cycle_us: int) -> None:
        if not 0 < key.cycle_us <= cycle_us:
            key.cycle_us = cycle_us
            heapq.heappush(self._due, (cycle_us, key.instance))

    def _decide_near_limit(self, key: InstanceKey, at_us: int, now_s: float) -> bool:
        fleet, bucket = self._fleet, key.bucket
        if at_us < key.denied_until_us:
            return False
        reserves = fleet.reserves and bucket.full >= bucket.alert
        if reserves:
            fleet.tally.waits += 1
            self._synchronise(key, at_us)
        if bucket.estimate(now_s) > fleet.tier.limit - 1:
            wait_s = bucket.retry_after_s(now_s, cost=1) - ROUNDING_S
            key.denied_until_us = at_us + int(wait_s * SECOND_US)
            return False
        bucket.add(1)
        if reserves:
            self._synchronise(key, at_us)
        if bucket.full >= bucket.alert:
            self._mark_urgent(key, at_us)
        return True

    def _run(self, at_us: int, instance: int) -> None:
        """Run the cycle or urgent tick that an instance scheduled for a time, if it is still scheduled."""
        key = self._keys[instance]
        if key is None:
            return
        if at_us == key.cycle_us:
            key.cycle_us = key.urgent_us = 0
            is_dirty, key.is_dirty = key.is_dirty, False
            self._synchronise(key, at_us, is_dirty=is_dirty)
        elif at_us == key.urgent_us:
            key.urgent_us = 0
            key.is_contested = True  # as in SyncCycle.run: a read first saves a failed write
            self._synchronise(key, at_us)

    def _synchronise(self, key: InstanceKey, at_us: int, *, is_dirty: bool = True) -> None:
        """Flush and pull the key, and schedule its next cycle, as ``SyncCycle`` does."""
        fleet, bucket, now_s = self._fleet, key.bucket, at_us / SECOND_US
        unsent = bucket.drain()
        is_changed = False
        if unsent:
            self._flush(key, unsent, at_us, now_s)
        elif is_dirty or not key.pull_gap or _used_ratio(bucket) >= FOLLOWED_RATIO:
            is_changed = self._pull(key, None, at_us, now_s)
        if is_dirty:
            key.used_us = at_us
        used_ratio = _used_ratio(bucket)
        is_filling = used_ratio >= FOLLOWED_RATIO
        if is_dirty or (is_changed and is_filling):
            key.pull_gap = 0
            gap = 1
        elif now_s - key.used_us / SECOND_US > fleet.horizon_s:
            self._keys[key.instance] = None
            return
        elif is_filling:
            pulls = 2 * PULLS_PER_HORIZON if used_ratio >= CLOSE_RATIO else PULLS_PER_HORIZON
            gap = key.pull_gap = min(max(1, fleet.horizon_cycles // pulls), key.pull_gap * 2 or 1)
        else:
            gap = key.pull_gap = max(2, fleet.horizon_cycles)
        self._schedule(key, fleet.next_cycle_us(key.instance, at_us) + (gap - 1) * fleet.interval_us)

    def _flush(self, key: InstanceKey, unsent: dict[int, int], at_us: int, now_s: float) -> None:
        if key.is_contested:
            key.is_contested = self._pull(key, unsent, at_us, now_s)
        tally = self._fleet.tally
        tally.operations += 1
        if key.version != self._version:
            tally.conflicts += 1
            key.is_contested = True
            self._pull(key, unsent, at_us, now_s)
            tally.operations += 1
        oldest_s = now_s - self._fleet.horizon_s
        for start_s in [start_s for start_s in self.frames if start_s < oldest_s]:
            del self.frames[start_s]
        for start_s, hits in unsent.items():
            self.frames[start_s] = self.frames.get(start_s, 0) + hits
        self._written_us[key.instance] = at_us
        self._version += 1
        key.version = self._version
        if key.peers > 1 or self._fleet.reserves:
            self._set_alert(key, now_s)

    def _pull(self, key: InstanceKey, unsent: dict[int, int] | None, at_us: int, now_s: float) -> bool:
        """Read the document. Return True if it has changed."""
        fleet = self._fleet
        fleet.tally.operations += 1
        is_changed = key.version != self._version
        key.version = self._version
        since_us = at_us - round(fleet.horizon_s * SECOND_US)
        key.peers = max(1, len([last_us for last_us in self._written_us.values() if last_us >= since_us]))
        fleet.most_peers[key.instance] = max(fleet.most_peers[key.instance], key.peers)
        key.denied_until_us = 0
        if is_changed or unsent:  # else the bucket already holds it
            key.bucket.load(now_s, self.frames, unsent or {})
        self._set_alert(key, now_s)
        return is_changed

    def _set_alert(self, key: InstanceKey, now_s: float) -> None:
        reserves = self._fleet.reserves
        peers = max(key.peers, self._fleet.most_peers[key.instance]) if reserves else key.peers
        key.bucket.watch(now_s, peers=peers, reserves=reserves)


def _used_ratio(bucket: Bucket) -> float:
    return (bucket.full + bucket.edge) / bucket.tier.limit
