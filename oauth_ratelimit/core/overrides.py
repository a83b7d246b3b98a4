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

    @property
    def lasts_ms(self) -> int | None:
        """Length, whichever clock it begins by; None without an end."""
        return None if self.until_s is None else round((self.until_s - self.made_at_s) * 1000)


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
    """Origins of a client's limits, mode and trust: the file's policies and the active overrides."""

    policies: PolicySet
    overrides: Sequence[Override] = ()

    def of_limits(
        self, client_id: str, kind: LimitKind, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Origin:
        sections = [*self._applied.sections(client_id, endpoint, grant_type).items()]
        inherited = sections if endpoint == TOKEN_ENDPOINT else sections[:3]
        path = next((path for path, rules in inherited if rules.names_limits(kind)), DEFAULTS)
        return Origin(path) if endpoint != TOKEN_ENDPOINT else self._at(path, client_id, OverrideKind.LIMIT, kind)

    def of_mode(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> Origin:
        """Return the origin of the client's mode, without regard to a canary."""
        sections = self._applied.sections(client_id, endpoint, grant_type).items()
        of_client, of_plan, here, client, plan = ((path, rules.mode) for path, rules in sections)
        modes = [of_client, client, of_plan, plan, here, ("mode", self._applied.mode)]
        is_off = (each for each in (modes[-1], modes[-2]) if each[1] is Mode.OFF)  # it wins
        path, mode = next(each for each in (*is_off, *modes) if each[1] is not None)
        everybody, own = (self._find(OverrideKind.MODE, each) for each in (None, client_id))
        dry_run = next((each for each in (everybody, own) if each and each.mode is Mode.DRY_RUN), None)
        if dry_run and mode is Mode.ENFORCE:
            return Origin(OVERRIDE, dry_run)
        if path == "mode" and self.policies.mode is Mode.OFF:
            return Origin(path)
        return self._at(path, client_id, OverrideKind.MODE)

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

    def _at(self, path: str, client_id: str, kind: OverrideKind, limit_kind: LimitKind | None = None) -> Origin:
        """Return the origin at a path, which may be an override."""
        concerned = {f"clients.{client_id}": client_id, "mode": None, DEFAULTS: None}
        override = self._find(kind, concerned[path], limit_kind) if path in concerned else None
        return Origin(OVERRIDE, override) if override else Origin(path)

    def _find(self, kind: OverrideKind, client_id: str | None, limit_kind: LimitKind | None = None) -> Override | None:
        target = Target(kind, client_id, limit_kind)
        return next((override for override in self.overrides if override.target == target), None)

    @property
    def _applied(self) -> PolicySet:
        return apply_overrides(self.policies, self.overrides)
