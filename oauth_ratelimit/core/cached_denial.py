"""Denials that are repeated without computing them again."""

from dataclasses import dataclass, replace

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.tier import Content


@dataclass(slots=True, eq=False)
class SuppressionPeriod:
    """Time in which denials of a key are counted and not logged."""

    since_s: float  # time of the event that was logged, seconds since the epoch
    until_s: float  # earliest time of the next event
    decision_id: str | None = None  # id of all its denials, None if there was no room to keep their record
    unlogged_before: int = 0  # denials before it that no event has counted yet
    suppressed_count: int = 0  # denials since then
    last_at_s: float = 0.0  # time of the last of them, 0.0 if there is none


@dataclass(slots=True, eq=False)
class CachedDenial:
    """Denial that is repeated without computing it again, until the request would be admitted or logged."""

    first: Decision
    until_s: float  # time until which it holds if nothing else happens, seconds since the epoch
    # The period in which its repeats are counted and not logged; None until it is reported
    suppression: SuppressionPeriod | None = None

    def repeat(self, now_s: float, counted: tuple[Content, ...], can_reuse: bool) -> Decision | None:
        """Return the decision about another request, None if this denial does not hold for it.

        It holds as long as the windows have the same content, ``counted``, for requests that may reuse a token alike.
        """
        first, period, denial = self.first, self.suppression, self.first.denial
        if denial is None or counted != first.counted or not first.now_s <= now_s < self.until_s:
            return None
        if can_reuse is not first.can_reuse:
            return None
        if can_reuse and denial.reuses:  # no repeat: each may get a token again, or is logged by itself
            own = replace(denial, decision_id=None)
            return Decision(first.client_mode, now_s, first.tiers, first.counted, own, can_reuse=True)
        if period is None or now_s >= period.until_s:
            return None
        period.last_at_s = now_s
        period.suppressed_count += 1
        return Decision(first.client_mode, now_s, first.tiers, first.counted, first.denial, True)
