"""
Denials that hold for a while, so that a flood is told what it was told before.
"""

from dataclasses import dataclass

from oauth_ratelimit.core.decision import Decision, FullDecision
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import Policy


@dataclass(slots=True)
class Silence:
    """
    Nothing more is said about the denials of a key, because it was said a moment ago.

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
        """
        Return the name of a denial, by how many were left out before and with it.
        """
        return None if self.first_id is None else f"{(self.first_id + number) % 2**64:016x}"


class Refusal:
    """
    What requests are told until they would be admitted, if nothing else happens.

    Args:
        first: What the first of them was told.

        since_s: When that was, seconds since the epoch.

        good_until_s: How long it surely holds: a little shorter than what the first request was told, which is rounded
            up.

    Attributes:
        until_s: How long it is in force: not before the first denial was reported, and not after the next is to be.
    """

    __slots__ = ("_good_until_s", "first", "silence", "since_s", "until_s")

    def __init__(self, first: FullDecision, since_s: float, good_until_s: float) -> None:
        self.first = first
        self.since_s = since_s
        self._good_until_s = good_until_s
        self.until_s = since_s
        self.silence = NO_SILENCE

    def enforce(self, silence: Silence) -> None:
        """
        Let requests be refused without a word until the next event may come.
        """
        self.silence = silence
        self.until_s = min(self._good_until_s, silence.until_s)


NO_SILENCE = Silence(0.0, 0.0, 0)


class RepeatedDenial(Decision, tuple[Refusal, float, int]):
    """
    The decision about a request under a refusal: the first one's, with the delays counted from now.

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
        refusal, now_s, _ = self
        return refusal.first.reset_after_s + refusal.since_s - now_s

    @property
    def retry_after_s(self) -> float:  # type: ignore[override]
        refusal, now_s, _ = self
        # In this order the result is exact: added to ``now_s`` it is the moment that the first request was told.
        return (refusal.since_s + refusal.first.retry_after_s) - now_s

    @property
    def decision_id(self) -> str | None:  # type: ignore[override]
        refusal, _, number = self
        return None if refusal.first.allowed else refusal.silence.decision_id(number)
