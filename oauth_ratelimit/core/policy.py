"""Policies, and the set of them that applies to a client and a grant type of OAuth 2."""

import enum
from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.window import Estimator, Window

CLIENT_CREDENTIALS = "client_credentials"  # the grant whose tokens are reused
PASSWORD = "password"
IMPLICIT = "implicit"  # of every token from the authorization endpoint
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"

COMMON_NAMES = {
    "device_code": DEVICE_CODE,
    "jwt-bearer": JWT_BEARER,
    "saml2-bearer": "urn:ietf:params:oauth:grant-type:saml2-bearer",
    "token-exchange": "urn:ietf:params:oauth:grant-type:token-exchange",
}
"""Real names by common name, of the grant types whose real names are addresses."""

STANDARD_GRANTS = (
    "authorization_code",
    CLIENT_CREDENTIALS,
    IMPLICIT,
    PASSWORD,
    "refresh_token",
    *COMMON_NAMES.values(),
)


def full_grant_type(name: str) -> str:
    """Return the real name of a grant type that may be called by its common name."""
    return COMMON_NAMES.get(name, name)


TOKEN_ENDPOINT = "token"
GRANT_SCOPE = "grant:"  # before a grant type, in the scope of its counters
MAX_LIMIT = 2**53  # the largest number that every reader of JSON keeps exactly
MAX_POLICIES = 100  # of one kind: each is counted for every key

# Characters that a structured-field string (RFC 9651) and a metric label hold without escapes.
POLICY_NAME_PATTERN = r"^[!#-\[\]-~]([ !#-\[\]-~]*[!#-\[\]-~])?$"
MAX_POLICY_NAME_LENGTH = 64


class OnLimit(enum.StrEnum):
    """Answer to a request over a limit."""

    DENY = "deny"
    REUSE = "reuse"
    """The token that the client already has, where that is possible; else a denial."""


class Policy(NamedTuple):
    """Named limit: at most ``limit`` hits in any ``window``."""

    name: str  # name in headers, logs and metrics
    limit: int  # hits per window, 1 to 2^53
    window: Window
    estimator: Estimator = Estimator.SLIDING
    count_denied: bool = False  # True to count denied requests, too, so that a client that never pauses stays denied
    mode: Mode | None = None  # mode of this policy, None for the client's
    on_limit: OnLimit = OnLimit.DENY  # reuse is for requests without a user


class LimitKind(enum.StrEnum):
    """Kind of limits: a field of ``Limits``."""

    CLIENT = "client"
    USER = "user"
    CLIENT_TOTAL = "client_total"
    USER_TOTAL = "user_total"


class Limits(NamedTuple):
    """Policies of one client for one counter, by what they count."""

    client: tuple[Policy, ...] = ()  # requests without a user, per client
    user: tuple[Policy, ...] = ()  # requests with a user, per client and user
    client_total: tuple[Policy, ...] = ()  # all requests of a client together
    user_total: tuple[Policy, ...] = ()  # requests of a user through all clients together; the same for every client


class OwnLimits(NamedTuple):
    """Limits that one section of the configuration names: None inherits, ``()`` is no limit of that kind."""

    client: tuple[Policy, ...] | None = None
    user: tuple[Policy, ...] | None = None
    client_total: tuple[Policy, ...] | None = None
    user_total: tuple[Policy, ...] | None = None  # where all clients have their limits


class ClientPolicies(NamedTuple):
    """Policies and mode of one client at one endpoint, for one grant type."""

    # Policies that apply, without those that are off. A policy has a mode only if it differs from ``mode``.
    limits: Limits
    mode: Mode  # effect of a denial, with canary and overrides applied
    trusted: bool = False  # True if the client is never denied and never counted
    # Counter of its requests: None for the plain token counter, ``grant:<grant_type>`` for a grant type with a section,
    # else the endpoint's name
    scope: str | None = None
    is_canary: bool = False  # True if the canary enforces limits for this client, which has no mode of its own


class Rules(NamedTuple):
    """Section of the configuration for one client, plan, grant type or endpoint. None inherits."""

    mode: Mode | None = None
    limits: OwnLimits | None = None  # limits that replace the inherited ones, kind by kind
    plan: str | None = None  # plan that a client inherits from before the defaults
    grants: Mapping[str, "Rules"] = MappingProxyType({})  # sections of a client or a plan by grant type
    endpoints: Mapping[str, "Rules"] = MappingProxyType({})  # sections of a client or a plan by endpoint
    paths: tuple[str, ...] = ()  # patterns of the request path, for an endpoint
    methods: tuple[str, ...] = ()  # HTTP methods in capitals, for an endpoint. All methods if empty.
    error_description: str | None = None  # text of a denial, for an endpoint
    ceiling: Mode | None = None  # ``DRY_RUN`` if nothing of a client is denied, whatever modes the file names

    def names_limits(self, kind: LimitKind) -> bool:
        """Return True if the section names limits of a kind, instead of inheriting them."""
        return getattr(self.limits, kind, None) is not None


_NO_RULES = Rules()
_NO_LIMITS = Limits()


class PolicySet(NamedTuple):
    """All policies, and the rules that select those of a request. Immutable: a reload creates another one."""

    mode: Mode = Mode.DRY_RUN
    limits: Limits = _NO_LIMITS  # default limits of the token endpoint
    trusted: tuple[str, ...] = ()  # trusted client ids, or patterns of them
    trusted_ids: tuple[str, ...] = ()  # Client ids that are trusted at run time. No pattern: an id may contain ``*``.
    clients: Mapping[str, Rules] = MappingProxyType({})
    endpoints: Mapping[str, Rules] = MappingProxyType({})
    canary: Canary | None = None  # share of clients or instances that enforce limits, None if all do
    instance: str | None = ""  # name of this instance, for a canary by instance; None for an operator: all
    plans: Mapping[str, Rules] = MappingProxyType({})
    grants: Mapping[str, Rules] = MappingProxyType({})  # sections by grant type at the token endpoint
    ceiling: Mode | None = None  # ``DRY_RUN`` if nothing is denied, whatever modes the file names

    def matching(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> ClientPolicies:
        """Return the policies of a client at an endpoint. An endpoint that is not configured has no limits.

        The most specific mode wins: the policy's, the client's, its plan's, that of the grant type or endpoint, the
        global one. Off is different: the global mode, or that of the grant type or endpoint, switches every client off,
        and a client's mode all of its policies. Clients outside of the canary make a dry run, unless they or their plan
        have a mode of their own.
        """
        client_here, plan_here, everybody_here, client, plan = self.sections(client_id, endpoint, grant_type).values()
        own = client_here.mode or client.mode or plan_here.mode or plan.mode
        mode = own or everybody_here.mode or self.mode
        if Mode.OFF in (self.mode, everybody_here.mode):
            mode = Mode.OFF
        in_canary = None  # no canary affects the client
        if self.canary is not None and own is None:
            in_canary = self.canary.has_client(client_id, instance=self.instance)
        ceiling = Mode.DRY_RUN if in_canary is False else self.ceiling or client.ceiling
        scope, limits = self.limits_at(client_id, endpoint=endpoint, grant_type=grant_type)
        return ClientPolicies(
            limits=_with_modes(limits, mode, ceiling),
            mode=under(ceiling, mode),
            trusted=self.trusts(client_id),
            scope=scope,
            is_canary=in_canary is True,
        )

    def trusts(self, client_id: str) -> bool:
        return client_id in self.trusted_ids or matches_any(self.trusted, client_id)

    def may_reuse(self, client_id: str) -> bool:
        """Return True if limits, whatever the modes, give out tokens of a client again."""
        _, limits = self.limits_at(client_id, grant_type=CLIENT_CREDENTIALS)
        return any(each.on_limit is OnLimit.REUSE for each in (*limits.client, *limits.client_total))

    def limits_at(
        self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> tuple[str | None, Limits]:
        """Return the scope that a client's requests are counted in, and its limits, whatever the modes.

        A grant type inherits the client's limits at the token endpoint, an endpoint inherits none.
        """
        found = [rules.limits for rules in self.sections(client_id, endpoint, grant_type).values()]
        scope = self.scope_of(client_id, endpoint=endpoint, grant_type=grant_type)
        if endpoint == TOKEN_ENDPOINT:
            return scope, _complete(self.limits, *reversed(found))
        return scope, _complete(_NO_LIMITS, *reversed(found[:3]))

    def scope_of(self, client_id: str, *, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> str | None:
        if endpoint != TOKEN_ENDPOINT:
            return endpoint
        return f"{GRANT_SCOPE}{grant_type}" if grant_type in self.grants_of(client_id) else None

    @property
    def named_grants(self) -> list[str]:
        """Grant types with a section anywhere."""
        sections = (self.grants, *(each.grants for each in (*self.plans.values(), *self.clients.values())))
        return list(dict.fromkeys(chain.from_iterable(sections)))

    def grants_of(self, client_id: str) -> list[str]:
        """Return the grant types of a client that are counted apart."""
        *_, client, plan = self.sections(client_id).values()
        return list({**self.grants, **plan.grants, **client.grants})

    def endpoint_of(self, name: str | None, *, paths: Iterable[str], method: str) -> str | None:
        """Return the configured endpoint that a request belongs to, None if there is none.

        One with path patterns is found by them, in any of the ways to write the path; any other by its name in the web
        framework or the OAuth server. The first in the configuration wins. HEAD counts as GET, because servers answer
        it with the same work.
        """
        accepted = {method, "GET"} if method == "HEAD" else {method}
        for key, rules in self.endpoints.items():
            is_found = any(matches_any(rules.paths, path) for path in paths) if rules.paths else key == name
            if is_found and (not rules.methods or not accepted.isdisjoint(rules.methods)):
                return key
        return None

    def sections(
        self, client_id: str, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None
    ) -> dict[str, Rules]:
        """Return the five sections for a client at an endpoint, or for a grant type there, by path.

        First those of the endpoint or grant type, of the client, its plan and for all; then the client's and its plan's
        own.
        """
        client = self.clients.get(client_id, _NO_RULES)
        own = {f"clients.{client_id}": client, f"plans.{client.plan}": self.plans.get(client.plan or "", _NO_RULES)}
        kind, name = ("grants", grant_type or "") if endpoint == TOKEN_ENDPOINT else ("endpoints", endpoint)
        here = {f"{path}.{kind}.{name}": getattr(rules, kind) for path, rules in own.items()}
        here[f"{kind}.{name}"] = getattr(self, kind)
        return {path: rules.get(name, _NO_RULES) for path, rules in here.items()} | own


def _complete(base: Limits, *sections: OwnLimits | None) -> Limits:
    """Return limits after each section has replaced the kinds that it names. The last section wins."""
    for own in sections:
        if own is not None:
            base = Limits(*(former if new is None else new for former, new in zip(base, own, strict=True)))
    return base


def under(ceiling: Mode | None, mode: Mode) -> Mode:
    """Return the mode that applies: under an operator's dry run nothing is enforced."""
    return Mode.DRY_RUN if mode is Mode.ENFORCE and ceiling is Mode.DRY_RUN else mode


def _with_modes(limits: Limits, client_mode: Mode, ceiling: Mode | None) -> Limits:
    """Return limits without the policies that are off. A policy keeps a mode only if it differs from the client's."""
    if client_mode is Mode.OFF:
        return _NO_LIMITS
    inherited = under(ceiling, client_mode)

    def effective(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        modes = [inherited if policy.mode is None else under(ceiling, policy.mode) for policy in policies]
        return tuple(
            policy._replace(mode=None if mode is inherited else mode)
            for policy, mode in zip(policies, modes, strict=True)
            if mode is not Mode.OFF
        )

    return Limits(*map(effective, limits))
