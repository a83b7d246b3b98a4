"""Tiers: policies that apply to the same requests, each with the series of its counters."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OnLimit, Policy
from oauth_ratelimit.core.window import Estimator, estimate_hits, reset_after_s, retry_after_s

URGENT_RATIO = 1 / 200  # of a limit; docs/accuracy.md compares other values

Content = tuple[int, int, Sequence[int], float]
"""Content of a window: ``full`` and ``edge`` of ``core.window``, the hits of past frames, the end of the frame."""


class Series(NamedTuple):
    """Identity of counters in a document. Several tiers may share them."""

    frame_s: int  # length of a frame in seconds
    count_denied: bool = False  # True if denied requests are counted, too
    on_trial: bool = False  # True if only tiers in dry run use the counters, beside enforced ones of the same requests


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
        self.count_denied = policy.count_denied
        self.reuses = policy.on_limit is OnLimit.REUSE
        self.urgent_hits = math.ceil(self.limit * URGENT_RATIO)  # unsent ones, where several instances count
        self.series = Series(self.frame_s, policy.count_denied, on_trial)
        self.sends = True  # false for all but the widest tier of a series: its tiers count the same requests
        self.is_total = is_total  # it counts all users of a client together
        self._frame_end_s = 0.0

    def frame_end_after(self, now_s: float) -> float:
        """Return the end of the frame that contains ``now_s``: a float that all keys share to save memory."""
        end_s = self._frame_end_s
        if not end_s - self.frame_s <= now_s < end_s:
            end_s = self._frame_end_s = float(self.policy.window.frame_start_s(now_s) + self.frame_s)
        return end_s

    def left_s(self, frame_end_s: float, now_s: float) -> float:
        """Return the seconds until a frame ends: a whole frame if the clock stepped back before its start."""
        return min(frame_end_s - now_s, float(self.frame_s))

    def estimate(self, content: Content, now_s: float) -> float:
        """Return the hits that the window holds. ``now_s`` lies in the frame."""
        full, edge, _, frame_end_s = content
        return estimate_hits(full, edge, self.left_s(frame_end_s, now_s), self.frame_s) if edge else full

    def reset_after_s(self, content: Content, now_s: float) -> float:
        """Return the seconds until nothing counts any more."""
        full, _, past, frame_end_s = content
        if full > sum(past):  # the current frame holds hits, as after most requests
            return self.window_s + frame_end_s - now_s
        return reset_after_s(self.current(full, past), past, self.policy.window, left_s=frame_end_s - now_s)

    def current(self, full: int, past: Sequence[int]) -> int:
        """Return the hits of the current frame."""
        return full - self.policy.estimator.weigh(0, past, self.frame_count)[0]

    def delays(self, content: Content, now_s: float, estimate: float) -> tuple[float, float]:
        """Return the seconds until there is room for one more hit than in the estimate, and until nothing counts.

        The first is infinity for no hits.
        """
        full, _, past, frame_end_s = content
        left_s, oldest = frame_end_s - now_s, past[-1] if past else full
        if self.is_sliding and estimate == full > sum(past) and oldest and left_s <= self.frame_s:  # most requests
            more_after_s = left_s + (self.frame_count - len(past) - 1) * self.frame_s + self.frame_s / oldest
            return more_after_s, self.window_s + left_s
        return self._more_after_s(content, now_s, estimate), self.reset_after_s(content, now_s)

    def _more_after_s(self, content: Content, now_s: float, estimate: float) -> float:
        full, _, past, frame_end_s = content
        left_s, room = self.left_s(frame_end_s, now_s), math.ceil(estimate) - 1
        if self.is_sliding and full <= room:  # the oldest frame fades out first
            return left_s - (room - full) * self.frame_s / past[-1]  # whole seconds are exact
        window, estimator = self.policy.window, self.policy.estimator
        return retry_after_s(self.current(full, past), past, window, estimator, room=room, left_s=left_s)


@lru_cache(maxsize=1000)
def tiers_of(policies: tuple[Policy, ...], mode: Mode, *, is_total: bool = False) -> tuple[Tier, ...]:
    """Return the tiers of one kind of limit, the widest window first. Clients with equal policies share them.

    A request that a dry run denies counts in enforced tiers alone, so tiers in dry run have other series beside them.
    """
    chosen = [(policy, policy.mode or mode) for policy in policies if policy.mode is not Mode.OFF]
    enforces = any(own is Mode.ENFORCE for _, own in chosen)
    tiers: list[Tier] = []
    for policy, own in sorted(chosen, key=lambda each: -each[0].window.window_s):
        tier = Tier(policy, own, on_trial=enforces and own is not Mode.ENFORCE, is_total=is_total)
        tier.sends = all(tier.series != wider.series for wider in tiers)
        tiers.append(tier)
    return tuple(tiers)


def extend_horizons(horizons: Mapping[Series, int], others: Mapping[Series, int]) -> Mapping[Series, int]:
    """Return horizons in seconds by series, the longer one of each. Equal mappings are one object, to save memory."""
    longer = dict(horizons)
    for series, horizon_s in others.items():
        longer[series] = max(horizon_s, longer.get(series, 0))
    return _shared(tuple(sorted(longer.items())))


@lru_cache(maxsize=1000)
def _shared(items: tuple[tuple[Series, int], ...]) -> Mapping[Series, int]:
    return dict(items)
