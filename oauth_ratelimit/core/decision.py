"""
What a request is told.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy

Outcome = Literal["allowed", "denied", "would_deny", "trusted"]
"""What became of a request, in metrics, traces and statistics; ``would_deny`` is over a limit in a dry run."""


class Decision:
    """
    What is decided about one request. Of several policies it describes the one that denies, else the one with least
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
        """
        The policy's name, None if no policy applies.
        """
        return self.rule.name if self.rule else None

    @property
    def limit(self) -> int | None:
        """
        Hits per window, None if no policy applies.
        """
        return self.rule.limit if self.rule else None

    @property
    def window_s(self) -> int | None:
        """
        The window's length in seconds, None if no policy applies.
        """
        return self.rule.window.window_s if self.rule else None

    def quota(self) -> tuple[Policy | None, int, float]:
        """
        Return what a client is told of: ``rule``, ``remaining``, and the seconds until more is to be had, which are
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
    """
    A decision whose figures are all known. Not frozen only because that would double the price of a denial.
    """

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
    """
    Return what became of a request.
    """
    if decision.would_deny:
        return "would_deny" if decision.allowed else "denied"
    return "trusted" if decision.trusted else "allowed"


def whole_seconds(seconds: float, *, at_least: int = 0) -> int:
    """
    Return a delay for a header: rounded up, because a client that comes early is denied again.
    """
    return at_least if math.isinf(seconds) else max(at_least, math.ceil(seconds))
