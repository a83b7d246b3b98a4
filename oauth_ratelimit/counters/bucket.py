"""Counter state of one policy and key, and of all policies of one key.

An instance knows ``g``, the global snapshot, and ``i``, the hits that it has counted since. Decisions use the sum. A
bucket stores the sum and the part of it that a flush has taken, so a request changes one number.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import add

from oauth_ratelimit.core.tier import Series, Tier
from oauth_ratelimit.core.window import age, estimate_hits, pack, reset_after_s, retry_after_s
from oauth_ratelimit.counters import hits as arithmetic
from oauth_ratelimit.store.base import Hits

AHEAD_S = 5  # frames that start up to this much later count now: they come from an instance whose clock is ahead
NO_ALERT = 2**60  # far above any limit
UNREAD_RATIO = 1 / 20  # of a limit: hits of all known instances together on a key that none of them has read
FEW_HITS = 10  # a new key with a lower alert is read at once, any other with the next cycle
Frames = Mapping[int, int]
NO_FRAMES: Frames = {}


class Bucket:
    """Counter state of one policy and key. Guarded by the lock of its ``ClientState``.

    Attributes:
        frame_end_s: End of the current frame, seconds since the epoch; a whole number.
        full, edge: The two numbers of an estimate, see ``core.window``.
        past: Hits of the frames before the current one, newest first.
        base: ``full`` without the hits of the current frame.
        sent: The part of ``full`` that needs no flush. ``full - sent`` hits of the current frame are still to be taken.
        carried: Hits of earlier frames that no flush has taken yet.
        alert: The value of ``full`` at which the key becomes urgent.
        ceiling: The value of ``full`` up to which a hit is surely within the limit and below the alert. Such a hit is
            counted by adding it to ``full``.
    """

    __slots__ = ("alert", "base", "carried", "ceiling", "edge", "frame_end_s", "full", "past", "sent", "tier")

    def __init__(self, tier: Tier, now_s: float) -> None:
        self.tier = tier
        self.frame_end_s = tier.frame_end_after(now_s)
        self.full = 0
        self.edge = 0
        self.past: Sequence[int] = b""
        self.base = 0
        self.sent = 0
        self.carried: dict[int, int] | None = None
        self.alert = NO_ALERT
        self._set_ceiling()

    def left_s(self, now_s: float) -> float:
        """Return the seconds until the current frame ends, after moving on to the frame that ``now_s`` lies in."""
        left_s = self.frame_end_s - now_s
        return left_s if 0.0 < left_s <= self.tier.frame_s else self.turn(now_s)

    def turn(self, now_s: float) -> float:
        """Move on to the frame that ``now_s`` lies in, and return the seconds until it ends."""
        tier = self.tier
        end_s = tier.frame_end_after(now_s)
        frames = int(end_s - self.frame_end_s) // tier.frame_s
        if frames == -1:
            return float(tier.frame_s)  # the clock stepped back a little: stay in the newest frame
        current, fresh = self.full - self.base, self.full - self.sent
        if frames > 0:
            if fresh:
                carried, start_s = self.carried or {}, self.frame_start_s
                # The frame is there already if the clock stepped back into it.
                self.carried = {**carried, start_s: carried.get(start_s, 0) + fresh}
            current, self.past = age(current, self.past, frames, tier.frame_count)
            fresh = 0
        self.frame_end_s = end_s
        self._weigh(current, fresh)
        return end_s - now_s

    def _weigh(self, current: int, fresh: int) -> None:
        tier, before = self.tier, self.full
        self.full, self.edge = tier.policy.estimator.weigh(current, self.past, tier.frame_count)
        self.base = self.full - current
        self.sent = self.full - fresh
        if self.alert != NO_ALERT:  # the sum would be a new object in every key
            self.alert += self.full - before
        self._set_ceiling()

    def _set_ceiling(self) -> None:
        tier, edge = self.tier, self.edge
        bound = tier.limit if self.alert > tier.limit else self.alert - 1
        if tier.edge_per_hit:  # adding to ``full`` is not enough to count a hit
            bound = -1
        self.ceiling = bound - edge if edge > 0 else bound

    @property
    def frame_start_s(self) -> int:
        """Start of the current frame."""
        return int(self.frame_end_s) - self.tier.frame_s

    @property
    def current(self) -> int:
        """Hits of the current frame."""
        return self.full - self.base

    def estimate(self, now_s: float) -> float:
        """Return the hits that the window holds."""
        left_s = self.left_s(now_s)
        return estimate_hits(self.full, self.edge, left_s, self.tier.frame_s)

    def add(self, cost: int) -> None:
        """Count hits in the current frame."""
        self.full += cost
        self.edge += cost * self.tier.edge_per_hit

    def try_add(self, cost: int, now_s: float) -> bool:
        """Count hits if they are surely within the limit, and return whether they were counted."""
        if now_s >= self.frame_end_s:
            self.turn(now_s)
        full = self.full + cost
        if full > self.ceiling:
            return False
        self.full = full
        return True

    def retry_after_s(self, now_s: float, *, cost: int, later_s: float = 0.0) -> float:
        """Return the seconds until a request of this cost is admitted, not before ``later_s``."""
        window, left_s = self.tier.policy.window, self.left_s(now_s)
        current, past = self.current, self.past
        early_s = self._early_s(now_s)
        beyond_s = later_s - early_s
        if beyond_s > 0.0:
            frames = int((now_s + later_s - self.frame_start_s) // window.frame_s)
            current, past = age(current, past, frames, window.frame_count)
            left_s += frames * window.frame_s - beyond_s
        waiting_s = retry_after_s(
            current, past, window, self.tier.policy.estimator, room=self.tier.limit - cost, left_s=left_s
        )
        return max(later_s, early_s) + waiting_s if waiting_s else later_s

    def reset_after_s(self, now_s: float) -> float:
        """Return the seconds until nothing counts any more."""
        left_s = self.left_s(now_s)
        waiting_s = reset_after_s(self.current, self.past, self.tier.policy.window, left_s=left_s)
        return self._early_s(now_s) + waiting_s if waiting_s else 0.0

    def _early_s(self, now_s: float) -> float:
        """Return the seconds until the current frame begins: above 0.0 after the clock stepped back."""
        return max(0.0, self.frame_start_s - now_s)

    def drain(self) -> dict[int, int] | None:
        """Take the hits that no flush has taken yet, by frame start; None if there are none."""
        frames, self.carried = self.carried, None
        fresh = self.full - self.sent
        if fresh:
            frames = frames or {}
            start_s = self.frame_start_s
            frames[start_s] = frames.get(start_s, 0) + fresh
            self.sent = self.full
        return frames

    def watch(self, now_s: float, *, peers: int, reserves: bool) -> float:
        """Set the alert to the hits that this instance may count before it flushes, and return the estimate.

        That is a small part of the limit, or this instance's share of the remaining hits if that is less.

        Args:
            now_s: The time.
            peers: Number of instances that may count this key, this one included.
            reserves: Leave the last two requests of each instance to reservations.
        """
        estimate = self.estimate(now_s)
        share = math.ceil((self.tier.limit - estimate) / peers)
        if reserves:
            self.alert = self.full + max(0, share - 2)
        else:
            self.alert = self.sent + max(1, min(share, self.tier.urgent_hits))
        self._set_ceiling()
        return estimate

    def excess(self, estimate: float) -> int:
        """Return how far an estimate is above the limit, without the hits that no flush has taken.

        0 where denied requests count.
        """
        tier = self.tier
        over = estimate - (self.full - self.sent) - tier.limit
        return 0 if tier.count_denied or over <= 0 else math.ceil(over)

    def watch_unread(self, *, peers: int) -> None:
        """Set the alert of a new bucket, whose document was not read yet.

        Args:
            peers: Number of instances that may count this key, this one included.
        """
        self.alert = max(1, min(self.tier.urgent_hits, int(self.tier.limit * UNREAD_RATIO / peers)))
        self._set_ceiling()

    def distrust(self) -> None:
        """Have the next request reserve, because the counts of the other instances are not known yet."""
        self.alert = self.full
        self._set_ceiling()

    def load(self, now_s: float, *sources: Frames) -> None:
        """Replace the counts by a global snapshot plus the hits that it lacks.

        Args:
            now_s: The time.
            sources: Hits by frame start: the snapshot, and the hits that a flush has taken and the snapshot lacks.
        """
        self.left_s(now_s)
        frame_s, start_s = self.tier.frame_s, self.frame_start_s
        ahead_s = start_s + max(frame_s, AHEAD_S)
        current = fresh = self.full - self.sent
        for frames in sources:
            current += sum(hits for frame, hits in frames.items() if start_s <= frame <= ahead_s)
        if self.carried:
            sources = (*sources, self.carried)
        wanted = range(start_s - frame_s, start_s - frame_s * self.tier.frame_count - 1, -frame_s)
        past = [0] * len(wanted)
        for frames in filter(None, sources):
            past = list(map(add, past, map(frames.get, wanted, repeat(0))))
        while past and not past[-1]:
            past.pop()
        self.past = pack(past)
        self._weigh(current, fresh)

    def frames(self) -> dict[int, int]:
        """Return the hits of every known frame, by frame start."""
        start_s = self.frame_start_s
        hits = {start_s: self.current}
        hits.update((start_s - back * self.tier.frame_s, count) for back, count in enumerate(self.past, start=1))
        return hits

    def copy(self) -> "Bucket":
        """Return another bucket with the same content."""
        other = Bucket.__new__(Bucket)
        for name in Bucket.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def continue_from(self, former: "Bucket", now_s: float) -> None:
        """Copy the counts of a drained bucket of the same series."""
        former.left_s(now_s)
        self.frame_end_s = former.frame_end_s
        self.past = former.past[: self.tier.frame_count]
        self._weigh(former.current, 0)


class KeyBuckets(Bucket):
    """All buckets of one key, one for each tier.

    The object is itself the bucket of the first tier. Most keys have one tier, and this halves their memory.

    Attributes:
        others: The buckets of further tiers.
        pending: Hits by series that were counted before the tiers changed and that no flush has taken yet; None if
            there are none.
    """

    __slots__ = ("others", "pending")

    def __init__(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        self._begin(tiers, now_s)
        self.pending: Hits | None = None

    def _begin(self, tiers: tuple[Tier, ...], now_s: float) -> None:
        Bucket.__init__(self, tiers[0], now_s)
        self.others = tuple(Bucket(tier, now_s) for tier in tiers[1:])

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The bucket of each tier."""
        return (self, *self.others)

    @property
    def has_reached_alert(self) -> bool:
        """True if a bucket has reached its alert."""
        return self.full >= self.alert or any(bucket.full >= bucket.alert for bucket in self.others)

    @property
    def is_urgent_unread(self) -> bool:
        """True if an unread key's alert is so low that a cycle would come too late: its first hit makes it urgent."""
        return any(bucket.alert < FEW_HITS for bucket in self.buckets)

    def has_used(self, ratio: float, *, longer_than_s: float = 0.0) -> bool:
        """Return whether at least this share of a limit is used up. Approximate, because it needs no lock.

        Args:
            ratio: The share.
            longer_than_s: Length of the windows that are left out.
        """
        for bucket in (self, *self.others):  # not ``buckets`` and ``any``: a cycle asks several times for each key
            if bucket.full + bucket.edge >= ratio * bucket.tier.limit and bucket.tier.window_s > longer_than_s:
                return True
        return False

    def drain_all(self) -> Hits:
        """Take the hits that no flush has taken yet, by series.

        Tiers of the same series count the same requests, so the hits of one of their buckets are sent.
        """
        fresh: dict[Series, dict[int, int]] = {}
        for bucket in self.buckets:
            frames = bucket.drain()
            if frames:
                fresh.setdefault(bucket.tier.series, frames)
        if self.pending is None:
            return fresh
        pending, self.pending = self.pending, None
        return arithmetic.added(pending, fresh)

    def replace_tiers(self, tiers: tuple[Tier, ...], now_s: float, *, unsent: Hits | None) -> list[Bucket]:
        """Apply other tiers. A series that stays the same keeps its counts; a new one starts with its in-flight hits.

        Hits that no flush has taken stay pending in the series that they were counted in.

        Args:
            tiers: The new tiers.
            now_s: The time.
            unsent: In-flight hits that a flush has taken.

        Returns:
            The new buckets that lack hits of the document.
        """
        pending = self.drain_all()
        former: dict[Series, Bucket] = {}
        for bucket in (self.copy(), *self.others):
            former.setdefault(bucket.tier.series, bucket)  # the widest window comes first
        self._begin(tiers, now_s)
        self.pending = pending or None
        incomplete = []
        for bucket in self.buckets:
            series = bucket.tier.series
            before = former.get(series)
            if before is not None:
                bucket.continue_from(before, now_s)
            else:
                bucket.load(now_s, *(hits.get(series, NO_FRAMES) for hits in (pending, unsent) if hits))
            if before is None or before.tier.frame_count < bucket.tier.frame_count:
                incomplete.append(bucket)
        return incomplete
