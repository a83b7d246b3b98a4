"""Plans, clients, grant types, endpoints and canary: from the file to a ``PolicySet``."""

import socket
from collections.abc import Iterator, Mapping
from typing import Any

from oauth_ratelimit.config.errors import Problems, did_you_mean, dotted
from oauth_ratelimit.config.limits import BUILT_IN_LIMITS, LIMITS, MODE, SWITCH, own_mode
from oauth_ratelimit.config.types import Key, Section, flag, list_of, map_of, number, or_null, text, unique
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, Limits, OwnLimits, PolicySet, Rules

# Common names of the grant types whose real names are addresses.
GRANT_TYPES = {
    "device_code": "urn:ietf:params:oauth:grant-type:device_code",
    "jwt-bearer": "urn:ietf:params:oauth:grant-type:jwt-bearer",
    "saml2-bearer": "urn:ietf:params:oauth:grant-type:saml2-bearer",
    "token-exchange": "urn:ietf:params:oauth:grant-type:token-exchange",
}

STANDARD_GRANTS = ("authorization_code", "client_credentials", "implicit", "password", "refresh_token")

RESERVED_ENDPOINTS = (TOKEN_ENDPOINT, "client_total")  # they name counters of their own


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
NAME = text(
    "1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit",
    pattern=NAME_PATTERN,
    longest=64,
)
ENDPOINT_NAME = text(
    "1 to 64 letters, digits, dots, hyphens and underscores, but neither "
    f"{' nor '.join(RESERVED_ENDPOINTS)} (limits of the token endpoint belong under limits)",
    pattern=NAME_PATTERN,
    longest=64,
    reserved=RESERVED_ENDPOINTS,
)
CLIENT_ID = text("text of 1 to 1024 characters", shortest=1, longest=1024)
PATTERN = text("text of 1 to 1024 characters, with * ? [] as in a shell", shortest=1, longest=1024)


def _rules(*, mode: Mode | None, enabled: bool, **others: Any) -> Rules:
    return Rules(mode=own_mode(mode, enabled), **others)


_OWN_LIMITS = Key(
    "limits",
    or_null(LIMITS),
    "Limits of its own, counted apart. Of a client or a plan they replace, kind by kind, those that the endpoint or "
    "grant type has for all.",
)
RULES = Section(
    "Limits and mode", "Limits and mode of a grant type or an endpoint.", (*SWITCH, _OWN_LIMITS), build=_rules
)


def full_grant_type(name: str) -> str:
    """Return the real name of a grant type that may be called by its common name."""
    return GRANT_TYPES.get(name, name)


def _folded(name: str) -> str:
    """Return a grant type without what is often written differently: case, hyphens, a plural."""
    return name.lower().replace("-", "_").rstrip("s")


def _by_full_name(rules: dict[str, Rules]) -> dict[str, Rules]:
    known = {_folded(name): name for name in (*STANDARD_GRANTS, *GRANT_TYPES, *GRANT_TYPES.values())}
    for name in rules:
        meant = known.get(_folded(name), name)
        if name != meant:
            raise ValueError(f"{name} can never match; did you mean {meant}?")
    for short, full in GRANT_TYPES.items():
        if short in rules and full in rules:
            raise ValueError(f"{short} and {full} are the same grant type")
    return {full_grant_type(name): own for name, own in rules.items()}


_GRANTS = map_of(
    text("a grant type, such as refresh_token", pattern=r"^[!-~]+$", longest=255), RULES, build=_by_full_name
)

_PLAN_KEYS = (
    *SWITCH,
    Key(
        "limits",
        or_null(LIMITS),
        "Limits at the token endpoint. Each kind named here replaces the default of that kind; [] is no limit of "
        "that kind.",
    ),
    Key("grants", _GRANTS, "Rules of its own for a grant type, by grant type.", default={}),
    Key("endpoints", map_of(NAME, RULES), "Rules of its own at another endpoint, by its name under endpoints.", {}),
)
PLAN = Section("One plan", "A named set of rules that clients refer to.", _PLAN_KEYS, build=_rules)
CLIENT = Section(
    "One client",
    "Rules of one client.",
    (
        *_PLAN_KEYS,
        Key("plan", or_null(NAME), "Name of a plan under plans. What the client itself names comes before it."),
    ),
    build=_rules,
)
ENDPOINT = Section(
    "One endpoint",
    "Another OAuth endpoint, or any other endpoint of the application.",
    (
        *SWITCH,
        _OWN_LIMITS,
        Key(
            "path",
            list_of(PATTERN),
            "Patterns of the request path, such as /oauth/revoke*. Default: the endpoint is found by its name, which "
            "must then be its name in Authlib or Flask.",
            default=[],
            attribute="paths",
        ),
        Key(
            "method",
            list_of(text("an HTTP method in capitals, such as POST", pattern=r"^[A-Z]+$", longest=20)),
            "HTTP methods. GET includes HEAD. Default: all.",
            default=[],
            attribute="methods",
        ),
    ),
    build=_rules,
)


def _canary(*, percent: float | None, salt: str, instances: tuple[str, ...] | None) -> Canary:
    if (percent is None) == (instances is None):
        raise ValueError("needs either percent or instances")
    return Canary(percent=100.0 if percent is None else percent, salt=salt, instances=instances or ())


CANARY = Section(
    "canary",
    "The clients or instances that are enforced first.",
    (
        Key("percent", or_null(number(0, 100)), "Share of clients that is enforced. Raising it only adds clients."),
        Key("salt", text(), "Any text; another one makes other clients come first.", default=""),
        Key(
            "instances",
            or_null(list_of(PATTERN, shortest=1)),
            "Name patterns of the instances that enforce, such as node-1*.",
        ),
    ),
    build=_canary,
)

# The keys of the file that become the policy set, in two groups: store and sync are between them.
MODE_KEYS = (
    Key(
        "mode",
        MODE,
        "off admits without counting, dry-run counts and reports but never denies, enforce denies.",
        default="dry-run",
    ),
    Key("enabled", flag(), "false is the same as mode: off, and keeps the value of mode.", default=True),
    Key(
        "instance",
        or_null(text("text of 1 to 255 characters", shortest=1, longest=255)),
        "Name of this instance, for a canary by instance. Default: the host's name.",
    ),
)
RULE_KEYS = (
    Key(
        "limits",
        LIMITS,
        "Limits of every client at the token endpoint. A kind that is left out has no limit.",
        default=BUILT_IN_LIMITS,
    ),
    Key(
        "grants",
        _GRANTS,
        "Rules of a grant type, such as refresh_token. With limits of its own it is counted apart.",
        default={},
    ),
    Key(
        "trusted_clients",
        list_of(PATTERN, build=unique),
        "Ids or patterns of clients that are never denied and never counted.",
        default=[],
    ),
    Key("plans", map_of(NAME, PLAN), "Named rules that clients refer to.", default={}),
    Key("clients", map_of(CLIENT_ID, CLIENT), "Rules of a client, by client id.", default={}),
    Key(
        "endpoints",
        map_of(ENDPOINT_NAME, ENDPOINT),
        "Other endpoints, such as revocation, introspection, device_authorization, userinfo, registration, each with "
        "limits of its own.",
        default={},
    ),
    Key(
        "canary",
        or_null(CANARY),
        "Limits mode enforce to a stable share of clients, or to some instances; the rest stays in dry run. A "
        "client or plan with a mode of its own is not affected.",
    ),
)


def build_policies(
    *,
    mode: Mode,
    enabled: bool,
    instance: str | None,
    limits: OwnLimits,
    grants: Mapping[str, Rules],
    trusted_clients: tuple[str, ...],
    plans: Mapping[str, Rules],
    clients: Mapping[str, Rules],
    endpoints: Mapping[str, Rules],
    canary: Canary | None,
) -> PolicySet:
    """Return the policy set that the keys of the file make together."""
    named = {grant: Rules() for rules in (*plans.values(), *clients.values()) for grant in rules.grants}
    return PolicySet(
        mode=mode if enabled else Mode.OFF,
        limits=Limits(client=limits.client or (), user=limits.user or (), client_total=limits.client_total or ()),
        trusted=trusted_clients,
        clients=clients,
        endpoints=endpoints,
        canary=canary,
        instance=instance or socket.gethostname(),
        plans=plans,
        grants={**named, **grants},
    )


def find_clashes(policies: PolicySet, problems: Problems) -> None:
    """Report wherever two limits that can apply to one request have the same name."""
    everywhere = set(_clashes(policies.limits_at("")[1]))
    for clash in sorted(everywhere):
        problems.add("limits", clash)
    for path, limits in _all_limits(policies):
        for clash in sorted(set(_clashes(limits)) - everywhere):
            problems.add(path, clash)


def _all_limits(policies: PolicySet) -> Iterator[tuple[str, Limits]]:
    """Yield the path of each key that has limits of its own, and the limits that apply there."""
    for name in policies.endpoints:
        yield dotted("endpoints", name), policies.limits_at("", endpoint=name)[1]
    for grant in policies.grants:
        yield dotted("grants", grant), policies.limits_at("", grant_type=grant)[1]
    for client_id, rules in policies.clients.items():
        path = dotted("clients", client_id)
        plan = policies.plans.get(rules.plan or "", Rules())
        yield path, policies.limits_at(client_id)[1]
        for name in {**plan.endpoints, **rules.endpoints}:
            yield dotted(path, "endpoints", name), policies.limits_at(client_id, endpoint=name)[1]
        for grant in {**plan.grants, **rules.grants}:
            yield dotted(path, "grants", grant), policies.limits_at(client_id, grant_type=grant)[1]


def _clashes(limits: Limits) -> Iterator[str]:
    total = {policy.name for policy in limits.client_total}
    for kind, own in (("client", limits.client), ("user", limits.user)):
        for name in total & {policy.name for policy in own}:
            yield f"{kind} and client_total both have a limit with the name {name}; give each a name of its own"


def find_dangling_names(values: Mapping[str, object], problems: Problems) -> None:
    """Report each plan or endpoint that is referred to and does not exist.

    Reads the values as they are in the file, so that these problems are found together with all others.
    """
    plans, endpoints = (list(_mapping(values.get(name))) for name in ("plans", "endpoints"))
    for section in ("plans", "clients"):
        for owner, rules in _mapping(values.get(section)).items():
            plan = _mapping(rules).get("plan") if section == "clients" else None
            if isinstance(plan, str) and plan not in plans:
                problems.bad_value(dotted(section, owner, "plan"), plan, _existing("plans", plans, plan))
            for name in _mapping(_mapping(rules).get("endpoints")):
                if name not in endpoints:
                    problems.bad_value(
                        dotted(section, owner, "endpoints"), name, _existing("endpoints", endpoints, name)
                    )


def _existing(section: str, names: list[str], found: str) -> str:
    return f"{', '.join(names) or f'none, because {section} is empty'}{did_you_mean(found, names)}"


def _mapping(value: object) -> dict[str, object]:
    """Return the items of a mapping whose keys are text; none for any other value."""
    return {key: item for key, item in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}
