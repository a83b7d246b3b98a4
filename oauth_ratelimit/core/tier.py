"""Tiers: the limits of one kind that a request meets, each with the series that it counts in."""

from collections.abc import Iterable
from typing import NamedTuple

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy


class Series(NamedTuple):
    """Identity of the counters that one or more tiers share in a document.

    Attributes:
        frame_s: Length of a frame in seconds.
        count_denied: Denied requests are counted, too.
        on_trial: Only a dry run uses it, beside limits that are enforced and count fewer requests.
    """

    frame_s: int
    count_denied: bool = False
    on_trial: bool = False


class Tier:
    """One of the policies of which all must admit a request.

    Args:
        policy: The policy.
        mode: Effect of its denials.
        on_trial: Whether it is a dry run beside enforced policies, so that it counts other requests than they do.
        alone: Whether no other tier applies to the same requests.

    Attributes:
        series: Counters in a document that its hits belong to.
        is_alone: Whether no other tier applies to the same requests.
    """

    __slots__ = (
        "_frame_end_s",
        "count_denied",
        "edge_per_hit",
        "frame_count",
        "frame_s",
        "is_alone",
        "is_enforced",
        "limit",
        "mode",
        "policy",
        "series",
        "window_s",
    )

    def __init__(self, policy: Policy, mode: Mode, *, on_trial: bool = False, alone: bool = False) -> None:
        self.policy = policy
        self.mode = mode
        self.limit = policy.limit
        self.window_s = policy.window.window_s
        self.frame_s = policy.window.frame_s
        self.frame_count = policy.window.frame_count
        self.is_enforced = mode is Mode.ENFORCE
        self.edge_per_hit = policy.estimator.edge_per_hit
        self.is_alone = alone
        self.count_denied = policy.count_denied
        self.series = Series(self.frame_s, policy.count_denied, on_trial)
        self._frame_end_s = 0.0

    def frame_end_after(self, now_s: float) -> float:
        """Return the end of the frame that contains ``now_s``.

        It is a float, because each request compares it with the time. All keys share the object, which saves memory.
        """
        end_s = self._frame_end_s
        if not end_s - self.frame_s <= now_s < end_s:
            end_s = self._frame_end_s = float(self.policy.window.frame_start_s(now_s) + self.frame_s)
        return end_s


def tiers_of(policies: Iterable[Policy], mode: Mode, *, alone: bool = False) -> tuple[Tier, ...]:
    """Return the tiers of one kind of limit, the widest window first. It sends the hits of a series that tiers share.

    Args:
        policies: Policies of that kind.
        mode: Mode of those that have none of their own.
        alone: Whether no other kind of limit applies to the same requests.
    """
    chosen = [(policy, policy.mode or mode) for policy in policies if policy.mode is not Mode.OFF]
    alone = alone and len(chosen) == 1
    enforced = any(own is Mode.ENFORCE for _, own in chosen)
    tiers = [Tier(policy, own, on_trial=enforced and own is not Mode.ENFORCE, alone=alone) for policy, own in chosen]
    return tuple(sorted(tiers, key=lambda tier: -tier.window_s))
