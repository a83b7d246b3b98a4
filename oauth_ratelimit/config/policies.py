"""Plans, clients, grant types, endpoints and canary: from the file to a ``PolicySet``."""

import socket
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from oauth_ratelimit.config.errors import Problems, did_you_mean, dotted, show, without_address
from oauth_ratelimit.config.limits import (
    BUILT_IN_LIMITS,
    DEFAULT_LIMITS,
    ENABLED,
    LIMITS,
    MODE,
    NO_TOKEN,
    SWITCH,
    switched,
)
from oauth_ratelimit.config.types import (
    ConfigKey,
    Kind,
    list_of,
    map_of,
    number,
    oauth_text,
    or_null,
    section,
    text,
    unique,
)
from oauth_ratelimit.core.mode import Canary
from oauth_ratelimit.core.policy import (
    CLIENT_CREDENTIALS,
    COMMON_NAMES,
    STANDARD_GRANTS,
    TOKEN_ENDPOINT,
    Limits,
    OnLimit,
    OwnLimits,
    PolicySet,
    Rules,
    full_grant_type,
)

RESERVED_ENDPOINTS = (TOKEN_ENDPOINT, "client_total", "user_total")  # they name counters of their own

INSTANCE = or_null(text("text of 1 to 255 characters", shortest=1, longest=255))
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
NAME = text(
    "1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit",
    pattern=NAME_PATTERN,
    longest=64,
)
ENDPOINT_NAME = text(
    "1 to 64 letters, digits, dots, hyphens and underscores, but neither "
    f"{' nor '.join(RESERVED_ENDPOINTS)} (limits of the token endpoint belong under limits)",
    pattern=NAME_PATTERN.replace("^", f"^(?!({'|'.join(RESERVED_ENDPOINTS)})$)"),
    longest=64,
)
CLIENT_ID = text("text of 1 to 1024 characters", shortest=1, longest=1024)
PATTERN = text("text of 1 to 1024 characters, with * ? [] as in a shell", shortest=1, longest=1024)


def name_under(section: str) -> Kind:
    """Return the type of names that a section of the same file has to contain."""

    def parse(value: object, at: str, problems: Problems) -> Any:
        name, existing = NAME.parse(value, at, problems), problems.document.get(section)
        names = existing if isinstance(existing, Mapping) else {}
        if name is not None and name not in names:
            known = [without_address(str(each)) for each in names]
            allowed = ", ".join(known) or f"none, because {section} is empty"
            problems.add(at, f"got {show(name)}, allowed: {allowed}{did_you_mean(name, known)}")
        return name

    return NAME._replace(parse=parse)


def _parse_own_limits(value: object, at: str, problems: Problems) -> OwnLimits | None:
    limits: OwnLimits | None = LIMITS.parse(value, at, problems)
    kinds = () if limits is None else (limits.client or (), limits.client_total or ())
    has_reuse = any(policy.on_limit is OnLimit.REUSE for kind in kinds for policy in kind)
    if has_reuse and not at.endswith(f"grants.{CLIENT_CREDENTIALS}.limits"):
        problems.add(at, f"got on_limit: reuse, allowed: deny, because {NO_TOKEN}")
    return limits


_OWN_LIMITS = ConfigKey("limits", or_null(LIMITS._replace(parse=_parse_own_limits)))
RULES = section(
    "Limits and mode", "Limits and mode of a grant type or an endpoint.", (*SWITCH, _OWN_LIMITS), build=switched(Rules)
)


def _folded(name: str) -> str:
    """Return a grant type without what is often written differently: case, hyphens, a plural."""
    return name.lower().replace("-", "_").rstrip("s")


_GRANT = text("a grant type, such as refresh_token", pattern=r"^[!-~]+$", longest=255)
_KNOWN_GRANTS = {_folded(name): name for name in (*STANDARD_GRANTS, *COMMON_NAMES)}


def _parse_grant(value: object, at: str, problems: Problems) -> Any:
    name = _GRANT.parse(value, at, problems)
    if name and name != (meant := _KNOWN_GRANTS.get(_folded(name), name)):
        problems.add(at, f"can never match; did you mean {meant}?")
    return name


def _by_full_name(rules: dict[str, Rules]) -> dict[str, Rules]:
    for short, full in COMMON_NAMES.items():
        if short in rules and full in rules:
            raise ValueError(f"{short} and {full} are the same grant type")
    return {full_grant_type(name): own for name, own in rules.items()}


_GRANTS = map_of(_GRANT._replace(parse=_parse_grant), RULES, build=_by_full_name)

_PLAN_KEYS = (
    *SWITCH,
    ConfigKey("limits", or_null(LIMITS)),
    ConfigKey("grants", _GRANTS),
    ConfigKey("endpoints", map_of(name_under("endpoints"), RULES)),
)
PLAN = section("One plan", "A named set of rules that clients refer to.", _PLAN_KEYS, build=switched(Rules))
CLIENT = section(
    "One client",
    "Rules of one client.",
    (
        *_PLAN_KEYS,
        ConfigKey("plan", or_null(name_under("plans"))),
    ),
    build=switched(Rules),
)
ENDPOINT = section(
    "One endpoint",
    "Another OAuth endpoint, or any other endpoint of the application.",
    (
        *SWITCH,
        _OWN_LIMITS,
        ConfigKey("path", list_of(PATTERN), attribute="paths"),
        ConfigKey(
            "method",
            list_of(text("an HTTP method in capitals, such as POST", pattern=r"^[A-Z]+$", longest=20)),
            attribute="methods",
        ),
        ConfigKey("error_description", or_null(oauth_text(500))),
    ),
    build=switched(Rules),
)


def _canary(**values: Any) -> Canary:
    given = {name: value for name, value in values.items() if value is not None}
    if ("percent" in given) == bool(given.get("instances")):
        raise ValueError("needs either percent or instances")
    return Canary(**given)


CANARY = section(
    "canary",
    "The clients or instances that are enforced first.",
    (
        ConfigKey("percent", or_null(number(0, 100))),
        ConfigKey("salt", text(), default=""),
        ConfigKey("instances", or_null(list_of(PATTERN))),
    ),
    build=_canary,
)

POLICY_KEYS = (
    ConfigKey("mode", MODE, default="dry-run"),
    ENABLED,
    ConfigKey("instance", INSTANCE),
    ConfigKey("limits", DEFAULT_LIMITS, default=BUILT_IN_LIMITS),
    ConfigKey("grants", _GRANTS),
    ConfigKey("trusted_clients", list_of(PATTERN, build=unique), attribute="trusted"),
    ConfigKey("plans", map_of(NAME, PLAN)),
    ConfigKey("clients", map_of(CLIENT_ID, CLIENT)),
    ConfigKey("endpoints", map_of(ENDPOINT_NAME, ENDPOINT)),
    ConfigKey("canary", or_null(CANARY)),
)


def build_policies(*, limits: OwnLimits, instance: str | None = None, **others: Any) -> PolicySet:
    return PolicySet(
        limits=Limits(*(own or () for own in limits)),
        instance=instance or socket.gethostname(),
        **others,
    )


MET_TOGETHER = (  # kinds of limits that one request may meet
    ("client", "client_total"),
    ("user", "client_total"),
    ("user", "user_total"),
    ("user_total", "client_total"),
)


def find_clashes(policies: PolicySet, problems: Problems) -> None:
    """Report wherever two limits that can apply to one request have the same name, but where they are inherited."""
    found: dict[tuple[str, str | None], frozenset[str]] = {}  # by client id and scope; no client id is for all
    for keys, client_id, (scope, limits) in _all_limits(policies):
        clashes = _clashes_of(tuple([tuple([policy.name for policy in kind]) for kind in limits]))
        if clashes:
            inherited = (found.get(place, frozenset()) for place in (("", None), ("", scope), (client_id, None)))
            for clash in sorted(clashes.difference(*inherited)):
                problems.add(dotted("", *keys), clash)
            found[client_id, scope] = clashes


@lru_cache(maxsize=1000)
def _clashes_of(names: tuple[tuple[str, ...], ...]) -> frozenset[str]:
    named = Limits._make(names)
    return frozenset(
        f"{kind} and {other} both have a limit with the name {name}; give each a name of its own"
        for kind, other in MET_TOGETHER
        for name in {*getattr(named, kind)}.intersection(getattr(named, other))
    )


def _all_limits(policies: PolicySet) -> Iterator[tuple[tuple[str, ...], str, tuple[str | None, Limits]]]:
    """Yield keys of the path, client id, scope and limits of everything that is counted apart, the default first."""
    everybody = Rules(endpoints=policies.endpoints)
    for client_id, rules in {"": everybody, **policies.clients}.items():
        keys = ("clients", client_id) if client_id else ()
        plan = policies.plans.get(rules.plan or "", Rules())
        yield keys or ("limits",), client_id, policies.limits_at(client_id)
        for name in {**plan.endpoints, **rules.endpoints}:
            yield (*keys, "endpoints", name), client_id, policies.limits_at(client_id, endpoint=name)
        for grant in policies.grants_of(client_id):
            yield (*keys, "grants", grant), client_id, policies.limits_at(client_id, grant_type=grant)
