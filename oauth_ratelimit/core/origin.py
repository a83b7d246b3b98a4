"""Origins of configured values: the section of the configuration or the override that a value comes from."""

from collections.abc import Sequence
from typing import NamedTuple

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, LimitKind, PolicySet, Rules

DEFAULTS = "limits"
OVERRIDE = "override"


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
        if own := self._find(OverrideKind.LIMIT, client_id, kind):
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
