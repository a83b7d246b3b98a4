"""
Admissions, the common case: made with as little work as possible.

They are tuples, because making one takes half the instructions that an object with attributes of its own takes.
"""

from operator import attrgetter
from typing import final

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import estimate_hits

Term = tuple[Tier, int, int, float, float]
"""
A tier that admitted a request: the tier, full and edge (see ``core.window``) with this request, the end of the frame,
and the time of the request in seconds since the epoch.
"""


class Admission(Decision, Term):
    """
    The decision about a request that one tier admitted. Its figures are worked out when they are asked for.
    """

    __slots__ = ()

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0
    decision_id = None

    @property
    def room(self) -> float:
        """
        What the estimate leaves of the limit.
        """
        tier, full, edge, frame_end_s, now_s = self
        left_s = min(frame_end_s - now_s, tier.frame_s)  # more only if the clock stepped back
        return tier.limit - estimate_hits(full, edge, left_s, tier.frame_s)

    @property
    def mode(self) -> Mode:  # type: ignore[override]  # to be read only, here and in every decision
        return self[0].mode

    @property
    def rule(self) -> Policy:  # type: ignore[override]
        return self[0].policy

    @property
    def remaining(self) -> int:  # type: ignore[override]
        return self.quota()[1]

    @property
    def reset_after_s(self) -> float:  # type: ignore[override]
        return self.quota()[2]

    def quota(self) -> tuple[Policy, int, float]:
        """
        See ``Decision.quota``. Worked out together, because every admitted request needs them.
        """
        tier, full, edge, frame_end_s, now_s = self
        frame_s = tier.frame_s
        left_s = frame_end_s - now_s
        if left_s > frame_s:
            left_s = frame_s
        # Of most keys nothing fades out, and mixing integers with floats costs as much as all the rest.
        remaining = int(tier.limit - estimate_hits(full, edge, left_s, frame_s)) if edge else tier.limit - full
        return tier.policy, remaining, tier.window_s + left_s


@final
class JointAdmission(Decision, tuple[Term, ...]):
    """
    The decision about a request that several tiers admitted: it describes the one that has least left.
    """

    __slots__ = ()

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0
    decision_id = None

    @property
    def nearest(self) -> Admission:
        """
        The admission by the tier that has least left.
        """
        return min(map(Admission, self), key=attrgetter("room"))

    @property
    def mode(self) -> Mode:  # type: ignore[override]
        return self.nearest.mode

    @property
    def rule(self) -> Policy:  # type: ignore[override]
        return self.nearest.rule

    @property
    def remaining(self) -> int:  # type: ignore[override]
        return self.nearest.remaining

    @property
    def reset_after_s(self) -> float:  # type: ignore[override]
        return self.nearest.reset_after_s

    def quota(self) -> tuple[Policy, int, float]:
        """
        See ``Decision.quota``.
        """
        return self.nearest.quota()
