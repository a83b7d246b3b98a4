"""Tiers of one client in one scope, by what they count."""

from dataclasses import dataclass, field

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import ClientPolicies, Limits
from oauth_ratelimit.core.tier import Series, Tier, tiers_of
from oauth_ratelimit.counters.key import KeyState
from oauth_ratelimit.store.base import MAX_HORIZON_S


@dataclass(slots=True, eq=False)
class ClientRules:
    """Tiers of a client in one scope."""

    mode: Mode  # of the client
    is_canary: bool  # True if the canary enforces limits for the client
    exempt: Decision | None  # the answer to every request, if nothing is decided
    user: tuple[Tier, ...]  # per user
    client: tuple[Tier, ...]  # for grants without a user
    total: tuple[Tier, ...]  # for all users together
    # The tiers that a request with or without a user must pass.
    for_user: tuple[Tier, ...] = field(init=False)
    for_client: tuple[Tier, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.for_user = self.user + self.total
        self.for_client = self.client + self.total

    @classmethod
    def of(cls, policies: ClientPolicies) -> "ClientRules":
        mode, limits, exempt = policies.mode, policies.limits, None
        if policies.trusted or mode is Mode.OFF or limits == Limits():
            exempt = Decision(mode, trusted=policies.trusted)
        user, client = tiers_of(limits.user, mode), tiers_of(limits.client, mode)
        total = tiers_of(limits.client_total, mode, is_total=True)
        return cls(mode, policies.is_canary, exempt, user, client, total)

    @property
    def horizons(self) -> dict[Series, int]:
        """Seconds for which a frame of each series can matter."""
        tiers = sorted((*self.user, *self.client, *self.total), key=lambda tier: tier.horizon_s)
        return {tier.series: min(tier.horizon_s, MAX_HORIZON_S) for tier in tiers}

    def own_tiers(self, username: str | None) -> tuple[Tier, ...]:
        """Return the tiers of a key, without those of all users together."""
        return self.client if username is None else self.user

    def tiers_of(self, key: KeyState | None) -> tuple[Tier, ...]:
        """Return the tiers that a request of a key must pass; None is a key without limits of its own."""
        if key is None:
            return self.total
        return self.for_client if key.username is None else self.for_user
