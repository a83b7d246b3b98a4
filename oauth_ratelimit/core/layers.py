"""
Where a client's limits and modes come from: which layer of the configuration, or which override, has won.

Says the same as ``PolicySet.matching`` decides; a test compares the two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oauth_ratelimit.core.enforcement import Mode, matches_any
from oauth_ratelimit.core.overrides import LimitKind, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, OwnLimits, PolicySet, Rules

DEFAULTS = "limits"
OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Layer:
    """
    Where a value comes from.

    Args:
        name: In the words of the configuration: ``clients.partner-app``, ``plans.gold``, ``limits``.

        override: The override that it comes from, None if it stands in the configuration.
    """

    name: str
    override: Override | None = None


@dataclass(frozen=True, slots=True)
class Layers:
    """
    The configuration and the overrides that lie over it.

    Args:
        policies: The configuration alone.

        overrides: Those in force.
    """

    policies: PolicySet
    overrides: Sequence[Override] = ()

    def of_limits(
        self, client_id: str, kind: LimitKind, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> Layer:
        """
        Return where the limits of one kind come from.
        """
        client, plan = self.policies.rules_of(client_id)
        places = self.policies.rules_at(endpoint, grant_type, plan=plan, client=client)
        layers = [*zip(self._place_names(client_id, client, endpoint, grant_type), places, strict=True)]
        if endpoint == TOKEN_ENDPOINT and not any(rules.limits for _, rules in layers):
            if override := self._find(OverrideKind.LIMIT, client_id, kind):
                return Layer(OVERRIDE, override)
            layers = [(f"plans.{client.plan}", plan), (f"clients.{client_id}", client)]
            if not any(_says(rules.limits, kind) for _, rules in layers):
                override = self._find(OverrideKind.LIMIT, None, kind)
                return Layer(OVERRIDE, override) if override else Layer(DEFAULTS)
        for name, rules in reversed(layers):
            if _says(rules.limits, kind):
                return Layer(name)
        return Layer(DEFAULTS)

    def of_mode(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> Layer:
        """
        Return where the client's mode comes from. A canary is not a layer: it only spares.
        """
        modes = self._modes(client_id, endpoint=endpoint, grant_type=grant_type)
        layer, mode = next((layer, mode) for layer, mode in modes if mode is not None)
        if mode is Mode.ENFORCE:
            for override in (self._find(OverrideKind.MODE, None), self._find(OverrideKind.MODE, client_id)):
                if override and override.mode is Mode.DRY_RUN:
                    return Layer(OVERRIDE, override)
        return layer

    def of_trust(self, client_id: str) -> Layer | None:
        """
        Return what makes a client trusted, None if nothing does.
        """
        for override in self.overrides:
            target = override.target
            if target.kind is OverrideKind.TRUSTED and matches_any([target.client_id or ""], client_id):
                return Layer(OVERRIDE, override)
        for pattern in self.policies.trusted:
            if matches_any([pattern], client_id):
                return Layer(f"trusted_clients[{pattern}]")
        return None

    def _modes(self, client_id: str, *, endpoint: str, grant_type: str | None) -> Iterator[tuple[Layer, Mode | None]]:
        """
        Yield what each layer says, the one that wins first.
        """
        client, plan = self.policies.rules_of(client_id)
        place, plan_place, client_place = self.policies.rules_at(endpoint, grant_type, plan=plan, client=client)
        names = self._place_names(client_id, client, endpoint, grant_type)
        everybody, own = self._find(OverrideKind.MODE, None), self._find(OverrideKind.MODE, client_id)
        top = Layer(OVERRIDE, everybody) if everybody else Layer("mode")
        top_mode = everybody.mode if everybody else self.policies.mode
        if top_mode is Mode.OFF:
            yield top, top_mode
        if place.mode is Mode.OFF:
            yield Layer(names[0]), place.mode
        if own and own.mode is Mode.OFF:
            yield Layer(OVERRIDE, own), own.mode
        yield Layer(names[2]), client_place.mode
        yield (Layer(OVERRIDE, own), own.mode) if own else (Layer(f"clients.{client_id}"), client.mode)
        yield Layer(names[1]), plan_place.mode
        yield Layer(f"plans.{client.plan}"), plan.mode
        yield Layer(names[0]), place.mode
        yield top, top_mode

    def _find(self, kind: OverrideKind, client_id: str | None, limit_kind: LimitKind | None = None) -> Override | None:
        target = Target(kind, client_id, limit_kind)
        return next((override for override in self.overrides if override.target == target), None)

    @staticmethod
    def _place_names(client_id: str, client: Rules, endpoint: str, grant_type: str | None) -> tuple[str, str, str]:
        """
        Return what a place is called for everybody, in a plan and at a client.
        """
        place = f"grants.{grant_type}" if endpoint == TOKEN_ENDPOINT else f"endpoints.{endpoint}"
        return place, f"plans.{client.plan}.{place}", f"clients.{client_id}.{place}"


def _says(limits: OwnLimits | None, kind: LimitKind) -> bool:
    return limits is not None and getattr(limits, kind.value) is not None
