"""Denials that are repeated without computing them again."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from oauth_ratelimit.core.decision import Decision, FullDecision, Quota
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy


@dataclass(slots=True)
class SuppressionPeriod:
    """Time in which denials of a key are counted and not logged.

    Args:
        since_s: Time of the event that was logged, seconds since the epoch.
        until_s: Earliest time of the next event.
        first_id: Number that names a denial before which none was suppressed. Those after it are numbered on from it.
            None if denials get no name, because there was no room to keep their records.
        suppressed_count: Denials since then.
        last_at_s: Time of the last of them, 0.0 if there is none.
    """

    since_s: float
    until_s: float
    first_id: int | None
    suppressed_count: int = 0
    last_at_s: float = 0.0

    def decision_id(self, number: int) -> str | None:
        """Return the name of the denial that makes ``number`` suppressed ones."""
        return None if self.first_id is None else f"{(self.first_id + number) % 2**64:016x}"


NO_SUPPRESSION = SuppressionPeriod(0.0, 0.0, 0)


@final
class CachedDenial:
    """Denial that is repeated without computing it again, until the request would be admitted or logged.

    Args:
        first: The denial.
        since_s: Time of its request, seconds since the epoch.
        valid_until_s: Time until which it holds if nothing else happens. A little before its ``retry_after_s`` ends,
            which is rounded up.

    Attributes:
        until_s: Time until which it is repeated: not before the first denial was reported, not after the next one is
            due.
    """

    __slots__ = ("_valid_until_s", "first", "since_s", "suppression", "until_s")

    def __init__(self, first: FullDecision, since_s: float, valid_until_s: float) -> None:
        self.first = first
        self.since_s = since_s
        self._valid_until_s = valid_until_s
        self.until_s = since_s
        self.suppression = NO_SUPPRESSION

    def suppress(self, suppression: SuppressionPeriod) -> None:
        """Repeat the denial while its events are suppressed."""
        self.suppression = suppression
        self.until_s = min(self._valid_until_s, suppression.until_s)

    def repeat(self, now_s: float) -> "RepeatedDenial":
        """Return the decision about another request."""
        suppression = self.suppression
        suppression.last_at_s = now_s
        suppression.suppressed_count += 1
        return RepeatedDenial(self, now_s, suppression.suppressed_count)


@final
class RepeatedDenial(Decision):
    """Decision about a request that an earlier denial covers: the same, with the delays counted from ``now_s``.

    Args:
        cached: The earlier denial.
        now_s: Time of the request, seconds since the epoch.
        number: Position of this denial among those that were suppressed.
    """

    __slots__ = ("cached", "now_s", "number")

    would_deny = True
    trusted = False
    is_repeat = True

    def __init__(self, cached: CachedDenial, now_s: float, number: int) -> None:
        self.cached = cached
        self.now_s = now_s
        self.number = number

    @property
    def allowed(self) -> bool:
        """See ``Decision.allowed``."""
        return self.cached.first.allowed

    @property
    def mode(self) -> Mode:
        """See ``Decision.mode``."""
        return self.cached.first.mode

    @property
    def rule(self) -> Policy | None:
        """See ``Decision.rule``."""
        return self.cached.first.rule

    @property
    def remaining(self) -> int:
        """See ``Decision.remaining``."""
        return self.cached.first.remaining

    @property
    def reset_after_s(self) -> float:
        """See ``Decision.reset_after_s``."""
        return self.cached.first.reset_after_s + self.cached.since_s - self.now_s

    @property
    def retry_after_s(self) -> float:
        """See ``Decision.retry_after_s``."""
        # In this order the result is exact: added to ``now_s`` it is the moment that the first denial gave.
        return (self.cached.since_s + self.cached.first.retry_after_s) - self.now_s

    @property
    def decision_id(self) -> str | None:
        """See ``Decision.decision_id``."""
        return None if self.allowed else self.cached.suppression.decision_id(self.number)

    def enforced_quota(self) -> Quota | None:
        """See ``Decision.enforced_quota``."""
        quota = self.cached.first.enforced_quota()
        return quota and quota._replace(reset_after_s=self.reset_after_s)

    def used_hits(self) -> Iterable[tuple[Policy, float]]:
        """See ``Decision.used_hits``."""
        return self.cached.first.used_hits()
