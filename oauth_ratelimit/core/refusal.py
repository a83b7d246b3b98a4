"""
Denials that hold for a while, so that a flood is told what it was told before.
"""

from dataclasses import dataclass

from oauth_ratelimit.core.decision import Decision, Finding
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    What requests are told until they would be admitted, if nothing else happens.

    Args:
        first: What the first of them was told.

        since_s: When that was, seconds since the epoch.

        until_s: How long it surely holds: a little shorter than what the first request was told, which is rounded up.
    """

    first: Finding
    since_s: float
    until_s: float


class RepeatedDenial(Decision):
    """
    The decision about a request under a refusal: the first one's, with the delays counted from now.

    Args:
        refusal: What it falls under.

        now_s: When it came.
    """

    __slots__ = ("_now_s", "_refusal", "decision_id")

    would_deny = True
    trusted = False
    remaining = 0

    def __init__(self, refusal: Refusal, now_s: float) -> None:
        self._refusal = refusal
        self._now_s = now_s
        self.decision_id: str | None = None

    @property
    def allowed(self) -> bool:  # type: ignore[override]  # to be read only, here and in every decision
        return self._refusal.first.allowed

    @property
    def mode(self) -> Mode:  # type: ignore[override]
        return self._refusal.first.mode

    @property
    def rule(self) -> Policy | None:  # type: ignore[override]
        return self._refusal.first.rule

    @property
    def reset_after_s(self) -> float:  # type: ignore[override]
        return self._refusal.first.reset_after_s + self._refusal.since_s - self._now_s

    @property
    def retry_after_s(self) -> float:  # type: ignore[override]
        # Rounded, so that a whole second stays one after the time of day was added and taken off.
        return round(self._refusal.first.retry_after_s + self._refusal.since_s - self._now_s, 6)
