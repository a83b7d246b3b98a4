"""Limits in the configuration file: a mapping with all options, or text in the notation of the limits library."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from oauth_ratelimit.config.errors import Problems, dotted
from oauth_ratelimit.config.notation import MAX_RATES_LENGTH, RATES_NOTATION, RATES_PATTERN, parse_rates
from oauth_ratelimit.config.types import FLAG, ConfigKey, Kind, choice, list_of, or_null, seconds, section, text, whole
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import (
    MAX_LIMIT,
    MAX_POLICIES,
    MAX_POLICY_NAME_LENGTH,
    POLICY_NAME_PATTERN,
    LimitKind,
    OnLimit,
    OwnLimits,
    Policy,
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
_ITEM = Kind(
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
