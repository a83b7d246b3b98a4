"""Where a key stands according to its document: what an instance that has just read it would decide by."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies, LimitKind, Policy, PolicySet
from oauth_ratelimit.core.tier import Tier, tiers_of
from oauth_ratelimit.core.window import estimate_hits, reset_after_s, retry_after_s
from oauth_ratelimit.counters.client_state import CLIENT_TOTAL
from oauth_ratelimit.store.base import Snapshot

MAX_REMEMBERED = 10_000  # places; a listing of all clients must not hold them all


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """How much of one limit a key has used.

    Args:
        key: The client and user.
        kind: What the limit counts.
        policy: The limit.
        mode: What is done with denials.
        estimate: Hits in the window now.
        retry_after_s: Seconds until a request is admitted, 0.0 if it is now.
        reset_after_s: Seconds until nothing counts any more.
    """

    key: Key
    kind: LimitKind
    policy: Policy
    mode: Mode
    estimate: float
    retry_after_s: float
    reset_after_s: float

    @property
    def remaining(self) -> int:
        """Hits left now."""
        return max(0, int(self.policy.limit - self.estimate))

    @property
    def used_ratio(self) -> float:
        """Share of the limit that is used up."""
        return self.estimate / self.policy.limit


class Scope(NamedTuple):
    """What the scope of a key means.

    Attributes:
        endpoint: Where it was counted.
        grant_type: The grant type with limits of its own, None for the plain token counter and for endpoints.
        is_total: Whether it counts all users of the client together.
    """

    endpoint: str
    grant_type: str | None
    is_total: bool


def scope_of(scope: str | None) -> Scope:
    """Return what the scope of a key means."""
    name = scope or ""
    is_total = name == CLIENT_TOTAL or name.endswith(f"/{CLIENT_TOTAL}")
    name = name.removesuffix(CLIENT_TOTAL).removesuffix("/") if is_total else name
    if name.startswith("grant:"):
        return Scope(TOKEN_ENDPOINT, name.removeprefix("grant:"), is_total)
    return Scope(name or TOKEN_ENDPOINT, None, is_total)


class UsageReader:
    """Tells where keys stand under a policy set.

    Args:
        policies: The limits and modes, overrides included.
    """

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies
        self._known: dict[tuple[str, str | None, LimitKind], tuple[Tier, ...]] = {}

    def of(self, key: Key, snapshot: Snapshot | None, now_s: float) -> list[LimitUsage]:
        """Return where a key stands in each of its limits; none if it has none, or is trusted.

        Args:
            key: The client and user.
            snapshot: Its document, None if there is none.
            now_s: The time, seconds since the epoch.
        """
        kind = LimitKind.CLIENT if key.username is None else LimitKind.USER
        if scope_of(key.scope).is_total:
            kind = LimitKind.CLIENT_TOTAL
        usages = []
        for tier in self._tiers(key, kind):
            frames = snapshot.hits.get(tier.series, {}) if snapshot else {}
            usages.append(_standing(key, kind, tier, frames=frames, now_s=now_s))
        return usages

    def of_all(self, documents: Iterable[tuple[Key, Snapshot]], now_s: float) -> Iterator[LimitUsage]:
        """Yield where every key stands in each of its limits."""
        for key, snapshot in documents:
            yield from self.of(key, snapshot, now_s)

    def _tiers(self, key: Key, kind: LimitKind) -> tuple[Tier, ...]:
        client = (key.client_id, key.scope, kind)
        tiers = self._known.get(client)
        if tiers is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            found = self._matching(key)
            limits = () if found.trusted else getattr(found.limits, kind.value)
            tiers = self._known[client] = tiers_of(limits, found.mode)
        return tiers

    def _matching(self, key: Key) -> ClientPolicies:
        endpoint, grant_type, _ = scope_of(key.scope)
        return self._policies.matching(key.client_id, endpoint=endpoint, grant_type=grant_type)


def _standing(key: Key, kind: LimitKind, tier: Tier, *, frames: Mapping[int, int], now_s: float) -> LimitUsage:
    policy, window = tier.policy, tier.policy.window
    start_s = window.frame_start_s(now_s)
    left_s = start_s + window.frame_s - now_s
    current = sum(hits for frame_s, hits in frames.items() if frame_s >= start_s)  # later ones: a clock is ahead
    past = [frames.get(start_s - age * window.frame_s, 0) for age in range(1, window.frame_count + 1)]
    full, edge = policy.estimator.weigh(current, past, window.frame_count)
    return LimitUsage(
        key=key,
        kind=kind,
        policy=policy,
        mode=tier.mode,
        estimate=estimate_hits(full, edge, left_s, window.frame_s),
        retry_after_s=retry_after_s(current, past, window, policy.estimator, room=policy.limit - 1, left_s=left_s),
        reset_after_s=reset_after_s(current, past, window, left_s=left_s),
    )
