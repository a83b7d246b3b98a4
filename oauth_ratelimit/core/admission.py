"""
Admissions, the common case: made with as little work as possible.
"""

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import estimate_hits


class Admission(Decision):
    """
    The decision about an admitted request. Its figures are worked out when they are asked for.

    Args:
        tier: The tier that has least left.

        full, edge: What its estimate is made of, see ``core.window``, with this request.

        frame_end_s: End of its current frame, seconds since the epoch.

        now_s: When the request was admitted.
    """

    __slots__ = ("_edge", "_frame_end_s", "_full", "_now_s", "_tier")

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0
    decision_id = None

    def __init__(self, tier: Tier, full: int, edge: int, frame_end_s: int, now_s: float) -> None:
        self._tier = tier
        self._full = full
        self._edge = edge
        self._frame_end_s = frame_end_s
        self._now_s = now_s

    @property
    def mode(self) -> Mode:  # type: ignore[override]  # to be read only, here and in every decision
        return self._tier.mode

    @property
    def rule(self) -> Policy:  # type: ignore[override]
        return self._tier.policy

    @property
    def remaining(self) -> int:  # type: ignore[override]
        tier = self._tier
        return int(tier.limit - estimate_hits(self._full, self._edge, self._left_s, tier.frame_s))

    @property
    def reset_after_s(self) -> float:  # type: ignore[override]
        return self._tier.window_s + self._left_s

    @property
    def _left_s(self) -> float:
        return min(self._frame_end_s - self._now_s, float(self._tier.frame_s))  # more only if the clock stepped back
