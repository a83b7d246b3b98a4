"""Simulation of several instances that share their counts at a sync interval."""

import enum
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import ROUNDING_S, Estimator, Window
from oauth_ratelimit.counters.bucket import FEW_HITS, Bucket
from oauth_ratelimit.counters.key_state import FILLING_RATIO
from oauth_ratelimit.counters.pruning import LATELY_S
from oauth_ratelimit.replay.accuracy import Tally
from oauth_ratelimit.replay.formats import SECOND_US
from oauth_ratelimit.sync.flusher import FOUND_AT_FIRST, FOUND_MEMORY, READS_FIRST_RATIO, READS_FIRST_RATIO_URGENT
from oauth_ratelimit.sync.schedule import CLOSE_RATIO, FAR_RATIO, PULLS_PER_HORIZON, early_read_s

SEED = 2005  # fixed, so that the same file gives the same numbers
URGENT_DELAY_US = 5_000  # from a request until its key is synchronised: a wake-up, a pause and a round trip


class Sharing(enum.StrEnum):
    """Sharing strategy of instances."""

    INTERVAL = "interval"
    """Synchronise at the sync interval only."""

    FLUSH = "flush"
    """Synchronise at once if a key is near its limit, or new with a small limit: ``near_limit: flush``, the default."""

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
        self.horizon_s = window.window_s + window.frame_s
        self.horizon_cycles = int(self.horizon_s / plan.interval_s) + 1
        self.flushes_early = plan.sharing is not Sharing.INTERVAL
        self.reserves = plan.sharing is Sharing.RESERVE
        self.random = random.Random(SEED).random
        self.phases_us = [int(self.random() * self.interval_us) for _ in range(plan.instance_count)]
        self.most_peers = [1] * plan.instance_count  # by instance, on any of its keys
        self.found_ratios = [FOUND_AT_FIRST] * plan.instance_count  # see Flusher

    def next_cycle_us(self, instance: int, at_us: int) -> int:
        """Return the time of an instance's next full cycle."""
        return at_us + self.interval_us - (at_us - self.phases_us[instance]) % self.interval_us


class InstanceKey:
    """State of one key on one instance.

    Attributes:
        instance: Number of the instance.
        bucket: Counter state of the key.
        version: Last known version of the document.
        peers: Instances that have written the document within the horizon.
        is_dirty: True if a request came since the last full cycle.
        is_contested: True if the document has probably changed, so that the next write reads it first.
        is_urgent: True if the key is synchronised with the next urgent cycle.
        due_us: Time of the full cycle that takes the key without a request; 0 if none does.
        urgent_us: Time of the next urgent cycle; 0 if none is scheduled.
        early_read: Time and gap of the next read of a key that others are filling up, in seconds; None if there is
            none.
        pull_gap: Cycles between two reads of an idle key.
        remote_hits: Hits of other instances that the present cycle has found, None if that is not known.
        used_us: Time of the last cycle that found requests.
        denied_until_us: End of the time in which requests are denied without a new estimate.
    """

    __slots__ = (
        "bucket",
        "denied_until_us",
        "due_us",
        "early_read",
        "instance",
        "is_contested",
        "is_dirty",
        "is_urgent",
        "peers",
        "pull_gap",
        "remote_hits",
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
        self.is_urgent = False
        self.remote_hits: int | None = None
        self.due_us = 0
        self.urgent_us = 0
        self.early_read: tuple[float, float] | None = None
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
            if not key.is_dirty:
                key.is_dirty = True
                heapq.heappush(due, (fleet.next_cycle_us(instance, at_us), instance))
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
        else:
            bucket.watch_unread(peers=self._fleet.most_peers[instance])
        if bucket.alert < FEW_HITS:
            self._mark_urgent(key, at_us)
        return key

    def _mark_urgent(self, key: InstanceKey, at_us: int) -> None:
        key.is_urgent = True
        self._plan_urgent(key, at_us)

    def _plan_urgent(self, key: InstanceKey, at_us: int) -> None:
        """Schedule the next urgent cycle of an instance that has just done something."""
        wanted_us = at_us if key.is_urgent else round(key.early_read[0] * SECOND_US) if key.early_read else None
        if wanted_us is None or not self._fleet.flushes_early:
            return
        urgent_us = max(at_us, wanted_us) + URGENT_DELAY_US
        if not 0 < key.urgent_us <= urgent_us:
            key.urgent_us = urgent_us
            heapq.heappush(self._due, (urgent_us, key.instance))

    def _schedule(self, key: InstanceKey, due_us: int) -> None:
        if not 0 < key.due_us <= due_us:
            key.due_us = due_us
            heapq.heappush(self._due, (due_us, key.instance))

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
        """Run the full or urgent cycle that an instance scheduled for a time, if it is still scheduled."""
        key = self._keys[instance]
        if key is None:
            return
        is_full = at_us == self._fleet.next_cycle_us(instance, at_us - 1)
        requested = key.is_dirty or key.is_urgent
        if is_full and (requested or at_us == key.due_us):
            key.due_us, key.is_urgent = 0, False
            remote_hits = self._synchronise(key, at_us, is_dirty=requested)
            if remote_hits:
                self._plan_early_read(key, at_us, passed_s=self._fleet.plan.interval_s, remote_hits=remote_hits)
        elif at_us == key.urgent_us:
            key.urgent_us = 0
            self._run_urgent(key, at_us)
        if self._keys[instance] is key:
            if key.bucket.full >= key.bucket.alert and not self._fleet.reserves:
                key.is_urgent = True
            self._plan_urgent(key, at_us)

    def _run_urgent(self, key: InstanceKey, at_us: int) -> None:
        """See ``SyncCycle.run_urgent``."""
        now_s = at_us / SECOND_US
        passed_s = key.early_read[1] if key.early_read else math.inf
        is_due = key.early_read is not None and key.early_read[0] <= now_s
        if key.is_urgent:
            key.is_urgent = False
            others_write = key.peers > 1 or (
                self._fleet.most_peers[key.instance] > 1 and _used_ratio(key.bucket) >= FILLING_RATIO
            )
            key.is_contested = key.is_contested or others_write
            passed_s = min(passed_s, now_s - key.used_us / SECOND_US)
            remote_hits = self._synchronise(key, at_us)
        elif is_due:
            remote_hits = self._synchronise(key, at_us, is_dirty=False, reads_all=True)
        else:
            return
        self._plan_early_read(key, at_us, passed_s=passed_s, remote_hits=remote_hits)

    def _plan_early_read(self, key: InstanceKey, at_us: int, *, passed_s: float, remote_hits: int | None) -> None:
        """See ``EarlyReads.plan``."""
        key.early_read, now_s = None, at_us / SECOND_US
        limit, estimate = key.bucket.tier.limit, key.bucket.estimate(now_s)
        room = limit - estimate
        peers = max(key.peers, self._fleet.most_peers[key.instance])
        if peers > 1 and estimate >= FILLING_RATIO * limit and room >= 1:
            gap_s = early_read_s(room, passed_s=passed_s, remote_hits=remote_hits)
            if gap_s <= self._fleet.plan.interval_s / 2:
                key.early_read = (now_s + gap_s, gap_s)

    def _synchronise(
        self, key: InstanceKey, at_us: int, *, is_dirty: bool = True, reads_all: bool = False
    ) -> int | None:
        """Flush and pull the key, and schedule its next cycle, as ``SyncCycle`` does.

        Returns:
            Hits of other instances since the last read, None if that is not known.
        """
        fleet, bucket, now_s = self._fleet, key.bucket, at_us / SECOND_US
        key.is_dirty = False
        version, key.remote_hits = key.version, None
        unsent = bucket.drain()
        if unsent:
            self._flush(key, unsent, at_us, now_s)
        elif is_dirty or reads_all or not key.pull_gap or self._follows(bucket):
            self._pull(key, None, at_us, now_s)
        is_changed = version != key.version
        if is_dirty:
            key.used_us = at_us
        used_ratio, follows = _used_ratio(bucket), self._follows(bucket)
        reads_again = used_ratio >= FAR_RATIO and key.bucket.tier.window_s > 2 * fleet.plan.interval_s
        if (follows and (is_dirty or is_changed)) or (is_dirty and reads_again):
            key.pull_gap = 0
            gap = 1
        elif now_s - key.used_us / SECOND_US > fleet.horizon_s:
            self._keys[key.instance] = None
            return key.remote_hits
        elif key.due_us:
            return key.remote_hits
        elif follows:
            pulls = 2 * PULLS_PER_HORIZON if used_ratio >= CLOSE_RATIO else PULLS_PER_HORIZON
            gap = key.pull_gap = min(max(1, fleet.horizon_cycles // pulls), key.pull_gap * 2 or 1)
        else:
            gap = key.pull_gap = max(2, fleet.horizon_cycles)
        self._schedule(key, fleet.next_cycle_us(key.instance, at_us) + (gap - 1) * fleet.interval_us)
        return key.remote_hits

    def _follows(self, bucket: Bucket) -> bool:
        """See ``SyncSchedule.follows``."""
        is_long = bucket.tier.window_s > self._fleet.plan.interval_s
        return _used_ratio(bucket) >= (FILLING_RATIO if is_long else CLOSE_RATIO)

    def _flush(self, key: InstanceKey, unsent: dict[int, int], at_us: int, now_s: float) -> None:
        fleet = self._fleet
        ratio = READS_FIRST_RATIO_URGENT if key.bucket.alert < FEW_HITS else READS_FIRST_RATIO
        if key.is_contested or (not key.version and fleet.found_ratios[key.instance] > ratio):
            self._read_first(key, unsent, at_us, now_s)
        tally = fleet.tally
        tally.operations += 1
        if key.version == self._version:
            self._note_found(key, found=False)
            if not key.version:
                key.is_contested = fleet.most_peers[key.instance] > 2
        else:
            tally.conflicts += 1
            self._read_first(key, unsent, at_us, now_s)
            tally.operations += 1
        oldest_s = now_s - self._fleet.horizon_s
        for start_s in [start_s for start_s in self.frames if start_s < oldest_s]:
            del self.frames[start_s]
        for start_s, hits in unsent.items():
            self.frames[start_s] = self.frames.get(start_s, 0) + hits
        self._written_us[key.instance] = at_us
        self._version += 1
        key.version = self._version
        self._set_alert(key, now_s)

    def _read_first(self, key: InstanceKey, unsent: dict[int, int], at_us: int, now_s: float) -> None:
        is_new = not key.version
        is_changed = self._pull(key, unsent, at_us, now_s)
        key.is_contested = key.peers > 2 or (is_changed and (key.peers > 1 or not is_new))

    def _note_found(self, key: InstanceKey, *, found: bool) -> None:
        if not key.version:
            ratios = self._fleet.found_ratios
            ratios[key.instance] += (found - ratios[key.instance]) / FOUND_MEMORY

    def _pull(self, key: InstanceKey, unsent: dict[int, int] | None, at_us: int, now_s: float) -> bool:
        """Read the document. Return True if it has changed."""
        fleet = self._fleet
        fleet.tally.operations += 1
        is_changed, is_known = key.version != self._version, key.version > 0
        self._note_found(key, found=self._version > 0)
        key.version = self._version
        since_us = max(self._written_us.values(), default=0) - LATELY_S * SECOND_US
        recent = [last_us for last_us in self._written_us.values() if last_us >= since_us]
        key.peers = len(recent) + (key.instance not in self._written_us)
        fleet.most_peers[key.instance] = max(fleet.most_peers[key.instance], key.peers)
        key.denied_until_us = 0
        key.bucket.left_s(now_s)
        before = key.bucket.full
        if is_changed or unsent:  # else the bucket already holds it
            key.bucket.load(now_s, self.frames, unsent or {})
        if is_known:
            key.remote_hits = (key.remote_hits or 0) + max(0, key.bucket.full - before)
        self._set_alert(key, now_s)
        return is_changed

    def _set_alert(self, key: InstanceKey, now_s: float) -> None:
        peers = max(key.peers, self._fleet.most_peers[key.instance])
        key.bucket.watch(now_s, peers=peers, reserves=self._fleet.reserves)


def _used_ratio(bucket: Bucket) -> float:
    return (bucket.full + bucket.edge) / bucket.tier.limit
