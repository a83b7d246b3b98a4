"""What operators have changed at run time: limits, modes and trusted clients, on top of the configuration file."""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, OwnLimits, Policy, PolicySet, Rules


class OverrideKind(enum.StrEnum):
    """What an override changes."""

    LIMIT = "limit"
    MODE = "mode"
    TRUSTED = "trusted"


class LimitKind(enum.StrEnum):
    """What a limit counts: the kinds of ``core.policy.Limits``."""

    CLIENT = "client"
    USER = "user"
    CLIENT_TOTAL = "client_total"


@dataclass(frozen=True, slots=True)
class Target:
    """What an override is about. There is one override per target at most.

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
    """One change, and who is to be asked about it.

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
    """Counters that were set to zero.

    Args:
        client_id: Of this client.
        username: Of this user of it; None for all of the client.
    """

    client_id: str
    username: str | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing that was done.

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
        """What was done: ``set``, ``unset`` or ``reset``."""
        if isinstance(self.target, Counters):
            return "reset"
        return "set" if self.override else "unset"


def active(overrides: Iterable[Override], now_s: float) -> tuple[Override, ...]:
    """Return the overrides that have not ended."""
    return tuple(override for override in overrides if override.until_s is None or now_s < override.until_s)


def apply_overrides(policies: PolicySet, overrides: Iterable[Override]) -> PolicySet:
    """Return a policy set as the overrides make it. They must be in force."""
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
    """Return the bound that a mode sets: who asks for a dry run wants nobody denied, whatever stands in the file."""
    return mode if mode is Mode.DRY_RUN else None


DEFAULTS = "limits"
OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from.

    Args:
        name: In the words of the configuration: ``clients.partner-app``, ``plans.gold``, ``limits``.
        override: The override that it comes from, None if it stands in the configuration.
    """

    name: str
    override: Override | None = None


@dataclass(frozen=True, slots=True)
class Origins:
    """The configuration and the overrides that lie over it.

    Args:
        policies: The configuration alone.
        overrides: Those in force.
    """

    policies: PolicySet
    overrides: Sequence[Override] = ()

    def of_limits(
        self, client_id: str, kind: LimitKind, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Origin:
        """Return where the limits of one kind come from."""
        client, plan = self.policies.rules_of(client_id)
        places = self.policies.rules_at(endpoint, grant_type, plan=plan, client=client)
        origins = [*zip(self._place_names(client_id, client, endpoint, grant_type), places, strict=True)]
        if endpoint == TOKEN_ENDPOINT and not any(rules.limits for _, rules in origins):
            if override := self._find(OverrideKind.LIMIT, client_id, kind):
                return Origin(OVERRIDE, override)
            origins = [(f"plans.{client.plan}", plan), (f"clients.{client_id}", client)]
            if not any(_says(rules.limits, kind) for _, rules in origins):
                override = self._find(OverrideKind.LIMIT, None, kind)
                return Origin(OVERRIDE, override) if override else Origin(DEFAULTS)
        for name, rules in reversed(origins):
            if _says(rules.limits, kind):
                return Origin(name)
        return Origin(DEFAULTS)

    def of_mode(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> Origin:
        """Return where the client's mode comes from. A canary is not a layer: it only spares."""
        modes = self._modes(client_id, endpoint=endpoint, grant_type=grant_type)
        layer, mode = next((layer, mode) for layer, mode in modes if mode is not None)
        if mode is Mode.ENFORCE:
            for override in (self._find(OverrideKind.MODE, None), self._find(OverrideKind.MODE, client_id)):
                if override and override.mode is Mode.DRY_RUN:
                    return Origin(OVERRIDE, override)
        return layer

    def of_trust(self, client_id: str) -> Origin | None:
        """Return what makes a client trusted, None if nothing does."""
        for override in self.overrides:
            target = override.target
            if target.kind is OverrideKind.TRUSTED and matches_any([target.client_id or ""], client_id):
                return Origin(OVERRIDE, override)
        for pattern in self.policies.trusted:
            if matches_any([pattern], client_id):
                return Origin(f"trusted_clients[{pattern}]")
        return None

    def _modes(self, client_id: str, *, endpoint: str, grant_type: str | None) -> Iterator[tuple[Origin, Mode | None]]:
        """Yield what each layer says, the one that wins first."""
        client, plan = self.policies.rules_of(client_id)
        place, plan_place, client_place = self.policies.rules_at(endpoint, grant_type, plan=plan, client=client)
        names = self._place_names(client_id, client, endpoint, grant_type)
        everybody, own = self._find(OverrideKind.MODE, None), self._find(OverrideKind.MODE, client_id)
        top = Origin(OVERRIDE, everybody) if everybody else Origin("mode")
        top_mode = everybody.mode if everybody else self.policies.mode
        if top_mode is Mode.OFF:
            yield top, top_mode
        if place.mode is Mode.OFF:
            yield Origin(names[0]), place.mode
        if own and own.mode is Mode.OFF:
            yield Origin(OVERRIDE, own), own.mode
        yield Origin(names[2]), client_place.mode
        yield (Origin(OVERRIDE, own), own.mode) if own else (Origin(f"clients.{client_id}"), client.mode)
        yield Origin(names[1]), plan_place.mode
        yield Origin(f"plans.{client.plan}"), plan.mode
        yield Origin(names[0]), place.mode
        yield top, top_mode

    def _find(self, kind: OverrideKind, client_id: str | None, limit_kind: LimitKind | None = None) -> Override | None:
        target = Target(kind, client_id, limit_kind)
        return next((override for override in self.overrides if override.target == target), None)

    @staticmethod
    def _place_names(client_id: str, client: Rules, endpoint: str, grant_type: str | None) -> tuple[str, str, str]:
        """Return what a place is called for everybody, in a plan and at a client."""
        place = f"grants.{grant_type}" if endpoint == TOKEN_ENDPOINT else f"endpoints.{endpoint}"
        return place, f"plans.{client.plan}.{place}", f"clients.{client_id}.{place}"


def _says(limits: OwnLimits | None, kind: LimitKind) -> bool:
    return limits is not None and getattr(limits, kind.value) is not None
