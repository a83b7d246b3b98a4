"""Decisions about requests."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple, final

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, Policy
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.core.window import estimate_hits

Outcome = Literal["allowed", "denied", "would_deny", "trusted"]
"""Outcome of a request in metrics, traces and statistics. ``would_deny`` is over a limit in a dry run."""


class Quota(NamedTuple):
    """Quota of one policy.

    Attributes:
        policy: The policy.
        remaining: Hits left in its window.
        reset_after_s: Seconds until the whole quota is back if nothing else happens.
    """

    policy: Policy
    remaining: int
    reset_after_s: float


class Decision(ABC):
    """Decision about one request. It describes the policy that denies, else the one with least left.

    Attributes:
        would_deny: True if the request is over a limit. In a dry run it is ``allowed`` all the same.
        trusted: True if the client is trusted, so that no limit was checked or counted.
        is_repeat: True if an earlier denial of the same key was repeated.
    """

    __slots__ = ()

    would_deny: bool
    trusted: bool
    is_repeat: bool

    @property
    @abstractmethod
    def allowed(self) -> bool:
        """True if the request is allowed."""

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """Mode that the decision was made under."""

    @property
    @abstractmethod
    def rule(self) -> Policy | None:
        """Policy that the decision describes, None if no policy applies."""

    @property
    @abstractmethod
    def remaining(self) -> int:
        """Hits left in the policy's window, after this request if it was counted.

        After a denial, the smallest number left in the policies that deny.
        """

    @property
    @abstractmethod
    def reset_after_s(self) -> float:
        """Seconds until the whole quota is back if nothing else happens."""

    @property
    @abstractmethod
    def retry_after_s(self) -> float:
        """Seconds until the request would be admitted if nothing else happens, 0.0 if it is.

        Infinity if its cost is above the limit.
        """

    @property
    @abstractmethod
    def decision_id(self) -> str | None:
        """Id of a denial in the response and in the log, None for any other decision."""

    @property
    def policy(self) -> str | None:
        """Name of the policy, None if no policy applies."""
        return self.rule.name if self.rule else None

    @property
    def limit(self) -> int | None:
        """Hits per window, None if no policy applies."""
        return self.rule.limit if self.rule else None

    @property
    def window_s(self) -> int | None:
        """Length of the window in seconds, None if no policy applies."""
        return self.rule.window.window_s if self.rule else None

    @abstractmethod
    def enforced_quota(self) -> Quota | None:
        """Return the quota of the enforced policy that denies, else of the one with least left.

        None if no policy is enforced for this request: a dry run tells clients nothing.
        """

    @abstractmethod
    def used_hits(self) -> Iterable[tuple[Policy, float]]:
        """Return the checked policies, each with the hits in its window."""

    def __repr__(self) -> str:
        return (
            f"<Decision allowed={self.allowed} would_deny={self.would_deny} mode={self.mode.value}"
            f" policy={self.policy!r} remaining={self.remaining} retry_after_s={self.retry_after_s}>"
        )


@final
@dataclass(slots=True, repr=False)
class FullDecision(Decision):
    """Decision with precomputed figures: a denial, a preview, or a decision without a policy.

    Not frozen, because frozen dataclasses are slower to create.
    """

    allowed: bool = field()  # without ``field``, the property of the base class would be its default
    would_deny: bool = field()
    mode: Mode = field()
    trusted: bool = False
    rule: Policy | None = None
    remaining: int = 0
    reset_after_s: float = 0.0
    retry_after_s: float = 0.0
    decision_id: str | None = field(default=None, compare=False)
    is_repeat: bool = field(default=False, init=False, compare=False)
    beside: "Admission | None" = field(default=None, init=False, compare=False)
    """Admission by the enforced policies, if others would deny the request in a dry run."""

    def enforced_quota(self) -> Quota | None:
        """See ``Decision.enforced_quota``."""
        if self.beside is not None:
            return self.beside.enforced_quota()
        if self.rule is None or self.trusted or self.mode is not Mode.ENFORCE:
            return None
        return Quota(self.rule, self.remaining, self.reset_after_s)

    def used_hits(self) -> Iterable[tuple[Policy, float]]:
        """See ``Decision.used_hits``. Only the described policy."""
        return () if self.rule is None else ((self.rule, float(self.rule.limit - self.remaining)),)


@final
class Admission(Decision):
    """Decision about a request that was admitted and counted. Its figures are computed when they are read.

    Args:
        tier: A tier that admitted the request.
        full: See ``core.window``, with this request.
        edge: See ``core.window``, with this request.
        frame_end_s: End of the current frame, seconds since the epoch.
        now_s: Time of the request, seconds since the epoch.
        also: Admission by the next tier that applies to the request, None if there is no other.
    """

    __slots__ = ("_nearest", "also", "edge", "frame_end_s", "full", "now_s", "tier")

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0
    decision_id = None
    is_repeat = False

    def __init__(
        self, tier: Tier, full: int, edge: int, frame_end_s: float, now_s: float, also: "Admission | None" = None
    ) -> None:
        self.tier = tier
        self.full = full
        self.edge = edge
        self.frame_end_s = frame_end_s
        self.now_s = now_s
        self.also = also
        self._nearest: Admission | None = None

    def by_tier(self) -> Iterator["Admission"]:
        """Yield the admission by each tier."""
        one: Admission | None = self
        while one is not None:
            yield one
            one = one.also

    @property
    def nearest(self) -> "Admission":
        """Admission by the tier that has least left."""
        if self.also is None:
            return self  # not stored: a reference to itself would leave it to the garbage collector
        nearest = self._nearest
        if nearest is None:
            nearest = self._nearest = min(self.by_tier(), key=attrgetter("room"))
        return nearest

    @property
    def left_s(self) -> float:
        """Seconds until the frame ends."""
        left_s, frame_s = self.frame_end_s - self.now_s, self.tier.frame_s
        return left_s if left_s < frame_s else frame_s  # more only if the clock stepped back

    @property
    def estimate(self) -> float:
        """Hits in this tier's window."""
        return estimate_hits(self.full, self.edge, self.left_s, self.tier.frame_s) if self.edge else self.full

    @property
    def room(self) -> float:
        """Limit of this tier minus the estimate."""
        return self.tier.limit - self.estimate

    @property
    def mode(self) -> Mode:
        """See ``Decision.mode``."""
        return (self if self.also is None else self.nearest).tier.mode

    @property
    def rule(self) -> Policy:
        """See ``Decision.rule``."""
        return (self if self.also is None else self.nearest).tier.policy

    @property
    def remaining(self) -> int:
        """See ``Decision.remaining``."""
        if self.also is None and not self.edge:
            return self.tier.limit - self.full
        return int(self.nearest.room)

    @property
    def reset_after_s(self) -> float:
        """See ``Decision.reset_after_s``."""
        nearest = self.nearest
        return nearest.tier.window_s + nearest.left_s

    def enforced_quota(self) -> Quota | None:
        """See ``Decision.enforced_quota``."""
        if self.also is None and not self.edge and self.tier.is_enforced:  # most requests
            tier, left_s = self.tier, self.frame_end_s - self.now_s
            return Quota(tier.policy, tier.limit - self.full, tier.window_s + min(left_s, tier.frame_s))
        nearest, least = None, math.inf
        one: Admission | None = self
        while one is not None:  # not ``by_tier`` and ``min``: this is the hot path
            if one.tier.is_enforced:
                room = one.room
                if room < least:
                    nearest, least = one, room
            one = one.also
        if nearest is None:
            return None
        return Quota(nearest.tier.policy, int(least), nearest.tier.window_s + nearest.left_s)

    def used_hits(self) -> Iterable[tuple[Policy, float]]:
        """See ``Decision.used_hits``."""
        if self.also is None:
            return ((self.tier.policy, self.estimate),)
        return [(one.tier.policy, one.estimate) for one in self.by_tier()]


def outcome_of(decision: Decision) -> Outcome:
    """Return the outcome of a request."""
    if decision.would_deny:
        return "would_deny" if decision.allowed else "denied"
    return "trusted" if decision.trusted else "allowed"


def whole_seconds(seconds: float, *, at_least: int = 0) -> int:
    """Return a delay for a header, rounded up, because a client that comes early is denied again."""
    if seconds > at_least:
        return at_least if seconds == math.inf else math.ceil(seconds)
    return at_least


def check_cost(cost: int) -> None:
    """Check the cost of a request.

    Raises:
        ValueError: The cost is not a whole number from 1 to 2^53.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or not 1 <= cost <= MAX_LIMIT:
        raise ValueError(f"cost must be a whole number from 1 to 2^53, got {cost!r}")
