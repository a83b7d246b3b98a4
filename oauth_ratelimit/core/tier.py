"""
Policies as they are applied: flattened, with the mode decided.
"""

from collections.abc import Iterable

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator


class Tier:
    """
    One policy of a set of which all must admit.

    Args:
        policy: The policy.

        mode: What is done with its denials.

        apart: Whether it counts other requests than the rest of its set does, being a dry run beside enforced policies.

        alone: Whether its set has no other.

    Attributes:
        series: Name of its counters in a document: the frame's length, marked where it counts other requests.

        is_alone: Whether no other tier applies to the same requests.
    """

    __slots__ = (
        "_frame_end_s",
        "count_denied",
        "estimator",
        "frame_count",
        "frame_s",
        "is_alone",
        "is_enforced",
        "is_proportional",
        "limit",
        "mode",
        "policy",
        "series",
        "window_s",
    )

    def __init__(self, policy: Policy, mode: Mode, *, apart: bool = False, alone: bool = False) -> None:
        self.policy = policy
        self.mode = mode
        self.limit = policy.limit
        self.window_s = policy.window.window_s
        self.frame_s = policy.window.frame_s
        self.frame_count = policy.window.frame_count
        self.is_enforced = mode is Mode.ENFORCE
        self.estimator = policy.estimator
        self.is_proportional = policy.estimator is Estimator.PROPORTIONAL
        self.is_alone = alone
        self.count_denied = policy.count_denied
        self._frame_end_s = 0.0
        self.series = str(self.frame_s) + ("+denied" if policy.count_denied else "") + ("+dry-run" if apart else "")

    def frame_end_after(self, now_s: float) -> float:
        """
        Return the end of the frame that ``now_s`` lies in.

        A float, because it is compared with the time for each request. It is kept, so that all keys share one object:
        that is less memory, and most of all fewer places to fetch from.
        """
        end_s = self._frame_end_s
        if not end_s - self.frame_s <= now_s < end_s:
            end_s = self._frame_end_s = float(self.policy.window.frame_start_s(now_s) + self.frame_s)
        return end_s


def tiers_of(policies: Iterable[Policy], mode: Mode, *, alone: bool = False) -> tuple[Tier, ...]:
    """
    Return the tiers of one kind of limit, the widest window first: of tiers with the same frames, it sends the hits.

    Args:
        policies: The policies of that kind.

        mode: The mode of those that name none.

        alone: Whether no other kind of limit applies to the same requests.
    """
    chosen = [(policy, policy.mode or mode) for policy in policies if policy.mode is not Mode.OFF]
    alone = alone and len(chosen) == 1
    enforced = any(own is Mode.ENFORCE for _, own in chosen)
    tiers = [Tier(policy, own, apart=enforced and own is not Mode.ENFORCE, alone=alone) for policy, own in chosen]
    return tuple(sorted(tiers, key=lambda tier: -tier.window_s))
