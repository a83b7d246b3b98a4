"""Hits of one policy and key in the frames of its window."""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import add
from typing import Any

from oauth_ratelimit.core.tier import Content, Tier
from oauth_ratelimit.core.window import age, pack, retry_after_s

AHEAD_S = 5  # frames that start up to this much later count now: they come from an instance whose clock is ahead
NO_ALERT = 2**60  # far above any limit
FAR_RATIO = 1 / 8  # of a limit: a key is far while this is not used up, if others count as much as this instance
FEWEST_UNSENT = 3  # hits of each instance; a limit that allows fewer is never far, so small limits are kept closely
UNSENT_RATIO = 1 / 20  # of a limit: unsent hits of all known instances together on a key that is far from it, or unread
Frames = Mapping[int, int]
"""Hits by frame start in seconds since the epoch."""
NO_FRAMES: Frames = {}


class Bucket:
    """Counter state of one policy and key. Guarded by the lock of its client.

    An instance knows ``g``, the global snapshot, and ``i``, the hits that it has counted since. Decisions use the sum.
    The bucket holds the sum and the part of it that a flush has taken, so a request changes one number.
    """

    __slots__ = ("alert", "edge", "frame_end_s", "full", "next", "not_fresh", "past", "tier")

    def __init__(self, tiers: Sequence[Tier], now_s: float) -> None:
        self.tier = tier = tiers[0]
        # Of the key's further tiers. Most keys have one tier, and a list in the key would cost memory.
        self.next = Bucket(tiers[1:], now_s) if tiers[1:] else None
        self.frame_end_s = tier.frame_end_after(now_s)  # of the current frame; a whole number
        self.full = 0  # with ``edge``, the two numbers of an estimate, see ``core.window``
        self.edge = 0
        self.past: Sequence[int] = b""  # hits of the frames before the current one, newest first
        self.not_fresh = 0  # the part of ``full`` that needs no flush; none has taken the rest, of the current frame
        self.alert = NO_ALERT  # the value of ``full`` at which the key becomes urgent

    def values(self) -> tuple[Any, ...]:
        """Return all that changes, for ``restore``."""
        return self.frame_end_s, self.full, self.edge, self.past, self.not_fresh, self.alert

    def restore(self, values: tuple[Any, ...]) -> None:
        self.frame_end_s, self.full, self.edge, self.past, self.not_fresh, self.alert = values

    def is_current(self, now_s: float) -> bool:
        """Return whether ``now_s`` lies in the current frame."""
        return 0.0 < self.frame_end_s - now_s <= self.tier.frame_s

    def turn(self, now_s: float) -> tuple[int, int]:
        """Move on to the frame that ``now_s`` lies in.

        Returns the start of the frame that has ended, and its hits that no flush has taken; 0 hits if it goes on.
        """
        tier = self.tier
        end_s = tier.frame_end_after(now_s)
        frames = int(end_s - self.frame_end_s) // tier.frame_s
        ended_s, current, fresh = self.frame_start_s, self.current, self.fresh
        if frames == -1:
            return ended_s, 0  # the clock stepped back a little: stay in the newest frame
        if frames > 0:
            current, self.past = age(current, self.past, frames, tier.frame_count)
        self.frame_end_s = end_s
        # After a larger step back hits count in the present, on top of what was counted before.
        self._set_counts(current, fresh=0 if frames > 0 else fresh)
        return ended_s, fresh if frames > 0 else 0

    def _set_counts(self, current: int, *, fresh: int) -> None:
        """Compute the numbers of the estimate, and move the alert with them."""
        before = self.full
        self.full, self.edge = self.tier.policy.estimator.weigh(current, self.past, self.tier.frame_count)
        self.not_fresh = self.full - fresh
        if self.alert != NO_ALERT:  # the sum would be a new object in every key
            self.alert += self.full - before

    @property
    def frame_start_s(self) -> int:
        return int(self.frame_end_s) - self.tier.frame_s

    @property
    def current(self) -> int:
        return self.tier.current(self.full, self.past)

    @property
    def fresh(self) -> int:
        """Hits of the current frame that no flush has taken."""
        return self.full - self.not_fresh

    @property
    def content(self) -> Content:
        return self.full, self.edge, self.past, self.frame_end_s

    def estimate(self, now_s: float) -> float:
        """Return the hits that the window holds. ``now_s`` lies in the current frame."""
        return self.tier.estimate(self.content, now_s)

    def count_surely(self, now_s: float, cost: int) -> tuple[Content, ...]:
        """Count hits here and in the next buckets, if they are surely within the limits and do not reach an alert.

        Counts nothing and returns nothing if it takes an estimate to say, or if a frame has ended.
        """
        full, limit = self.full + cost, self.tier.limit
        if full < self.alert and full <= limit and full + self.edge <= limit and now_s < self.frame_end_s:
            if self.next is None:
                return (self.count(cost),)
            if others := self.next.count_surely(now_s, cost):
                return (self.count(cost), *others)
        return ()

    def count(self, cost: int) -> Content:
        """Count hits in the current frame, and return the content of the window."""
        self.full = full = self.full + cost
        self.edge = edge = self.edge + cost * self.tier.edge_per_hit
        return full, edge, self.past, self.frame_end_s

    def denies(self, now_s: float, cost: int) -> bool:
        """Return whether the limit does not admit hits."""
        return self.estimate(now_s) > self.tier.limit - cost

    def take_fresh(self) -> int:
        """Return the hits of the current frame that no flush has taken; a flush takes them now."""
        fresh = self.full - self.not_fresh
        self.not_fresh = self.full
        return fresh

    def retry_after_s(self, now_s: float, *, cost: int, later_s: float = 0.0) -> float:
        """Return the seconds until a request of this cost is admitted, not before ``later_s``."""
        window, left_s = self.tier.policy.window, self.tier.left_s(self.frame_end_s, now_s)
        current, past = self.current, self.past
        early_s = max(0.0, self.frame_start_s - now_s)  # until the frame begins, after the clock stepped back
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
        return self.tier.reset_after_s(self.content, now_s)

    def watch(self, now_s: float, *, writer_count: int) -> float:
        """Set the alert to the hits that this instance may count before it flushes, and return the excess of the rest.

        That is a small part of the limit, or this instance's share of the remaining hits if that is less. It is more
        while the limit is far. The excess is what the window holds above the limit without the fresh hits.
        """
        limit, estimate = self.tier.limit, self.estimate(now_s)
        share = math.ceil((limit - estimate) / writer_count)
        known = estimate - self.fresh
        far = int(min(limit * UNSENT_RATIO, limit * FAR_RATIO - writer_count * known) / writer_count)
        self.alert = self.not_fresh + max(1, min(share, self.tier.urgent_hits), far if far >= FEWEST_UNSENT else 0)
        return known - limit

    def watch_unread(self, *, writer_count: int) -> None:
        """Set the alert of a new bucket, whose document was not read yet."""
        self.alert = max(1, min(self.tier.urgent_hits, int(self.tier.limit * UNSENT_RATIO / writer_count)))

    def load(self, *sources: Frames) -> None:
        """Replace the counts by a snapshot plus the hits that a flush has taken and it lacks. The fresh hits stay."""
        frame_s, start_s = self.tier.frame_s, self.frame_start_s
        ahead_s = start_s + max(frame_s, AHEAD_S)
        current = fresh = self.fresh
        wanted = range(start_s - frame_s, start_s - frame_s * self.tier.frame_count - 1, -frame_s)
        past = [0] * len(wanted)
        for frames in filter(None, sources):
            current += sum(hits for frame, hits in frames.items() if start_s <= frame <= ahead_s)
            past = list(map(add, past, map(frames.get, wanted, repeat(0))))
        while past and not past[-1]:
            past.pop()
        self.past = pack(past)
        self._set_counts(current, fresh=fresh)

    def continue_from(self, former: "Bucket") -> None:
        """Copy the counts of a bucket of the same series without fresh hits."""
        self.frame_end_s = former.frame_end_s
        self.past = former.past[: self.tier.frame_count]
        self._set_counts(former.current, fresh=0)
