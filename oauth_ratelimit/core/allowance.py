"""
Hits that may be admitted without another look at the buckets.

As long as no frame ends, an estimate can only fall by itself and rise by the hits admitted. So one look tells how many
more will surely be admitted until then, and each of them costs a comparison and a subtraction, for any number of tiers.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import estimate_hits

Term = tuple[Tier, int, int, float]
"""A tier at the moment that an allowance was granted: tier, full and edge (see ``core.window``), end of the frame."""


class Allowance:
    """
    So many hits, until a moment.

    Args:
        size: Hits granted.

        until_s: When the first frame ends, seconds since the epoch.

        terms: The tiers that granted it.

    Attributes:
        left: Hits not used yet. Guarded by the lock of the place that the key belongs to.
    """

    __slots__ = ("left", "size", "terms", "until_s")

    def __init__(self, size: int, until_s: float, terms: Sequence[Term]) -> None:
        self.size = size
        self.left = size
        self.until_s = until_s
        self.terms = terms


NO_ALLOWANCE = Allowance(0, 0.0, ())


class Admission(Decision):
    """
    The decision about a request under an allowance. Its figures are worked out when they are asked for.

    Args:
        allowance: What it was admitted under; never changes but for ``left``.

        left: What this request left of it.

        now_s: When it was admitted.

        total: The allowance of all users of the client together, if that is limited.

        total_left: What this request left of that.
    """

    __slots__ = ("_allowance", "_left", "_now_s", "_total", "_total_left")

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0

    def __init__(
        self, allowance: Allowance, left: int, now_s: float, total: Allowance = NO_ALLOWANCE, total_left: int = 0
    ) -> None:
        self._allowance = allowance
        self._left = left
        self._now_s = now_s
        self._total = total
        self._total_left = total_left

    def _rooms(self) -> Iterator[tuple[float, Tier, float]]:
        for allowance, left in ((self._allowance, self._left), (self._total, self._total_left)):
            used = allowance.size - left
            for tier, full, edge, frame_end_s in allowance.terms:
                left_s = min(frame_end_s - self._now_s, float(tier.frame_s))
                faded = edge - used if tier.is_proportional else edge
                room = tier.limit - estimate_hits(full + used, faded, left_s, tier.frame_s)
                yield room, tier, tier.window_s + frame_end_s - self._now_s

    def _nearest(self) -> tuple[float, Tier, float]:
        return min(self._rooms(), key=itemgetter(0))

    @property
    def mode(self) -> Mode:  # type: ignore[override]  # to be read only, here and in every decision
        return self._nearest()[1].mode

    @property
    def rule(self) -> Policy:  # type: ignore[override]
        return self._nearest()[1].policy

    @property
    def remaining(self) -> int:  # type: ignore[override]
        return int(self._nearest()[0])

    @property
    def reset_after_s(self) -> float:  # type: ignore[override]
        return self._nearest()[2]
