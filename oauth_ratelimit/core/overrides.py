"""
What operators have changed at run time: limits, modes and trusted clients, on top of the configuration file.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import OwnLimits, Policy, PolicySet, Rules


class OverrideKind(enum.StrEnum):
    """
    What an override changes.
    """

    LIMIT = "limit"
    MODE = "mode"
    TRUSTED = "trusted"


class LimitKind(enum.StrEnum):
    """
    What a limit counts: the kinds of ``core.policy.Limits``.
    """

    CLIENT = "client"
    USER = "user"
    CLIENT_TOTAL = "client_total"


@dataclass(frozen=True, slots=True)
class Target:
    """
    What an override is about. There is one override per target at most.

    Args:
        kind: What it changes.

        client_id: Whose; None for everybody. Of a trusted client an id or a pattern.

        limit_kind: Which limits; of limits only.
    """

    kind: OverrideKind
    client_id: str | None = None
    limit_kind: LimitKind | None = None

    def __post_init__(self) -> None:
        if (self.kind is OverrideKind.LIMIT) != (self.limit_kind is not None):
            raise ValueError("a limit override, and no other, names the kind of limit")
        if self.kind is OverrideKind.TRUSTED and self.client_id is None:
            raise ValueError("trusting everybody is mode off")


@dataclass(frozen=True, slots=True)
class Override:
    """
    One change, and who is to be asked about it.

    Args:
        target: What it is about.

        author: Who made it.

        reason: Why.

        made_at_s: When, seconds since the epoch.

        until_s: When it ends by itself; None if it stays until it is taken back.

        policies: Instead of the limits of that kind, none is no limit; of limits only.

        mode: Instead of the mode; of modes only.
    """

    target: Target
    author: str
    reason: str
    made_at_s: float
    until_s: float | None = None
    policies: tuple[Policy, ...] = ()
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if (self.target.kind is OverrideKind.MODE) != (self.mode is not None):
            raise ValueError("a mode override, and no other, names a mode")
        if self.policies and self.target.kind is not OverrideKind.LIMIT:
            raise ValueError("only a limit override has limits")


@dataclass(frozen=True, slots=True)
class Counters:
    """
    Counters that were set to zero.

    Args:
        client_id: Of this client.

        username: Of this user of it; None for all of the client.
    """

    client_id: str
    username: str | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """
    One thing that was done.

    Args:
        target: What it was done to.

        author: Who did it.

        reason: Why.

        at_s: When, seconds since the epoch.

        override: What was put in force; None if an override was taken back, or counters were reset.
    """

    target: Target | Counters
    author: str
    reason: str
    at_s: float
    override: Override | None

    @property
    def action(self) -> str:
        """
        What was done: ``set``, ``unset`` or ``reset``.
        """
        if isinstance(self.target, Counters):
            return "reset"
        return "set" if self.override else "unset"


def in_force(overrides: Iterable[Override], now_s: float) -> tuple[Override, ...]:
    """
    Return the overrides that have not ended.
    """
    return tuple(override for override in overrides if override.until_s is None or now_s < override.until_s)


def overridden(policies: PolicySet, overrides: Iterable[Override]) -> PolicySet:
    """
    Return a policy set as the overrides make it. They must be in force.
    """
    for override in overrides:
        target = override.target
        if target.kind is OverrideKind.TRUSTED:
            trusted = dict.fromkeys((*policies.trusted, *filter(None, [target.client_id])))
            policies = replace(policies, trusted=tuple(trusted))
        elif target.client_id is None:
            policies = _for_everybody(policies, override)
        else:
            rules = _for_client(policies.clients.get(target.client_id, Rules()), override)
            policies = replace(policies, clients={**policies.clients, target.client_id: rules})
    return policies


def _for_everybody(policies: PolicySet, override: Override) -> PolicySet:
    if override.target.limit_kind is not None:
        limits = replace(policies.limits, **{override.target.limit_kind.value: override.policies})
        return replace(policies, limits=limits)
    mode = override.mode or policies.mode
    return replace(policies, mode=mode, ceiling=_ceiling(mode))


def _for_client(rules: Rules, override: Override) -> Rules:
    if override.target.limit_kind is not None:
        own = replace(rules.limits or OwnLimits(), **{override.target.limit_kind.value: override.policies})
        return replace(rules, limits=own)
    if override.mode is Mode.OFF:
        # Off means off at every place, also where the file gives a mode to one of them.
        grants, endpoints = (
            {name: replace(place, mode=None) for name, place in places.items()}
            for places in (rules.grants, rules.endpoints)
        )
        return replace(rules, mode=Mode.OFF, grants=grants, endpoints=endpoints)
    return replace(rules, mode=override.mode, ceiling=_ceiling(override.mode))


def _ceiling(mode: Mode | None) -> Mode | None:
    """
    Return the bound that a mode sets: who asks for a dry run wants nobody denied, whatever stands in the file.
    """
    return mode if mode is Mode.DRY_RUN else None
