"""Tiers: policies that apply to the same requests, each with the series of its counters."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OnLimit, Policy
from oauth_ratelimit.core.window import Estimator, age, estimate_hits, reset_after_s, retry_after_s

URGENT_RATIO = 1 / 200  # of a limit; docs/accuracy.md compares other values


class Content(NamedTuple):
    """Hits of a window at the time of a request."""

    estimate: float  # hits in the window
    current: int  # hits of the current frame
    past: Sequence[int]  # hits of the frames before it, newest first, up to the oldest one with hits
    left_s: float  # seconds until the current frame ends


class Series(NamedTuple):
    """Identity of counters in a document. Several tiers may share them."""

    frame_s: int  # length of a frame in seconds
    count_denied: bool = False  # True if denied requests are counted, too
    on_trial: bool = False  # True if only tiers in dry run use the counters, beside enforced ones of the same requests


FLAG_BITS = 2  # of a series' number, below the length of its frames


@lru_cache(maxsize=1000)
def series_of(number: int) -> Series:
    return Series(number >> FLAG_BITS, bool(number & 1), bool(number & 2))


@lru_cache(maxsize=1000)
def number_of(series: Series) -> int:
    """Return a series as one number, as rows of the host table hold it."""
    return series.frame_s << FLAG_BITS | series.on_trial << 1 | series.count_denied


class Tier:
    """Policy with its mode. A request is admitted only if all of its tiers admit it."""

    def __init__(self, policy: Policy, mode: Mode, *, on_trial: bool = False, is_total: bool = False) -> None:
        self.policy = policy
        self.mode = mode
        self.limit = policy.limit
        self.window_s = policy.window.window_s
        self.frame_s = policy.window.frame_s
        self.horizon_s = self.window_s + self.frame_s  # seconds for which a frame can matter, from its start
        self.frame_count = policy.window.frame_count
        self.is_enforced = mode is Mode.ENFORCE
        self.is_sliding = policy.estimator is Estimator.SLIDING
        self.edge_per_hit = policy.estimator.edge_per_hit
        self._weigh = policy.estimator.weigh
        self.count_denied = policy.count_denied
        self.reuses = policy.on_limit is OnLimit.REUSE
        self.urgent_hits = math.ceil(self.limit * URGENT_RATIO)  # unsent ones, where several instances count
        self.series = Series(self.frame_s, policy.count_denied, on_trial)
        self.series_number = number_of(self.series)
        self.is_total = is_total  # it counts all users of a client together

    def content(self, frames: Mapping[int, int], now_s: float) -> Content:
        """Return the content of the window, from hits by frame start.

        Hits of later frames count now: they come from an instance whose clock is ahead, or this one's was set back.
        """
        start_s = int(now_s // self.frame_s) * self.frame_s
        past = [frames.get(start_s - place * self.frame_s, 0) for place in range(1, self.frame_count + 1)]
        current = sum(hits for at_s, hits in frames.items() if at_s >= start_s)
        return self.content_of(start_s, [current, *past], now_s)

    def content_of(self, newest_s: int, counts: Sequence[int], now_s: float) -> Content:
        """Return the same from the counts of consecutive frames, newest first."""
        frame_s, frame_count = self.frame_s, self.frame_count
        start_s = int(now_s // frame_s) * frame_s
        later = (newest_s - start_s) // frame_s  # frames
        if later > 0:
            counts = (sum(counts[: later + 1]), *counts[later + 1 :])
        elif later < 0:
            counts = (*(0,) * -later, *counts) if -later <= frame_count else (0,)
        past = counts[1 : frame_count + 1]
        while past and not past[-1]:
            past = past[:-1]
        return self._content(counts[0], past, start_s + frame_s - now_s)

    def _content(self, current: int, past: Sequence[int], left_s: float) -> Content:
        full, edge = self._weigh(current, past, self.frame_count)
        return Content(estimate_hits(full, edge, left_s, self.frame_s) if edge else full, current, past, left_s)

    def after_hits(self, content: Content, count: int) -> Content:
        """Return the content after further hits in the current frame."""
        estimate, current, past, left_s = content
        if not self.edge_per_hit:
            return Content(estimate + count, current + count, past, left_s)
        return self._content(current + count, past, left_s)

    def retry_after_s(self, content: Content, *, cost: int, later_s: float = 0.0) -> float:
        """Return the seconds until a request of this cost is admitted, not before ``later_s``."""
        current, past, left_s = content[1:]
        if later_s > 0.0:
            frames = math.floor((later_s - left_s) / self.frame_s) + 1
            current, past = age(current, past, frames, self.frame_count)
            left_s += frames * self.frame_s - later_s
        window, estimator = self.policy.window, self.policy.estimator
        waiting_s = retry_after_s(current, past, window, estimator, room=self.limit - cost, left_s=left_s)
        return later_s + waiting_s if waiting_s else later_s

    def reset_after_s(self, content: Content) -> float:
        return reset_after_s(content.current, content.past, self.policy.window, left_s=content.left_s)

    def more_after_s(self, content: Content) -> float:
        """Return the seconds until there is room for one more hit than now. Infinity if the window is empty."""
        estimate, current, past, left_s = content
        if self.is_sliding and len(past) < self.frame_count and (oldest := past[-1] if past else current):
            return left_s + (self.frame_count - len(past) - 1) * self.frame_s + self.frame_s / oldest  # most requests
        room = math.ceil(estimate) - 1
        window, estimator = self.policy.window, self.policy.estimator
        return retry_after_s(current, past, window, estimator, room=room, left_s=left_s)


@lru_cache(maxsize=1000)
def tiers_of(policies: tuple[Policy, ...], mode: Mode, *, is_total: bool = False) -> tuple[Tier, ...]:
    """Return the tiers of one kind of limit, the widest window first. Clients with equal policies share them.

    A request that a dry run denies counts in enforced tiers alone, so tiers in dry run have other series beside them.
    """
    chosen = [(policy, policy.mode or mode) for policy in policies if policy.mode is not Mode.OFF]
    enforces = any(own is Mode.ENFORCE for _, own in chosen)
    chosen.sort(key=lambda each: -each[0].window.window_s)
    return tuple(
        Tier(policy, own, on_trial=enforces and own is not Mode.ENFORCE, is_total=is_total) for policy, own in chosen
    )


@lru_cache(maxsize=1000)
def with_modes(tiers: tuple[Tier, ...], modes: tuple[Mode, ...]) -> tuple[Tier, ...]:
    """Return tiers with other modes and the same series, for clients that count together."""
    return tuple(
        Tier(tier.policy, mode, on_trial=tier.series.on_trial) for tier, mode in zip(tiers, modes, strict=True)
    )


def extend_horizons(horizons: Mapping[Series, int], others: Mapping[Series, int]) -> dict[Series, int]:
    """Return horizons in seconds by series, the longer one of each."""
    longer = dict(horizons)
    for series, horizon_s in others.items():
        longer[series] = max(horizon_s, longer.get(series, 0))
    return longer
