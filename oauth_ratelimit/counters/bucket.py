"""What an instance has counted: in-flight hits on top of the global snapshot.

Per key an instance knows ``g``, the last global snapshot, and ``i``, what it has counted since; decisions use both.
Only the sum is kept, with a note of how much of the current frame is known to be in ``g`` or on its way there: what a
request touches is then one number, and ``i`` is a difference that only the flush needs.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import add

from oauth_ratelimit.core.decision import Admission
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import age, estimate_hits, pack, reset_after_s, retry_after_s

AHEAD_S = 5  # hits of a frame that starts this much later are current hits from an instance whose clock is ahead
NO_ALERT = 2**60  # far above any limit
Frames = Mapping[int, int]
NO_FRAMES: Frames = {}


class Bucket:
    """Counter state of one policy and key. Guarded by the lock of its ``ClientState``.

    Attributes:
        frame_end_s: End of the current frame, seconds since the epoch; a whole number.
        full, edge: What an estimate is made of, see ``core.window``.
        past: Hits of the frames before the current one, newest first.
        base: What ``full`` would be without the hits of the current frame.
        sent: What ``full`` would be without the hits of the current frame that no flush has taken yet.
        carried: Hits of earlier frames that no flush has taken yet.
        alert: When ``full`` reaches this, the other instances should hear of it soon.
        ceiling: Until ``full`` passes this, a hit is surely within the limit and below the alert, and counting it is to
            add it to ``full``.
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
            return float(tier.frame_s)  # the clock stepped back a little: stay in the newest frame until it comes
        current, fresh = self.full - self.base, self.full - self.sent
        if frames > 0:
            if fresh:
                carried, start_s = self.carried or {}, self.frame_start_s
                # The frame may be there already: the clock was past it, and stepped back.
                self.carried = {**carried, start_s: carried.get(start_s, 0) + fresh}
            current, self.past = age(current, self.past, frames, tier.frame_count)
            fresh = 0  # if it stepped back by frames, they count from now on
        self.frame_end_s = end_s
        self._weigh(current, fresh)
        return end_s - now_s

    def _weigh(self, current: int, fresh: int) -> None:
        tier, before = self.tier, self.full
        self.full, self.edge = tier.policy.estimator.weigh(current, self.past, tier.frame_count)
        self.base = self.full - current
        self.sent = self.full - fresh
        if self.alert != NO_ALERT:  # which all keys share, and should go on sharing
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
        """Count a request in the current frame."""
        self.full += cost
        self.edge += cost * self.tier.edge_per_hit

    def admission(self, now_s: float, also: Admission | None = None) -> Admission:
        """Return the decision about a request that was just counted here, and in the bucket of ``also``."""
        return Admission(self.tier, self.full, self.edge, self.frame_end_s, now_s, also)

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
        """
        Return the seconds until the current frame begins: 0.0, unless the clock has stepped back into the one before.
        """
        return max(0.0, self.frame_start_s - now_s)

    def drain(self) -> dict[int, int] | None:
        """Return the hits that no flush has taken yet, by frame start, and note that one has now."""
        frames, self.carried = self.carried, None
        fresh = self.full - self.sent
        if fresh:
            frames = frames or {}
            start_s = self.frame_start_s
            frames[start_s] = frames.get(start_s, 0) + fresh
            self.sent = self.full
        return frames

    def watch(self, now_s: float, *, peers: int, reserves: bool) -> None:
        """Set the alert: this instance may use up its share of what is left before the others should hear of it.

        Args:
            now_s: The time.
            peers: How many instances count this key, this one included.
            reserves: Whether the store is then asked, and before each of the last requests: two for each instance.
        """
        share = math.ceil((self.tier.limit - self.estimate(now_s)) / peers)
        if reserves:
            self.alert = self.full + max(0, share - 2)
        else:
            self.alert = self.full + max(1, share) if peers > 1 else NO_ALERT
        self._set_ceiling()

    def distrust(self) -> None:
        """Have the next request ask the store, because nothing is known yet."""
        self.alert = self.full
        self._set_ceiling()

    def load(self, now_s: float, *sources: Frames) -> None:
        """Take over a global snapshot, and put on top what is not in it.

        Args:
            now_s: The time.
            sources: Hits by frame start: those of the snapshot, those that a flush has taken and the snapshot lacks.
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
        """Return the hits of every frame that is known, by frame start."""
        start_s = self.frame_start_s
        hits = {start_s: self.current}
        hits.update((start_s - age * self.tier.frame_s, count) for age, count in enumerate(self.past, start=1))
        return hits

    def copy(self) -> "Bucket":
        """Return another bucket with the same content."""
        other = Bucket.__new__(Bucket)
        for name in Bucket.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def continue_from(self, former: "Bucket", now_s: float) -> None:
        """Start with the counts of a bucket of the same series whose hits were all taken."""
        former.left_s(now_s)
        self.frame_end_s = former.frame_end_s
        self.past = former.past[: self.tier.frame_count]
        self._weigh(former.current, 0)
