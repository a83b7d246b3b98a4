"""Policies, and the set of them that applies to a client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.window import Estimator, Window

TOKEN_ENDPOINT = "token"
MAX_LIMIT = 2**53  # the largest number that every reader of JSON keeps exactly

# What a structured-field string (RFC 9651) carries without escapes, and a metric label too.
POLICY_NAME_PATTERN = r"^[!#-\[\]-~]([ !#-\[\]-~]*[!#-\[\]-~])?$"
MAX_POLICY_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """One named limit: at most ``limit`` hits in any ``window``.

    Args:
        name: Stands in headers, logs and metrics.
        limit: Hits per window, 1 to 2^53.
        window: The trailing period and its frames.
        estimator: How frames are weighed.
        count_denied: Whether a denied request counts too, so that hammering keeps a client out.
        mode: Overrides the client's mode for this policy; None takes the client's.
    """

    name: str
    limit: int
    window: Window
    estimator: Estimator = Estimator.SLIDING
    count_denied: bool = False
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The policies of one client at one place, by what they count.

    Args:
        client: For grants without a user, per client.
        user: For grants with a user, per client and user.
        client_total: For all grants of a client together.
    """

    client: tuple[Policy, ...] = ()
    user: tuple[Policy, ...] = ()
    client_total: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """The limits that one layer of the configuration names itself: None inherits, ``()`` is no limit of that kind."""

    client: tuple[Policy, ...] | None = None
    user: tuple[Policy, ...] | None = None
    client_total: tuple[Policy, ...] | None = None


@dataclass(frozen=True, slots=True)
class ClientPolicies:
    """All that is decided about one client at one place before a request is seen.

    Args:
        limits: What applies, without what is off. A policy carries a mode only where it differs from ``mode``.
        mode: What is done with a denial, canary and overrides included.
        trusted: Never denied, never counted.
        scope: Where it is counted: None for the plain token counter, ``grant:<grant_type>`` for a grant type with
            limits of its own, else the endpoint's name.
        is_canary: Whether the client is in the share that a canary enforces, and has no mode of its own.
    """

    limits: Limits
    mode: Mode
    trusted: bool = False
    scope: str | None = None
    is_canary: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of one client, plan, grant type or endpoint: None inherits.

    Args:
        mode: Instead of the mode above.
        limits: Instead of the limits above, kind by kind.
        plan: The plan whose rules come between these and the defaults; of a client only.
        grants: What differs for a grant type; of a client or a plan only.
        endpoints: What differs at another endpoint; of a client or a plan only.
        paths: Patterns of the request path; of an endpoint only.
        methods: HTTP methods in capitals, all if empty; of an endpoint only.
        ceiling: ``DRY_RUN`` denies nothing, whatever modes are nearer; of a client only.
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
    """Everything that decides which policies a request meets. Never changed in place: a reload makes a new one.

    Args:
        mode: The mode of all that names none itself.
        limits: Defaults of the token endpoint.
        trusted: Client ids or patterns of them.
        clients: What differs for a client.
        endpoints: Other endpoints, each with limits of its own.
        canary: Where enforcing starts, if not everywhere.
        instance: This instance's name, for a canary by instance.
        plans: Named rules that clients refer to.
        grants: What differs for a grant type at the token endpoint. Holds every grant type that any rule names, those
            of clients and plans included: a grant type that is not a key here needs no look-up of its own.
        ceiling: ``DRY_RUN`` denies nobody, whatever modes are nearer.
    """

    mode: Mode = Mode.DRY_RUN
    limits: Limits = Limits()
    trusted: tuple[str, ...] = ()
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
        """Return what applies to a client at an endpoint. An endpoint that is not configured has no limits.

        The nearest mode wins: the policy's, else the client's, its plan's, the grant type's or endpoint's, the global
        one. Off is different: at the top, at an endpoint, at a grant type or at a client it switches everything there
        off. A canary turns enforcing into a dry run for those outside it, unless client or plan have a mode of their
        own.

        Args:
            client_id: The OAuth client.
            endpoint: The endpoint's configured name.
            grant_type: The grant type of a token request, None if it does not matter.
        """
        client, plan = self.rules_of(client_id)
        place, plan_place, client_place = self.rules_at(endpoint, grant_type, plan=plan, client=client)
        scope, limits = self.limits_at(client_id, endpoint=endpoint, grant_type=grant_type)
        own = client_place.mode or client.mode or plan_place.mode or plan.mode
        mode = Mode.OFF if Mode.OFF in (self.mode, place.mode) else own or place.mode or self.mode
        is_in_canary = self.canary is not None and self.canary.has_client(client_id, instance=self.instance)
        is_outside = own is None and self.canary is not None and not is_in_canary
        spared = is_outside or Mode.DRY_RUN in (self.ceiling, client.ceiling)
        mode = _spare(mode) if spared else mode
        return ClientPolicies(
            limits=_with_modes(limits, mode=mode, spared=spared),
            mode=mode,
            trusted=matches_any(self.trusted, client_id),
            scope=scope,
            is_canary=is_in_canary and own is None,
        )

    def limits_at(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> tuple[str | None, Limits]:
        """Return where a client's requests are counted, and the limits that stand there, whatever the modes."""
        client, plan = self.rules_of(client_id)
        origins = [rules.limits for rules in self.rules_at(endpoint, grant_type, plan=plan, client=client)]
        if endpoint != TOKEN_ENDPOINT:
            return endpoint, _complete(Limits(), *origins)
        if any(origins):
            return f"grant:{grant_type}", _complete(Limits(), *origins)
        return None, _complete(self.limits, plan.limits, client.limits)

    def endpoint_of(self, name: str | None, *, path: str, method: str) -> str | None:
        """Return the configured endpoint that a request belongs to, None if there is none.

        One with path patterns is found by them, one without by its name; the first in the configuration wins.

        Args:
            name: What the web framework or the OAuth server calls the endpoint.
            path: Path of the request, without query.
            method: HTTP method in capitals.
        """
        for key, rules in self.endpoints.items():
            is_here = matches_any(rules.paths, path) if rules.paths else key == name
            if is_here and (not rules.methods or method in rules.methods):
                return key
        return None

    def rules_of(self, client_id: str) -> tuple[Rules, Rules]:
        """Return what a client and its plan say."""
        client = self.clients.get(client_id, _NO_RULES)
        return client, _NO_RULES if client.plan is None else self.plans.get(client.plan, _NO_RULES)

    def rules_at(
        self, endpoint: str, grant_type: str | None, *, plan: Rules, client: Rules
    ) -> tuple[Rules, Rules, Rules]:
        """
        Return what this set, a plan and a client say of one place: an endpoint, or a grant type at the token endpoint.
        """
        is_token = endpoint == TOKEN_ENDPOINT
        at = (grant_type or "") if is_token else endpoint
        holders = (each.grants if is_token else each.endpoints for each in (self, plan, client))
        place, plan_place, client_place = (holder.get(at, _NO_RULES) for holder in holders)
        return place, plan_place, client_place


def _complete(base: Limits, *origins: OwnLimits | None) -> Limits:
    """Return the limits that hold after each layer has replaced the kinds it names; the last layer wins."""
    for own in origins:
        if own is not None:
            base = Limits(
                client=base.client if own.client is None else own.client,
                user=base.user if own.user is None else own.user,
                client_total=base.client_total if own.client_total is None else own.client_total,
            )
    return base


def _spare(mode: Mode) -> Mode:
    return Mode.DRY_RUN if mode is Mode.ENFORCE else mode


def _with_modes(limits: Limits, *, mode: Mode, spared: bool) -> Limits:
    """Return limits without the policies that are off, and with the modes that differ from the client's."""
    if mode is Mode.OFF:
        return Limits()

    def effective(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        kept = []
        for policy in policies:
            own = _spare(policy.mode) if policy.mode and spared else policy.mode
            if own is not Mode.OFF:
                kept.append(replace(policy, mode=None if own is mode else own))
        return tuple(kept)

    return Limits(
        client=effective(limits.client),
        user=effective(limits.user),
        client_total=effective(limits.client_total),
    )
