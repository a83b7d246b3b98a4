"""Usage of each limit, from a stored counter document."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.tier import Tier, tiers_of
from oauth_ratelimit.counters.hits import far_ahead_s
from oauth_ratelimit.counters.rules import EVERY_CLIENT, USER_TOTAL, is_total_scope, meaning_of, user_tiers_for
from oauth_ratelimit.store.base import Snapshot

MAX_CACHED = 10_000  # clients, so that a listing of all of them stays small


class LimitUsage(NamedTuple):
    key: Key
    kind: LimitKind
    policy: Policy
    mode: Mode  # what is done with denials
    estimate: float  # hits in the window now
    retry_after_s: float  # seconds until a request is admitted, 0.0 if it is now
    reset_after_s: float  # seconds until the whole quota is back

    @property
    def remaining(self) -> int:
        return max(0, int(self.policy.limit - self.estimate))

    @property
    def used_ratio(self) -> float:
        return self.estimate / self.policy.limit


class UsageReader:
    """Usage of limits by counter documents, under policies with overrides."""

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies
        self._tiers = lru_cache(MAX_CACHED)(self._find_tiers)

    def of(self, key: Key, snapshot: Snapshot | None, now_s: float) -> list[LimitUsage]:
        """Return the usage of each limit of a key; none for a trusted client."""
        kind = (
            LimitKind.USER_TOTAL
            if key.scope == USER_TOTAL
            else LimitKind.CLIENT_TOTAL
            if is_total_scope(key.scope)
            else LimitKind.CLIENT
            if key.username is None
            else LimitKind.USER
        )
        tiers, hits = self._tiers(key.client_id, key.scope, kind), snapshot.hits if snapshot else {}
        return [_usage_of(key, kind, tier, frames=hits.get(tier.series, {}), now_s=now_s) for tier in tiers]

    def _find_tiers(self, client_id: str, scope: str | None, kind: LimitKind) -> tuple[Tier, ...]:
        if kind is LimitKind.USER_TOTAL:
            tiers = tiers_of(self._policies.limits.user_total, self._policies.mode)
            return user_tiers_for(self._policies.matching(EVERY_CLIENT), tiers)
        endpoint, grant_type, _ = meaning_of(scope)
        found = self._policies.matching(client_id, endpoint=endpoint, grant_type=grant_type)
        if found.trusted or (grant_type and found.scope is None):  # or the grant type is not counted apart any more
            return ()
        return tiers_of(getattr(found.limits, kind.value), found.mode)


def _usage_of(key: Key, kind: LimitKind, tier: Tier, *, frames: Mapping[int, int], now_s: float) -> LimitUsage:
    ahead_s = far_ahead_s(tier.frame_s, now_s)  # limiters do not use those that a wrong clock has counted
    content = tier.content({start_s: hits for start_s, hits in frames.items() if start_s <= ahead_s}, now_s)
    return LimitUsage(
        key=key,
        kind=kind,
        policy=tier.policy,
        mode=tier.mode,
        estimate=content.estimate,
        retry_after_s=tier.retry_after_s(content, cost=1),
        reset_after_s=tier.reset_after_s(content),
    )
