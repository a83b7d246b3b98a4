"""What a request is told."""

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, final

from oauth_ratelimit.core.policy import MAX_LIMIT, Mode, Policy, Tier
from oauth_ratelimit.core.window import estimate_hits

Outcome = Literal["allowed", "denied", "would_deny", "trusted"]
"""What became of a request, in metrics, traces and statistics; ``would_deny`` is over a limit in a dry run."""


class Decision:
    """What is decided about one request. Of several policies it describes the one that denies, else the one with least
    left.

    Attributes:
        allowed: Whether the request may go on.
        would_deny: Whether it is over a limit: not ``allowed`` under enforce, ``allowed`` all the same in a dry run.
        mode: What was done with the decision.
        trusted: Whether the client is on the allowlist, so that nothing was decided or counted.
        rule: The policy described here, None if none applies.
        remaining: Hits left now in this policy's window, this request taken off if it was counted. Of a denial: in
            the fullest of the windows that deny.
        reset_after_s: Seconds until the whole quota is back, if nothing else happens.
        retry_after_s: Seconds until the request would be admitted, if nothing else happens; 0.0 if it is. Infinity
            if its cost is above the limit.
        decision_id: Names a denial in the answer and in the log; None of any other decision.
    """

    __slots__ = ()

    allowed: bool
    would_deny: bool
    mode: Mode
    trusted: bool
    rule: Policy | None
    remaining: int
    reset_after_s: float
    retry_after_s: float
    decision_id: str | None

    @property
    def policy(self) -> str | None:
        """The policy's name, None if no policy applies."""
        return self.rule.name if self.rule else None

    @property
    def limit(self) -> int | None:
        """Hits per window, None if no policy applies."""
        return self.rule.limit if self.rule else None

    @property
    def window_s(self) -> int | None:
        """The window's length in seconds, None if no policy applies."""
        return self.rule.window.window_s if self.rule else None

    def quota(self) -> tuple[Policy | None, int, float]:
        """Return what a client is told of: ``rule``, ``remaining``, and the seconds until more is to be had, which are
        ``reset_after_s``, or ``retry_after_s`` of a denial.
        """
        return self.rule, self.remaining, self.reset_after_s if self.allowed else self.retry_after_s

    def __repr__(self) -> str:
        return (
            f"<Decision allowed={self.allowed} would_deny={self.would_deny} mode={self.mode.value}"
            f" policy={self.policy!r} remaining={self.remaining} retry_after_s={self.retry_after_s}>"
        )


@dataclass(slots=True, repr=False)
class FullDecision(Decision):
    """A decision whose figures are all known. Not frozen only because that would double the price of a denial."""

    allowed: bool
    would_deny: bool
    mode: Mode
    trusted: bool = False
    rule: Policy | None = None
    remaining: int = 0
    reset_after_s: float = 0.0
    retry_after_s: float = 0.0
    decision_id: str | None = field(default=None, compare=False)


def outcome_of(decision: Decision) -> Outcome:
    """Return what became of a request."""
    if decision.would_deny:
        return "would_deny" if decision.allowed else "denied"
    return "trusted" if decision.trusted else "allowed"


def whole_seconds(seconds: float, *, at_least: int = 0) -> int:
    """Return a delay for a header: rounded up, because a client that comes early is denied again."""
    return at_least if math.isinf(seconds) else max(at_least, math.ceil(seconds))


def check_cost(cost: int) -> None:
    """Refuse what no limit could ever be compared with.

    Raises:
        ValueError: The cost is not a whole number from 1 to 2^53.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or not 1 <= cost <= MAX_LIMIT:
        raise ValueError(f"cost must be a whole number from 1 to 2^53, got {cost!r}")


Term = tuple[Tier, int, int, float, float]
"""
A tier that admitted a request: the tier, full and edge (see ``core.window``) with this request, the end of the frame,
and the time of the request in seconds since the epoch.
"""


class Admission(Decision, Term):
    """The decision about a request that one tier admitted. Its figures are worked out when they are asked for."""

    __slots__ = ()

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0
    decision_id = None

    @property
    def room(self) -> float:
        """What the estimate leaves of the limit."""
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
        """See ``Decision.quota``. Worked out together, because every admitted request needs them."""
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
    """The decision about a request that several tiers admitted: it describes the one that has least left."""

    __slots__ = ()

    allowed = True
    would_deny = False
    trusted = False
    retry_after_s = 0.0
    decision_id = None

    @property
    def nearest(self) -> Admission:
        """The admission by the tier that has least left."""
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
        """See ``Decision.quota``."""
        return self.nearest.quota()


@dataclass(slots=True)
class SuppressionPeriod:
    """Nothing more is said about the denials of a key, because it was said a moment ago.

    Args:
        since_s: When it was, seconds since the epoch.
        until_s: When the next event may come.
        first_id: The number that names a denial with none left out before. Those after it have the numbers after it.
            None if denials get no name, because there was no room to keep what it would tell.
        suppressed_count: How many were left out.
    """

    since_s: float
    until_s: float
    first_id: int | None
    suppressed_count: int = 0

    def decision_id(self, number: int) -> str | None:
        """Return the name of a denial, by how many were left out before and with it."""
        return None if self.first_id is None else f"{(self.first_id + number) % 2**64:016x}"


class CachedDenial:
    """What requests are told until they would be admitted, if nothing else happens.

    Args:
        first: What the first of them was told.
        since_s: When that was, seconds since the epoch.
        good_until_s: How long it surely holds: a little shorter than what the first request was told, which is rounded
            up.

    Attributes:
        until_s: How long it is in force: not before the first denial was reported, and not after the next is to be.
    """

    __slots__ = ("_good_until_s", "first", "since_s", "suppression", "until_s")

    def __init__(self, first: FullDecision, since_s: float, good_until_s: float) -> None:
        self.first = first
        self.since_s = since_s
        self._good_until_s = good_until_s
        self.until_s = since_s
        self.suppression = NO_SUPPRESSION

    def enforce(self, suppression: SuppressionPeriod) -> None:
        """Let requests be refused without a word until the next event may come."""
        self.suppression = suppression
        self.until_s = min(self._good_until_s, suppression.until_s)


NO_SUPPRESSION = SuppressionPeriod(0.0, 0.0, 0)


class RepeatedDenial(Decision, tuple[CachedDenial, float, int]):
    """The decision about a request under a refusal: the first one's, with the delays counted from now.

    A tuple, as ``Admission`` is: the refusal, when the request came, and its number among those not reported.
    """

    __slots__ = ()

    would_deny = True
    trusted = False
    remaining = 0

    @property
    def allowed(self) -> bool:  # type: ignore[override]  # to be read only, here and in every decision
        return self[0].first.allowed

    @property
    def mode(self) -> Mode:  # type: ignore[override]
        return self[0].first.mode

    @property
    def rule(self) -> Policy | None:  # type: ignore[override]
        return self[0].first.rule

    @property
    def reset_after_s(self) -> float:  # type: ignore[override]
        cached_denial, now_s, _ = self
        return cached_denial.first.reset_after_s + cached_denial.since_s - now_s

    @property
    def retry_after_s(self) -> float:  # type: ignore[override]
        cached_denial, now_s, _ = self
        # In this order the result is exact: added to ``now_s`` it is the moment that the first request was told.
        return (cached_denial.since_s + cached_denial.first.retry_after_s) - now_s

    @property
    def decision_id(self) -> str | None:  # type: ignore[override]
        cached_denial, _, number = self
        return None if cached_denial.first.allowed else cached_denial.suppression.decision_id(number)
