"""Limits, plans, clients, grant types, endpoints and canary: from the file to a ``PolicySet``."""

import socket
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from oauth_ratelimit.config.errors import Problems, did_you_mean, dotted, show, without_address
from oauth_ratelimit.config.notation import MAX_RATES_LENGTH, RATES_NOTATION, RATES_PATTERN, parse_rates
from oauth_ratelimit.config.types import (
    FLAG,
    ConfigKey,
    ValueType,
    choice,
    list_of,
    map_of,
    number,
    oauth_text,
    or_null,
    seconds,
    section,
    text,
    unique,
    whole,
)
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import (
    CLIENT_CREDENTIALS,
    COMMON_NAMES,
    MAX_LIMIT,
    MAX_POLICIES,
    MAX_POLICY_NAME_LENGTH,
    POLICY_NAME_PATTERN,
    STANDARD_GRANTS,
    TOKEN_ENDPOINT,
    LimitKind,
    Limits,
    OnLimit,
    OwnLimits,
    Policy,
    PolicySet,
    Rules,
    full_grant_type,
)
from oauth_ratelimit.core.window import MAX_FRAMES, MAX_WINDOW_S, Estimator, Window

BUILT_IN_LIMITS = {
    "client": [{"limit": 9000, "window": "60s"}],
    "user": [{"limit": 10, "window": "1s"}, {"limit": 50, "window": "10s"}],
    "client_total": [],
    "user_total": [],
}

FRAMES = f"a whole number from 1 to {MAX_FRAMES} that divides the window, because a document holds them all"
COUNTED = "count_denied counts what reuse counts nowhere"
NO_TOKEN = "only the token endpoint answers with a token, and only a client_credentials request gets it again"
TOO_MANY = f"limits, allowed: at most {MAX_POLICIES}, because each key counts in all"
OF_A_USER = "a user's token is never given out again; reuse is for the kinds client and client_total"

_MODE = choice(Mode)
# YAML 1.1 reads a bare off as false.
MODE = _MODE._replace(parse=lambda value, at, problems: _MODE.parse("off" if value is False else value, at, problems))

ENABLED = ConfigKey("enabled", FLAG, default=True)
SWITCH = (ConfigKey("mode", or_null(MODE)), ENABLED)


def switched(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return a builder that also takes ``enabled``: if it is false, the mode is off."""
    return lambda *, enabled, **values: build(**values if enabled else {**values, "mode": Mode.OFF})


def _check_frames(values: Mapping[str, Any], at: str, problems: Problems) -> None:
    window_s, frames = values.get("window"), values.get("frames")
    if window_s and frames and window_s % frames:
        allowed = f"a number that divides the window of {window_s} s into whole seconds"
        problems.bad_value(dotted(at, "frames"), frames, allowed)


def _policy(*, window: int, name: str | None = None, frames: int | None = None, **others: Any) -> Policy:
    """Return a policy. If it has no name yet, its list will name it."""
    return Policy(name=name or "", window=Window.of(window, frames), **others)


LIMIT = section(
    "One limit",
    "Largest number of requests in any window of time.",
    (
        *SWITCH,
        ConfigKey("limit", whole(1, MAX_LIMIT, f"a whole number from 1 to 2^53 ({MAX_LIMIT})"), is_required=True),
        ConfigKey("window", seconds(1, MAX_WINDOW_S, "1 s to 366 days", is_whole=True), is_required=True),
        ConfigKey(
            "name",
            or_null(
                text(
                    f"1 to {MAX_POLICY_NAME_LENGTH} printable ASCII characters other than quotation mark and "
                    "backslash, no space at the ends",
                    pattern=POLICY_NAME_PATTERN,
                    longest=MAX_POLICY_NAME_LENGTH,
                )
            ),
        ),
        ConfigKey("frames", or_null(whole(1, MAX_FRAMES, FRAMES))),
        ConfigKey("estimator", choice(Estimator), default="sliding"),
        ConfigKey("count_denied", FLAG, default=False),
        ConfigKey("on_limit", choice(OnLimit), default="deny"),
    ),
    build=switched(_policy),
    check=_check_frames,
)


def content_of(policy: Policy) -> dict[str, object]:
    """Return a limit as a configuration holds it."""
    return {
        "name": policy.name,
        "limit": policy.limit,
        "window": policy.window.window_s,
        "frames": policy.window.frame_count,
        "estimator": policy.estimator.value,
        "count_denied": policy.count_denied,
        "on_limit": policy.on_limit.value,
        **({"mode": policy.mode.value} if policy.mode else {}),
    }


def parse_content(value: object) -> Policy:
    """Return the limit in such a mapping. Raises ``ConfigError`` for anything else."""
    problems = Problems()
    policy: Policy | None = LIMIT.parse(value, "limit", problems)
    if policy is not None and not policy.name:
        problems.add("limit.name", "is missing")
    if problems or policy is None:
        raise problems.error(source="")
    return policy


def _parse_item(refusal: str, value: object, at: str, problems: Problems) -> tuple[Policy, ...]:
    if isinstance(value, Mapping):
        policy = LIMIT.parse(value, at, problems)
        if policy and policy.on_limit is OnLimit.REUSE and (reason := refusal or (policy.count_denied and COUNTED)):
            problems.bad_value(dotted(at, "on_limit"), OnLimit.REUSE.value, f"deny, because {reason}")
        return (policy,) if policy else ()
    try:
        if not isinstance(value, str):
            raise ValueError(f"a mapping with limit and window, or {RATES_NOTATION}")
        return _policies_of(value)
    except ValueError as exc:
        problems.bad_value(at, value, str(exc))
        return ()


@lru_cache(maxsize=1000)
def _policies_of(text: str) -> tuple[Policy, ...]:
    rates = parse_rates(text)
    if not all(1 <= limit <= MAX_LIMIT and 1 <= window_s <= MAX_WINDOW_S for limit, window_s in rates):
        raise ValueError("1 to 2^53 requests per 1 second to 366 days")
    return tuple(Policy("", limit, Window.of(window_s)) for limit, window_s in rates)


# An item of a list of limits: a mapping is one limit, text in the notation of the limits library one or more.
_ITEM = ValueType(
    partial(_parse_item, ""),
    {"anyOf": [LIMIT.schema, {"type": "string", "pattern": RATES_PATTERN, "maxLength": MAX_RATES_LENGTH}]},
    f"{LIMIT.words}, or {RATES_NOTATION}",
    LIMIT.sections,
    example='"100/minute"',
)


def limits_key(kind: str, *, prefix: str = "") -> ConfigKey:
    """Return the key of a list of limits. ``prefix`` names its only limit, and several with their windows."""
    item = _ITEM
    if prefix or kind in (LimitKind.USER, LimitKind.USER_TOTAL):
        item = _ITEM._replace(parse=partial(_parse_item, NO_TOKEN if prefix else OF_A_USER))
    return ConfigKey(kind, list_of(item, build=partial(_named, prefix or kind), most=MAX_POLICIES, too_many=TOO_MANY))


def _named(prefix: str, items: list[tuple[Policy, ...]]) -> tuple[Policy, ...]:
    policies = [policy for item in items for policy in item]
    if len(policies) == 1:
        return (policies[0] if policies[0].name else policies[0]._replace(name=prefix),)
    if len(policies) > MAX_POLICIES:
        raise ValueError(f"got {len(policies)} {TOO_MANY}")
    names = [policy.name or f"{prefix}-{policy.window.window_s}s" for policy in policies]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"several limits have the name {', '.join(doubled)}; give each a name of its own")
    return tuple(policy._replace(name=name) for policy, name in zip(policies, names, strict=True))


_KINDS = tuple(limits_key(kind) for kind in ("client", "user", "client_total"))
_WORDS = f"Limits by what they count, at most {MAX_POLICIES} of a kind. All that apply to a request must admit it."
DEFAULT_LIMITS = section("limits", _WORDS, (*_KINDS, limits_key("user_total")), build=OwnLimits)
LIMITS = section("Own limits", "Limits of some clients or requests, by what they count.", _KINDS, build=OwnLimits)


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
PATTERN = text("text of 1 to 1024 characters, with * ? [] as in a shell", shortest=1, longest=1024)._replace(
    words="[pattern](#other-endpoints)"
)


def name_under(section: str) -> ValueType:
    """Return the type of names that a section of the same file has to contain."""

    def parse(value: object, at: str, problems: Problems) -> Any:
        name, existing = NAME.parse(value, at, problems), problems.document.get(section)
        names = existing if isinstance(existing, Mapping) else {}
        if name is not None and name not in names:
            known = [without_address(str(each)) for each in names]
            allowed = ", ".join(known) or f"none, because {section} is empty"
            problems.add(at, f"got {show(name)}, allowed: {allowed}{did_you_mean(name, known)}")
        return name

    return NAME._replace(parse=parse, words=f"a name under {section}")


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
