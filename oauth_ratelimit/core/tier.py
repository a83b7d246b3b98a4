"""Tiers: policies that apply to the same requests, each with the series of its counters."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy

URGENT_RATIO = 1 / 200  # of a limit; docs/accuracy.md compares other values


class Series(NamedTuple):
    """Identity of counters in a document. Several tiers may share them.

    Attributes:
        frame_s: Length of a frame in seconds.
        count_denied: True if denied requests are counted, too.
        on_trial: True if only tiers in dry run use the counters, beside enforced tiers that count fewer requests.
    """

    frame_s: int
    count_denied: bool = False
    on_trial: bool = False


class Tier:
    """Policy with its mode. A request is admitted only if all of its tiers admit it.

    Args:
        policy: The policy.
        mode: Effect of its denials.
        on_trial: True for a dry run beside enforced policies, which count fewer requests.
        alone: True if no other tier applies to the same requests.

    Attributes:
        series: Counters in the document that hold its hits.
        horizon_s: Seconds for which a frame can matter, from its start: the window and one frame.
        is_alone: True if no other tier applies to the same requests.
        urgent_hits: Unsent hits that make a key urgent where several instances count.
    """

    __slots__ = (
        "_frame_end_s",
        "count_denied",
        "edge_per_hit",
        "frame_count",
        "frame_s",
        "horizon_s",
        "is_alone",
        "is_enforced",
        "limit",
        "mode",
        "policy",
        "series",
        "urgent_hits",
        "window_s",
    )

    def __init__(self, policy: Policy, mode: Mode, *, on_trial: bool = False, alone: bool = False) -> None:
        self.policy = policy
        self.mode = mode
        self.limit = policy.limit
        self.window_s = policy.window.window_s
        self.frame_s = policy.window.frame_s
        self.horizon_s = self.window_s + self.frame_s
        self.frame_count = policy.window.frame_count
        self.is_enforced = mode is Mode.ENFORCE
        self.edge_per_hit = policy.estimator.edge_per_hit
        self.is_alone = alone
        self.count_denied = policy.count_denied
        self.urgent_hits = math.ceil(self.limit * URGENT_RATIO)
        self.series = Series(self.frame_s, policy.count_denied, on_trial)
        self._frame_end_s = 0.0

    def frame_end_after(self, now_s: float) -> float:
        """Return the end of the frame that contains ``now_s``.

        A cached float, because every request compares it with the time, and shared by all keys to save memory.
        """
        end_s = self._frame_end_s
        if not end_s - self.frame_s <= now_s < end_s:
            end_s = self._frame_end_s = float(self.policy.window.frame_start_s(now_s) + self.frame_s)
        return end_s


def tiers_of(policies: Iterable[Policy], mode: Mode, *, alone: bool = False) -> tuple[Tier, ...]:
    """Return the tiers of one kind of limit. The widest window comes first and sends the hits of a shared series.

    Args:
        policies: Policies of that kind.
        mode: Mode of policies without one of their own.
        alone: True if no other kind of limit applies to the same requests.
    """
    chosen = [(policy, policy.mode or mode) for policy in policies if policy.mode is not Mode.OFF]
    alone = alone and len(chosen) == 1
    enforced = any(own is Mode.ENFORCE for _, own in chosen)
    tiers = [Tier(policy, own, on_trial=enforced and own is not Mode.ENFORCE, alone=alone) for policy, own in chosen]
    return tuple(sorted(tiers, key=lambda tier: -tier.window_s))


def raised(horizons: Mapping[Series, int], tiers: Iterable[Tier]) -> Mapping[Series, int]:
    """Return horizons by series, raised to those of tiers. Equal ones are the same object, to save memory."""
    higher = dict(horizons)
    for tier in tiers:
        higher[tier.series] = max(tier.horizon_s, higher.get(tier.series, 0))
    return _shared(tuple(sorted(higher.items())))


@lru_cache(maxsize=1000)
def _shared(items: tuple[tuple[Series, int], ...]) -> Mapping[Series, int]:
    return dict(items)
