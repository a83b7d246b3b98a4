"""Policies, and the set of them that applies to a client."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.window import Estimator, Window

TOKEN_ENDPOINT = "token"
MAX_LIMIT = 2**53  # the largest number that every reader of JSON keeps exactly

# Characters that a structured-field string (RFC 9651) and a metric label hold without escapes.
POLICY_NAME_PATTERN = r"^[!#-\[\]-~]([ !#-\[\]-~]*[!#-\[\]-~])?$"
MAX_POLICY_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """Named limit: at most ``limit`` hits in any ``window``.

    Args:
        name: Name in headers, logs and metrics.
        limit: Hits per window, 1 to 2^53.
        window: Trailing period and its frames.
        estimator: Formula that weighs the frames.
        count_denied: True to count denied requests, too, so that a client that never pauses stays denied.
        mode: Mode of this policy, None for the client's.
    """

    name: str
    limit: int
    window: Window
    estimator: Estimator = Estimator.SLIDING
    count_denied: bool = False
    mode: Mode | None = None


class LimitKind(enum.StrEnum):
    """Kind of limits: a field of ``Limits``."""

    CLIENT = "client"
    USER = "user"
    CLIENT_TOTAL = "client_total"


@dataclass(frozen=True, slots=True)
class Limits:
    """Policies of one client for one counter, by what they count.

    Args:
        client: Requests without a user, per client.
        user: Requests with a user, per client and user.
        client_total: All requests of a client together.
    """

    client: tuple[Policy, ...] = ()
    user: tuple[Policy, ...] = ()
    client_total: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """Limits that one section of the configuration names: None inherits, ``()`` is no limit of that kind."""

    client: tuple[Policy, ...] | None = None
    user: tuple[Policy, ...] | None = None
    client_total: tuple[Policy, ...] | None = None


@dataclass(frozen=True, slots=True)
class ClientPolicies:
    """Policies and mode of one client at one endpoint, for one grant type.

    Args:
        limits: Policies that apply, without those that are off. A policy has a mode only if it differs from ``mode``.
        mode: Effect of a denial, with canary and overrides applied.
        trusted: True if the client is never denied and never counted.
        scope: Counter of its requests: None for the plain token counter, ``grant:<grant_type>`` for a grant type with
            limits of its own, else the endpoint's name.
        is_canary: True if the canary enforces limits for this client, which has no mode of its own.
    """

    limits: Limits
    mode: Mode
    trusted: bool = False
    scope: str | None = None
    is_canary: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Section of the configuration for one client, plan, grant type or endpoint. None inherits.

    Args:
        mode: Mode that replaces the inherited one.
        limits: Limits that replace the inherited ones, kind by kind.
        plan: Plan that a client inherits from before the defaults.
        grants: Sections of a client or a plan by grant type.
        endpoints: Sections of a client or a plan by endpoint.
        paths: Patterns of the request path, for an endpoint.
        methods: HTTP methods in capitals, for an endpoint. All methods if empty.
        ceiling: ``DRY_RUN`` if nothing of a client is denied, whatever modes the file names.
    """

    mode: Mode | None = None
    limits: OwnLimits | None = None
    plan: str | None = None
    grants: Mapping[str, "Rules"] = field(default_factory=dict)
    endpoints: Mapping[str, "Rules"] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    ceiling: Mode | None = None


_NO_RULES = Rules()


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies, and the rules that select those of a request. Immutable: a reload creates another one.

    Args:
        mode: Mode of all that has none of its own.
        limits: Default limits of the token endpoint.
        trusted: Trusted client ids, or patterns of them.
        trusted_ids: Client ids that are trusted at run time. No pattern: an id may contain ``*``.
        clients: Sections by client id.
        endpoints: Sections by the names of other endpoints, each with limits of its own.
        canary: Share of clients or instances that enforce limits, None if all do.
        instance: Name of this instance, for a canary by instance.
        plans: Sections by plan, for clients to refer to.
        grants: Sections by grant type at the token endpoint. Every grant type that a client or a plan names is a key,
            too, so that requests of other grant types share one entry per client.
        ceiling: ``DRY_RUN`` if nothing is denied, whatever modes the file names.
    """

    mode: Mode = Mode.DRY_RUN
    limits: Limits = Limits()
    trusted: tuple[str, ...] = ()
    trusted_ids: tuple[str, ...] = ()
    clients: Mapping[str, Rules] = field(default_factory=dict)
    endpoints: Mapping[str, Rules] = field(default_factory=dict)
    canary: Canary | None = None
    instance: str = ""
    plans: Mapping[str, Rules] = field(default_factory=dict)
    grants: Mapping[str, Rules] = field(default_factory=dict)
    ceiling: Mode | None = None

    def matching(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> ClientPolicies:
        """Return the policies of a client at an endpoint. An endpoint that is not configured has no limits.

        The most specific mode wins: the policy's, the client's, its plan's, that of the grant type or endpoint, the
        global one. Off is different: the global mode, or that of the grant type or endpoint, switches every client off,
        and a client's mode all of its policies. Clients outside of the canary make a dry run, unless they or their plan
        have a mode of their own.

        Args:
            client_id: The OAuth client.
            endpoint: Name of the endpoint in the configuration.
            grant_type: Grant type of a token request, None if it does not matter.
        """
        client, plan = self.rules_of(client_id)
        section, plan_section, client_section = self.rules_at(endpoint, grant_type, plan=plan, client=client)
        scope, limits = self.limits_at(client_id, endpoint=endpoint, grant_type=grant_type)
        own = client_section.mode or client.mode or plan_section.mode or plan.mode
        mode = Mode.OFF if Mode.OFF in (self.mode, section.mode) else own or section.mode or self.mode
        is_in_canary = self.canary is not None and self.canary.has_client(client_id, instance=self.instance)
        is_outside = own is None and self.canary is not None and not is_in_canary
        never_denies = is_outside or Mode.DRY_RUN in (self.ceiling, client.ceiling)
        mode = _without_enforcing(mode) if never_denies else mode
        return ClientPolicies(
            limits=_with_modes(limits, mode=mode, never_denies=never_denies),
            mode=mode,
            trusted=self.trusts(client_id),
            scope=scope,
            is_canary=is_in_canary and own is None,
        )

    def trusts(self, client_id: str) -> bool:
        """Return True if a client is trusted."""
        return client_id in self.trusted_ids or matches_any(self.trusted, client_id)

    def limits_at(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> tuple[str | None, Limits]:
        """Return the scope that a client's requests are counted in, and its limits, whatever the modes."""
        client, plan = self.rules_of(client_id)
        sections = [rules.limits for rules in self.rules_at(endpoint, grant_type, plan=plan, client=client)]
        if endpoint != TOKEN_ENDPOINT:
            return endpoint, _complete(Limits(), *sections)
        if any(sections):
            return f"grant:{grant_type}", _complete(Limits(), *sections)
        return None, _complete(self.limits, plan.limits, client.limits)

    def endpoint_of(self, name: str | None, *, path: str, method: str) -> str | None:
        """Return the configured endpoint that a request belongs to, None if there is none.

        One with path patterns is found by them, any other by its name. The first in the configuration wins.

        Args:
            name: Name of the endpoint in the web framework or the OAuth server.
            path: Path of the request, without query.
            method: HTTP method in capitals. HEAD counts as GET, because servers answer it with the same work.
        """
        accepted = {method, "GET"} if method == "HEAD" else {method}
        for key, rules in self.endpoints.items():
            is_found = matches_any(rules.paths, path) if rules.paths else key == name
            if is_found and (not rules.methods or not accepted.isdisjoint(rules.methods)):
                return key
        return None

    def rules_of(self, client_id: str) -> tuple[Rules, Rules]:
        """Return the sections of a client and of its plan."""
        client = self.clients.get(client_id, _NO_RULES)
        return client, _NO_RULES if client.plan is None else self.plans.get(client.plan, _NO_RULES)

    def rules_at(
        self, endpoint: str, grant_type: str | None, *, plan: Rules, client: Rules
    ) -> tuple[Rules, Rules, Rules]:
        """Return the sections of an endpoint, or of a grant type at the token endpoint.

        Returns:
            The section for all clients, that of the plan, that of the client.
        """
        is_token = endpoint == TOKEN_ENDPOINT
        name = (grant_type or "") if is_token else endpoint
        parents = (parent.grants if is_token else parent.endpoints for parent in (self, plan, client))
        section, plan_section, client_section = (sections.get(name, _NO_RULES) for sections in parents)
        return section, plan_section, client_section


def _complete(base: Limits, *sections: OwnLimits | None) -> Limits:
    """Return limits after each section has replaced the kinds that it names. The last section wins."""
    for own in sections:
        if own is not None:
            base = Limits(
                client=base.client if own.client is None else own.client,
                user=base.user if own.user is None else own.user,
                client_total=base.client_total if own.client_total is None else own.client_total,
            )
    return base


def _without_enforcing(mode: Mode) -> Mode:
    return Mode.DRY_RUN if mode is Mode.ENFORCE else mode


def _with_modes(limits: Limits, *, mode: Mode, never_denies: bool) -> Limits:
    """Return limits without the policies that are off. A policy keeps a mode only if it differs from ``mode``."""
    if mode is Mode.OFF:
        return Limits()

    def effective(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        kept = []
        for policy in policies:
            own = _without_enforcing(policy.mode) if policy.mode and never_denies else policy.mode
            if own is not Mode.OFF:
                kept.append(replace(policy, mode=None if own is mode else own))
        return tuple(kept)

    return Limits(
        client=effective(limits.client),
        user=effective(limits.user),
        client_total=effective(limits.client_total),
    )
