"""Overrides: limits, modes and trusted clients that operators set at run time. Origins: where a value comes from."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, LimitKind, OwnLimits, Policy, PolicySet, Rules

MAX_PERCENT = 100
DEFAULTS = "limits"  # name of an origin
OVERRIDE = "override"  # and of another one


class OverrideKind(enum.StrEnum):
    """Kind of value that an override replaces."""

    LIMIT = "limit"
    MODE = "mode"
    TRUSTED = "trusted"


@dataclass(frozen=True, slots=True)
class Target:
    """Value that an override replaces. Each has at most one override."""

    kind: OverrideKind
    client_id: str | None = None  # Client that it applies to, None for all. Never a pattern.
    limit_kind: LimitKind | None = None  # kind of limits, for limits only

    def __post_init__(self) -> None:
        if (self.kind is OverrideKind.LIMIT) != (self.limit_kind is not None):
            raise ValueError("a limit override, and no other, names the kind of limit")
        if self.limit_kind is LimitKind.USER_TOTAL and self.client_id is not None:
            raise ValueError(
                "user_total counts a user's requests through all clients, so it is one limit for everybody"
            )
        if self.kind is OverrideKind.TRUSTED and self.client_id is None:
            raise ValueError("trusting everybody is mode off")


@dataclass(frozen=True, slots=True)
class Override:
    """One change, with its author and reason."""

    target: Target
    author: str
    reason: str
    made_at_s: float
    until_s: float | None = None  # time at which it ends, None if it stays until it is removed
    policies: tuple[Policy, ...] = ()  # New limits, for limits only. Empty means no limit of that kind.
    mode: Mode | None = None  # new mode, for modes only
    # Share of the clients that are enforced, in place of the file's canary; 100 for all of them. None keeps the file's.
    # For enforce for everybody only.
    canary_percent: float | None = None

    def __post_init__(self) -> None:
        if self.canary_percent is not None:
            if self.mode is not Mode.ENFORCE or self.target.client_id is not None:
                raise ValueError("only enforce for everybody has a canary")
            if not 0 < self.canary_percent <= MAX_PERCENT:
                raise ValueError("the share of a canary is more than 0, and at most 100 %")
        if (self.target.kind is OverrideKind.MODE) != (self.mode is not None):
            raise ValueError("a mode override, and no other, names a mode")
        if self.policies and self.target.kind is not OverrideKind.LIMIT:
            raise ValueError("only a limit override has limits")


class Counters(NamedTuple):
    """Counters that were set to zero: those of a user, or all of a client."""

    client_id: str
    username: str | None = None


class HistoryEntry(NamedTuple):
    target: Target | Counters
    author: str
    reason: str
    at_s: float
    override: Override | None  # override that was set, None if one was removed or counters were reset

    @property
    def action(self) -> str:
        """Type of the change: ``set``, ``unset`` or ``reset``."""
        if isinstance(self.target, Counters):
            return "reset"
        return "set" if self.override else "unset"


def active(overrides: Iterable[Override], now_s: float) -> tuple[Override, ...]:
    """Return the overrides that have not ended."""
    return tuple(override for override in overrides if override.until_s is None or now_s < override.until_s)


def apply_overrides(policies: PolicySet, overrides: Iterable[Override]) -> PolicySet:
    """Return a policy set with overrides applied. They must be active.

    ``mode: off`` of the policy set stays: it is the switch that works without MongoDB.
    """
    for override in overrides:
        target = override.target
        if target.kind is OverrideKind.TRUSTED:
            trusted_ids = dict.fromkeys((*policies.trusted_ids, *filter(None, [target.client_id])))
            policies = policies._replace(trusted_ids=tuple(trusted_ids))
        elif target.client_id is None:
            policies = _for_all(policies, override)
        else:
            rules = _for_client(policies.clients.get(target.client_id, Rules()), override)
            policies = policies._replace(clients={**policies.clients, target.client_id: rules})
    return policies


def _for_all(policies: PolicySet, override: Override) -> PolicySet:
    if override.target.limit_kind is not None:
        limits = policies.limits._replace(**{override.target.limit_kind.value: override.policies})
        return policies._replace(limits=limits)
    if policies.mode is Mode.OFF:
        return policies
    mode = override.mode or policies.mode
    canary = policies.canary
    if override.canary_percent is not None:
        salt = canary.salt if canary else ""  # so that raising the file's share only adds clients
        canary = None if override.canary_percent == MAX_PERCENT else Canary(override.canary_percent, salt)
    return policies._replace(mode=mode, ceiling=_ceiling(mode), canary=canary)


def _for_client(rules: Rules, override: Override) -> Rules:
    if override.target.limit_kind is not None:
        own = (rules.limits or OwnLimits())._replace(**{override.target.limit_kind.value: override.policies})
        return rules._replace(limits=own)
    if override.mode is Mode.OFF:
        # Off holds for every grant type and endpoint, also for one whose mode the file names.
        grants, endpoints = (
            {name: section._replace(mode=None) for name, section in sections.items()}
            for sections in (rules.grants, rules.endpoints)
        )
        return rules._replace(mode=Mode.OFF, grants=grants, endpoints=endpoints)
    return rules._replace(mode=override.mode, ceiling=_ceiling(override.mode))


def _ceiling(mode: Mode | None) -> Mode | None:
    """Return the ceiling that a mode sets. An operator's dry run denies nothing, whatever modes the file names."""
    return mode if mode is Mode.DRY_RUN else None


class Origin(NamedTuple):
    name: str  # path in the configuration, such as ``clients.partner-app``, ``plans.gold`` or ``limits``
    override: Override | None = None  # override that the value comes from, None if the configuration file has it


class Origins(NamedTuple):
    """Finds the origins of a client's limits, mode and trust, in the file's policies and the active overrides."""

    policies: PolicySet
    overrides: Sequence[Override] = ()

    def of_limits(
        self, client_id: str, kind: LimitKind, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Origin:
        """Return the origin of the limits of one kind."""
        client, plan = self.policies.rules_of(client_id)
        sections = self.policies.rules_at(client_id, endpoint, grant_type)
        names = self._section_names(client_id, client, endpoint, grant_type)
        here = [name for name, rules in zip(names, sections, strict=True) if rules.names_limits(kind)]
        if here:
            return Origin(here[-1])
        if endpoint != TOKEN_ENDPOINT:
            return Origin(DEFAULTS)
        own = None if kind is LimitKind.USER_TOTAL else self._find(OverrideKind.LIMIT, client_id, kind)
        if own:
            return Origin(OVERRIDE, own)
        for name, rules in ((f"clients.{client_id}", client), (f"plans.{client.plan}", plan)):
            if rules.names_limits(kind):
                return Origin(name)
        for_all = self._find(OverrideKind.LIMIT, None, kind)
        return Origin(OVERRIDE, for_all) if for_all else Origin(DEFAULTS)

    def of_mode(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> Origin:
        """Return the origin of the client's mode, without regard to a canary."""
        client, plan = self.policies.rules_of(client_id)
        here, plan_here, client_here = self.policies.rules_at(client_id, endpoint, grant_type)
        at, plan_at, client_at = self._section_names(client_id, client, endpoint, grant_type)
        for_all = None if self.policies.mode is Mode.OFF else self._find(OverrideKind.MODE, None)
        own = self._find(OverrideKind.MODE, client_id)
        top = (Origin(OVERRIDE, for_all), for_all.mode) if for_all else (Origin("mode"), self.policies.mode)
        section, of_client = (Origin(at), here.mode), (Origin(f"clients.{client_id}"), client.mode)
        if own:
            of_client = (Origin(OVERRIDE, own), own.mode)
        modes = [
            *(each for each in (top, section, *([of_client] if own else [])) if each[1] is Mode.OFF),
            (Origin(client_at), client_here.mode),
            of_client,
            (Origin(plan_at), plan_here.mode),
            (Origin(f"plans.{client.plan}"), plan.mode),
            section,
            top,
        ]  # the one that wins first
        origin, mode = next(each for each in modes if each[1] is not None)
        dry_run = next((each for each in (for_all, own) if each and each.mode is Mode.DRY_RUN), None)
        return Origin(OVERRIDE, dry_run) if dry_run and mode is Mode.ENFORCE else origin

    def of_trust(self, client_id: str) -> Origin | None:
        """Return the origin of a client's trust, None if it is not trusted."""
        for override in self.overrides:
            target = override.target
            if target.kind is OverrideKind.TRUSTED and target.client_id == client_id:
                return Origin(OVERRIDE, override)
        for pattern in self.policies.trusted:
            if matches_any([pattern], client_id):
                return Origin(f"trusted_clients[{pattern}]")
        return None

    def _find(self, kind: OverrideKind, client_id: str | None, limit_kind: LimitKind | None = None) -> Override | None:
        target = Target(kind, client_id, limit_kind)
        return next((override for override in self.overrides if override.target == target), None)

    @staticmethod
    def _section_names(client_id: str, client: Rules, endpoint: str, grant_type: str | None) -> tuple[str, str, str]:
        """Return the paths of the sections that ``PolicySet.rules_at`` returns."""
        section = f"grants.{grant_type}" if endpoint == TOKEN_ENDPOINT else f"endpoints.{endpoint}"
        return section, f"plans.{client.plan}.{section}", f"clients.{client_id}.{section}"
