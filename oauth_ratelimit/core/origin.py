"""Origins of configured values: the section of the configuration or the override that a value comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, LimitKind, OwnLimits, PolicySet, Rules

DEFAULTS = "limits"
OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a value."""

    name: str  # path in the configuration, such as ``clients.partner-app``, ``plans.gold`` or ``limits``
    override: Override | None = None  # override that the value comes from, None if the configuration file has it


@dataclass(frozen=True, slots=True)
class Origins:
    """Finds the origins of a client's limits, mode and trust, in the file's policies and the active overrides."""

    policies: PolicySet
    overrides: Sequence[Override] = ()

    def of_limits(
        self, client_id: str, kind: LimitKind, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Origin:
        """Return the origin of the limits of one kind."""
        client, plan = self.policies.rules_of(client_id)
        sections = self.policies.rules_at(client_id, endpoint, grant_type)
        origins = [*zip(self._section_names(client_id, client, endpoint, grant_type), sections, strict=True)]
        if endpoint == TOKEN_ENDPOINT and not any(rules.limits for _, rules in origins):
            if override := self._find(OverrideKind.LIMIT, client_id, kind):
                return Origin(OVERRIDE, override)
            origins = [(f"plans.{client.plan}", plan), (f"clients.{client_id}", client)]
            if not any(_has_limits(rules.limits, kind) for _, rules in origins):
                override = self._find(OverrideKind.LIMIT, None, kind)
                return Origin(OVERRIDE, override) if override else Origin(DEFAULTS)
        for name, rules in reversed(origins):
            if _has_limits(rules.limits, kind):
                return Origin(name)
        return Origin(DEFAULTS)

    def of_mode(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> Origin:
        """Return the origin of the client's mode, without regard to a canary."""
        modes = self._modes(client_id, endpoint=endpoint, grant_type=grant_type)
        origin, mode = next((origin, mode) for origin, mode in modes if mode is not None)
        if mode is Mode.ENFORCE:
            for override in (self._find(OverrideKind.MODE, None), self._find(OverrideKind.MODE, client_id)):
                if override and override.mode is Mode.DRY_RUN:
                    return Origin(OVERRIDE, override)
        return origin

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

    def _modes(self, client_id: str, *, endpoint: str, grant_type: str | None) -> Iterator[tuple[Origin, Mode | None]]:
        """Yield each origin with its mode, the one that wins first."""
        client, plan = self.policies.rules_of(client_id)
        section, plan_section, client_section = self.policies.rules_at(client_id, endpoint, grant_type)
        names = self._section_names(client_id, client, endpoint, grant_type)
        everybody = None if self.policies.mode is Mode.OFF else self._find(OverrideKind.MODE, None)
        own = self._find(OverrideKind.MODE, client_id)
        top = Origin(OVERRIDE, everybody) if everybody else Origin("mode")
        top_mode = everybody.mode if everybody else self.policies.mode
        if top_mode is Mode.OFF:
            yield top, top_mode
        if section.mode is Mode.OFF:
            yield Origin(names[0]), section.mode
        if own and own.mode is Mode.OFF:
            yield Origin(OVERRIDE, own), own.mode
        yield Origin(names[2]), client_section.mode
        yield (Origin(OVERRIDE, own), own.mode) if own else (Origin(f"clients.{client_id}"), client.mode)
        yield Origin(names[1]), plan_section.mode
        yield Origin(f"plans.{client.plan}"), plan.mode
        yield Origin(names[0]), section.mode
        yield top, top_mode

    def _find(self, kind: OverrideKind, client_id: str | None, limit_kind: LimitKind | None = None) -> Override | None:
        target = Target(kind, client_id, limit_kind)
        return next((override for override in self.overrides if override.target == target), None)

    @staticmethod
    def _section_names(client_id: str, client: Rules, endpoint: str, grant_type: str | None) -> tuple[str, str, str]:
        """Return the paths of the sections that ``PolicySet.rules_at`` returns."""
        section = f"grants.{grant_type}" if endpoint == TOKEN_ENDPOINT else f"endpoints.{endpoint}"
        return section, f"plans.{client.plan}.{section}", f"clients.{client_id}.{section}"


def _has_limits(limits: OwnLimits | None, kind: LimitKind) -> bool:
    return limits is not None and getattr(limits, kind.value) is not None
