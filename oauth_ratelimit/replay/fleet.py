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
    """Synchronise early if a key is new to an instance or its share is used up: ``near_limit: flush``, the default."""

    RESERVE = "reserve"
    """As ``flush``, but the last requests of a quota wait for the database: ``near_limit: reserve``."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Size, sync interval and sharing strategy of a fleet.

    Args:
        instance_count: Number of instances. Each request goes to a random one.
        interval_s: Time between two sync cycles of an instance.
        sharing: Sharing strategy of the instances.
    """

    instance_count: int
    interval_s: float
    sharing: Sharing = Sharing.FLUSH


class Fleet:
    """State that all keys of a fleet share.

    Args:
        plan: Size, sync interval and sharing strategy.
        tally: Counts of database operations.
        limit: Requests per window.
        window: The window and its frames.
        estimator: Weight of the oldest frame.
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
        random_source = random.Random(SEED)
        self.random = random_source.random
        self.phases_us = [int(self.random() * self.interval_us) for _ in range(plan.instance_count)]
        self.most_peers = [1] * plan.instance_count  # most peers that each instance has seen on any key

    def next_cycle_us(self, instance: int, at_us: int) -> int:
        """Return the start of an instance's next full cycle."""
        return at_us + self.interval_us - (at_us - self.phases_us[instance]) % self.interval_us

    def next_tick_us(self, instance: int, at_us: int) -> int:
        """Return the time at which an instance next synchronises its urgent keys."""
        return at_us + self.tick_us - (at_us - self.phases_us[instance]) % self.tick_us


class Member:
    """State of one key on one instance.

    Attributes:
        bucket: Hits counted here and hits read from the document.
        version: Last known version of the document.
        peers: Instances that have written the document lately.
        is_dirty: True if a request came since the last full cycle.
        is_contested: True if the last write lost a race, so that the next one reads first.
        cycle_us: Time of the next full cycle for this key; 0 if none is scheduled.
        urgent_us: Time of the next urgent tick for this key; 0 if none is scheduled.
        pull_gap: Cycles between two reads of an idle key.
        seen_us: Time of the last cycle that found new requests.
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
        "seen_us",
        "urgent_us",
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
        self.seen_us = at_us
        self.denied_until_us = 0


class FleetKey:
    """Counter of one key that all instances share through its document.

    Args:
        fleet: The instances.

    Attributes:
        frames: Content of the document: hits by frame start, in seconds since the epoch.
    """

    __slots__ = ("_due", "_fleet", "_last_writes_us", "_members", "_version", "frames")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._members: list[Member | None] = [None] * fleet.plan.instance_count
        self._due: list[tuple[int, int]] = []  # time and instance; outdated entries are skipped
        self.frames: dict[int, int] = {}
        self._version = 0  # of the document
        self._last_writes_us: dict[int, int] = {}  # by instance

    def decide(self, times: Sequence[int]) -> Sequence[bool]:
        """See ``Counter.decide``."""
        fleet, members, due = self._fleet, self._members, self._due
        draw, count = fleet.random, fleet.plan.instance_count
        decisions = []
        for at_us in times:
            while due and due[0][0] <= at_us:
                self._run(*heapq.heappop(due))
            instance = int(draw() * count)
            member = members[instance] or self._add_member(instance, at_us)
            now_s = at_us / SECOND_US
            bucket = member.bucket
            if bucket.full < bucket.ceiling and now_s < bucket.frame_end_s:
                if not member.is_dirty or bucket.full == bucket.sent:
                    self._mark_dirty(member, at_us)
                bucket.full += 1
                decisions.append(True)
            else:
                decisions.append(self._decide_near_limit(member, at_us, now_s))
        return decisions

    def finish(self) -> None:
        """Run the pending cycles until every instance has dropped the key."""
        while self._due:
            self._run(*heapq.heappop(self._due))

    def _add_member(self, instance: int, at_us: int) -> Member:
        bucket = Bucket(self._fleet.tier, at_us / SECOND_US)
        member = self._members[instance] = Member(instance, bucket, at_us)
        if self._fleet.reserves:
            bucket.distrust()
        self._mark_urgent(member, at_us)
        return member

    def _mark_dirty(self, member: Member, at_us: int) -> None:
        if member.pull_gap > 1:
            self._mark_urgent(member, at_us)
        if not member.is_dirty:
            member.is_dirty = True
            self._schedule(member, self._fleet.next_cycle_us(member.instance, at_us))

    def _mark_urgent(self, member: Member, at_us: int) -> None:
        if self._fleet.flushes_early and not member.urgent_us:
            member.urgent_us = self._fleet.next_tick_us(member.instance, at_us)
            heapq.heappush(self._due, (member.urgent_us, member.instance))

    def _schedule(self, member: Member, cycle_us: int) -> None:
        if not 0 < member.cycle_us <= cycle_us:
            member.cycle_us = cycle_us
            heapq.heappush(self._due, (cycle_us, member.instance))

    def _decide_near_limit(self, member: Member, at_us: int, now_s: float) -> bool:
        fleet, bucket = self._fleet, member.bucket
        self._mark_dirty(member, at_us)
        if at_us < member.denied_until_us:
            return False
        waits = fleet.reserves and bucket.full >= bucket.alert
        if waits:
            fleet.tally.waits += 1
            self._synchronise(member, at_us)
        if bucket.estimate(now_s) > fleet.tier.limit - 1:
            wait_s = bucket.retry_after_s(now_s, cost=1) - ROUNDING_S
            member.denied_until_us = at_us + int(wait_s * SECOND_US)
            return False
        bucket.add(1)
        if waits:
            self._synchronise(member, at_us)
        if bucket.full >= bucket.alert:
            self._mark_urgent(member, at_us)
        return True

    def _run(self, at_us: int, instance: int) -> None:
        """Run the cycle or urgent tick that an instance scheduled for a time, if it is still scheduled."""
        member = self._members[instance]
        if member is None:
            return
        if at_us == member.cycle_us:
            member.cycle_us = member.urgent_us = 0
            is_dirty, member.is_dirty = member.is_dirty, False
            self._synchronise(member, at_us, is_dirty=is_dirty)
        elif at_us == member.urgent_us:
            member.urgent_us = 0
            member.is_contested = True  # as in ``SyncCycle.run``: a read first saves a failed write
            self._synchronise(member, at_us)

    def _synchronise(self, member: Member, at_us: int, *, is_dirty: bool = True) -> None:
        """Flush and pull the key, and schedule its next cycle, as ``SyncCycle`` does."""
        fleet, now_s = self._fleet, at_us / SECOND_US
        unsent = member.bucket.drain()
        is_changed = False
        if unsent:
            self._flush(member, unsent, at_us, now_s)
        elif is_dirty or not member.pull_gap or _has_used(member.bucket, FOLLOWED_RATIO):
            is_changed = self._pull(member, None, at_us, now_s)
        if is_dirty:
            member.seen_us = at_us
        is_filling = _has_used(member.bucket, FOLLOWED_RATIO)
        if is_dirty or (is_changed and is_filling):
            member.pull_gap = 0
            gap = 1
        elif now_s - member.seen_us / SECOND_US > fleet.horizon_s:
            self._members[member.instance] = None
            return
        elif is_filling:
            pulls = 2 * PULLS_PER_HORIZON if _has_used(member.bucket, CLOSE_RATIO) else PULLS_PER_HORIZON
            gap = member.pull_gap = min(max(1, fleet.horizon_cycles // pulls), member.pull_gap * 2 or 1)
        else:
            gap = member.pull_gap = max(2, fleet.horizon_cycles)
        self._schedule(member, fleet.next_cycle_us(member.instance, at_us) + (gap - 1) * fleet.interval_us)

    def _flush(self, member: Member, unsent: dict[int, int], at_us: int, now_s: float) -> None:
        if member.is_contested:
            member.is_contested = self._pull(member, unsent, at_us, now_s)
        tally = self._fleet.tally
        tally.operations += 1
        if member.version != self._version:
            tally.conflicts += 1
            member.is_contested = True
            self._pull(member, unsent, at_us, now_s)
            tally.operations += 1
        oldest_s = now_s - self._fleet.horizon_s
        for start_s in [start_s for start_s in self.frames if start_s < oldest_s]:
            del self.frames[start_s]
        for start_s, hits in unsent.items():
            self.frames[start_s] = self.frames.get(start_s, 0) + hits
        self._last_writes_us[member.instance] = at_us
        self._version += 1
        member.version = self._version
        if member.peers > 1 or self._fleet.reserves:
            self._watch(member, now_s)

    def _pull(self, member: Member, unsent: dict[int, int] | None, at_us: int, now_s: float) -> bool:
        """Read the document. Return True if it has changed."""
        fleet = self._fleet
        fleet.tally.operations += 1
        is_changed = member.version != self._version
        member.version = self._version
        since_us = at_us - round(fleet.horizon_s * SECOND_US)
        member.peers = max(1, len([last_us for last_us in self._last_writes_us.values() if last_us >= since_us]))
        fleet.most_peers[member.instance] = max(fleet.most_peers[member.instance], member.peers)
        member.denied_until_us = 0
        if is_changed or unsent:  # else the bucket already holds it
            member.bucket.load(now_s, self.frames, unsent or {})
        self._watch(member, now_s)
        return is_changed

    def _watch(self, member: Member, now_s: float) -> None:
        reserves = self._fleet.reserves
        peers = max(member.peers, self._fleet.most_peers[member.instance]) if reserves else member.peers
        member.bucket.watch(now_s, peers=peers, reserves=reserves)


def _has_used(bucket: Bucket, ratio: float) -> bool:
    return bucket.full + bucket.edge >= ratio * bucket.tier.limit
