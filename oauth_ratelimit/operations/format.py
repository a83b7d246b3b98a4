"""Values and configurations as text for people, and as records for programs: the JSON of commands and admin page."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, chain
from shlex import quote
from typing import Any
from unicodedata import combining, east_asian_width

from oauth_ratelimit.config import Settings, StoreSettings
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.settings import AUTO, OFF
from oauth_ratelimit.core.denial_record import DenialRecord
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Origin, Override, Target
from oauth_ratelimit.core.policy import LimitKind, OnLimit, Policy, PolicySet, Rules
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.store.mongo.client import servers_of

MAX_SHOWN = 40  # characters of a name in a list or a sentence
PLAIN_NAME = re.compile(r"[\w.@/~+-]+")  # of one word
NO_LIMIT = "no limit"
NOT_SHARED = "none: nothing is shared with other hosts"
NO_FILE = "none: this process shares no file"
HOST_TEXTS = {
    AUTO: "auto: the workers of a server on one machine count together",
    OFF: "off: each process counts alone",
}
NOT_SHARED_WARNING = (
    "limits are enforced with host: off and without store.uri: each process counts alone, so N processes admit N times "
    "the limit"
)
NO_CEILING_WARNING = (
    "guard.limits.passed_on_total: got none, so whoever stole a client's secret can guess passwords of its users "
    'without end; give it a limit, such as ["1000 per 10 minute"]'
)
EVERYBODY_TRUSTED = 'trusted_clients: got "*", so every client is trusted: no request is limited, counted or reported'
MAX_NAMED = 5  # names in a sentence
MAX_NAMES = 20  # in the log line; check-config shows all


def duration(seconds: float) -> str:
    """Return a duration such as ``3 min 20 s``, rounded up to whole seconds."""
    if math.isinf(seconds):
        return "never"
    whole = math.ceil(seconds)
    for unit_s, unit, rest_s, rest in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            more = whole % unit_s // rest_s
            return f"{whole // unit_s} {unit}" + (f" {more} {rest}" if more else "")
    return f"{whole} s"


def next_text(usage: Mapping[str, Any]) -> str | None:
    """Return when the next request is admitted; None if that is not known."""
    seconds = usage["retry_after_s"]
    return "now" if seconds == 0 else seconds and duration(seconds)


def limit_text(record: Mapping[str, Any]) -> str:
    """Return the limit in a record, such as ``user: 100/minute``; a dash if it is not known."""
    rate = rate_text(record["limit"], record["window_s"]) if record["limit"] and record["window_s"] else ""
    return ": ".join(filter(None, (record["policy"], rate))) or "–"


def number(value: float) -> str:
    """Return a number such as ``1,200``, ``12`` or ``1.2``: below ten with one digit, unless it is 0."""
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:.1f}".removesuffix(".0")


def rounded_down(value: float) -> int:
    """Return a number with two digits that people can read, not above the value."""
    unit = int(10 ** max(0, math.floor(math.log10(max(1.0, abs(value)))) - 1))
    return math.floor(value / unit) * unit


def rounded_up(value: float) -> int:
    """Return the same, not below the value."""
    return -rounded_down(-value)


def counted(count: int, word: str) -> str:
    """Return a number with its noun: ``1 instance``, ``2 instances``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def utc_time(at_s: float) -> str:
    """Return a time such as ``2026-12-01T00:00:00Z``."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def client_text(client_id: str) -> str:
    """Return a client id, cut where it is long, and in words the one under which the guard denies an address."""
    return "any client (*)" if client_id == ANYONE else short(client_id)


def policy_text(policy: Policy) -> str:
    """Return a limit such as ``user: 100/minute``."""
    mode = f" {policy.mode.value}" if policy.mode else ""
    reuse = " reuse" if policy.on_limit is OnLimit.REUSE else ""
    return f"{policy.name}: {rate_text(policy.limit, policy.window.window_s)}{mode}{reuse}"


def change_text(entry: HistoryEntry) -> str:
    target = entry.target
    if isinstance(target, Counters):
        what = "counters set to zero"
    elif entry.override is None:
        what = f"override removed, {_target_text(target)}"
    else:
        what = override_text(entry.override)
    return f"{what} for {'everybody' if target.client_id is None else quoted(target.client_id)}"


def override_text(override: Override) -> str:
    if override.mode is not None:
        percent = override.canary_percent
        return f"mode {override.mode.value}{'' if percent is None else f' with canary {percent:g} %'}"
    kind, limits = override.target.limit_kind, ", ".join(map(policy_text, override.policies)) or "none"
    return _target_text(override.target) + (f" {limits.removeprefix(f'{kind}: ')}" if kind else "")


def _target_text(target: Target) -> str:
    return target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"


def origin_text(origin: Origin) -> str:
    """Return the origin of a value: a configuration key, or an override with author and reason."""
    override = origin.override
    if override is None:
        is_specific = "." in origin.name or "[" in origin.name
        name = "the configuration" if origin.name == "mode" else origin.name
        return name if is_specific else f"{name}, for everybody"
    end = "" if override.until_s is None else f" until {utc_time(override.until_s)}"
    return f"override by {override.author}{end}: {override.reason}"


def canary_text(canary: Canary | None) -> str:
    """Return the share of clients or the instances of a canary."""
    if canary is None:
        return "none"
    if canary.instances:
        return f"instances {', '.join(canary.instances)}"
    return f"{canary.percent:g} % of the clients"


def mode_text(policies: PolicySet) -> str:
    """Return the global mode, such as ``enforce for 5 % of the clients``."""
    is_partial = policies.mode is Mode.ENFORCE and policies.canary is not None
    return f"{policies.mode.value} for {canary_text(policies.canary)}" if is_partial else policies.mode.value


def mode_source_text(policies: PolicySet | None, origin: Origin) -> str:
    """Return where the global mode comes from; beside an override also the mode of the file's policies, if known."""
    if origin.override is None:
        return "the configuration"
    return origin_text(origin) + (f"; the configuration has {mode_text(policies)}" if policies else "")


def spared_text(spared: int, denied: int) -> str:
    """Return how many denials reuse would have spared: ``12 of 16, 75 %``."""
    return f"{spared:,} of {denied:,}" + (f", {percent_text(spared / denied)}" if denied else "")


def percent_text(share: float) -> str:
    """Return a share such as ``13 %``, never rounded to nothing or to all."""
    rounded = ((0, 0.01, "< 1 %"), (0.99, 1, "> 99 %"), (1, 1.005, "> 100 %"))
    return next((text for low, high, text in rounded if low < share < high), f"{share * 100:,.0f} %")


def instance_text(instance: str) -> str:
    """Return the name of an instance for people: its worker's process id and host; another name as it is."""
    host, *rest = visible_name(instance).rsplit(":", 2)
    return f"worker {rest[0]} on {host}" if len(rest) == 2 else visible_name(instance)


def short(name: str, at_most: int = MAX_SHOWN) -> str:
    """Return a name without invisible characters, cut where it is long; it stands whole where it is looked at."""
    name = visible_name(name)
    if width_of(name) <= at_most:
        return name
    ends = accumulate(map(width_of, name))
    return f"{name[: sum(end < at_most for end in ends)]}…"


def width_of(text: str) -> int:
    """Return the cells that a text takes in a terminal: two for wide letters and emoji, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in ("W", "F") else 1 for each in text)


def whole(name: str) -> str:
    """Return a name where it is looked at: with a note if it has escapes, so that it differs from one that has not."""
    return name if name.isprintable() else f"{visible_name(name)} (with escapes)"


def quoted(name: str) -> str:
    """Return the same for a sentence: in quotes if it may be read as several words of it."""
    return short(name) if PLAIN_NAME.fullmatch(name) else f"'{short(name)}'"


def about(who: str, text: str) -> str:
    """Return a sentence as one about somebody; as it is if it is clear about whom."""
    return f"{who}: {text[0].lower()}{text[1:]}" if who else text


def typed_name(name: str, word: str = "client") -> str:
    """Return a name for a command line: anybody can make up one that a shell, or our command, would obey."""
    found = quote(visible_name(name))
    return f"--{word}={found}" if name.startswith("-") else found


Record = dict[str, Any]

OF_DENIAL = (
    *("decision_id", "client_id", "username", "scope", "grant_type"),
    *("policy", "limit", "window_s", "mode", "retry_after_s"),
)


def usage_data(usage: LimitUsage) -> Record:
    return {
        "client_id": usage.key.client_id,
        "username": usage.key.username,
        "scope": usage.key.scope,
        "kind": usage.kind.value,
        "policy": usage.policy.name,
        "mode": usage.mode.value,
        "on_limit": usage.policy.on_limit.value,
        "limit": usage.policy.limit,
        "window_s": usage.policy.window.window_s,
        "estimate": float(usage.estimate),
        "used_ratio": usage.used_ratio,
        "remaining": usage.remaining,
        "retry_after_s": usage.retry_after_s,
        "reset_after_s": usage.reset_after_s,
    }


def override_data(override: Override) -> Record:
    return _change_data(override.target, override, override.author, override.reason, override.made_at_s)


def entry_data(entry: HistoryEntry) -> Record:
    target = entry.target
    return {
        "action": entry.action,
        **_change_data(target, entry.override, entry.author, entry.reason, entry.at_s),
        "username": target.username if isinstance(target, Counters) else None,
    }


def _change_data(target: Target | Counters, override: Override | None, author: str, reason: str, at_s: float) -> Record:
    return {
        "kind": target.kind if isinstance(target, Target) else "counters",
        "client_id": target.client_id,
        "limit_kind": target.limit_kind if isinstance(target, Target) else None,
        "mode": override and override.mode,
        "canary_percent": override and override.canary_percent,
        "limits": list(map(policy_text, override.policies)) if override else [],
        "until": override and _end(override),
        "by": author,
        "reason": reason,
        "at": utc_time(at_s),
    }


def _end(override: Override) -> str | None:
    return None if override.until_s is None else utc_time(override.until_s)


def origin_data(origin: Origin) -> Record:
    override = origin.override
    if override is None:
        return {"layer": origin.name}
    return {"layer": origin.name, "by": override.author, "reason": override.reason, "until": _end(override)}


def json_safe(value: Any) -> Any:
    """Return a value that fits JSON: floats rounded to thousandths, infinity and NaN as None."""
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


def denial_data(record: DenialRecord) -> Record:
    denial = record.denial
    return {
        **{name: getattr(denial, name) for name in OF_DENIAL},
        "where": denial.where.value,
        "canary": denial.is_canary,
        "first_at": utc_time(denial.at_s),
        "last_at": utc_time(record.last_at_s),
        "suppressed_count": record.suppressed_count,
        "request_count": record.request_count,
        "instance": record.instance,
        "trace_id": denial.trace.trace_id,
        "request_id": denial.trace.request_id,
    }


def limits_by_kind(policies: PolicySet) -> dict[str, str]:
    """Return the default limits of the token endpoint by kind, such as ``{"user": "10/second, 50/10s"}``."""
    limits = policies.limits
    return {kind.value: ", ".join(map(_limit_text, getattr(limits, kind.value))) or NO_LIMIT for kind in LimitKind}


def _limit_text(policy: Policy) -> str:
    mode = f" ({policy.mode.value})" if policy.mode else ""
    reuse = " (on_limit: reuse)" if policy.on_limit is OnLimit.REUSE else ""
    return f"{rate_text(policy.limit, policy.window.window_s)}{mode}{reuse}"


def store_text(store: StoreSettings) -> str:
    """Return servers, database and collection of the store, without user, password and options."""
    if store.uri is None:
        return NOT_SHARED
    collection = f"{store.namespace}_{store.collection}" if store.namespace else store.collection
    servers = servers_of(store.uri)
    place = f"{servers}/{store.database}" if servers else "an address that is not shown"
    return f"{place}, collection {collection}"


def listed(names: Iterable[str], *, at_most: int = MAX_NAMED) -> str:
    """Return names in a sentence: the first ones, and how many more there are."""
    return ", ".join(names_text(list(names), at_most=at_most))


def names_text(names: Sequence[str], *, at_most: int = MAX_NAMES) -> list[str]:
    """Return names for a log line: the first ones, and how many more there are."""
    more = len(names) - at_most
    return [*names[:at_most], f"and {more} more"] if more > 0 else list(names)


def warnings_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what an operator should know about a valid configuration: the event that logs it, and a sentence."""
    if settings.store.uri is None and settings.host == OFF and enforces(settings.policies):
        yield "counters_not_shared", NOT_SHARED_WARNING
    if "*" in settings.policies.trusted:
        yield "everybody_trusted", EVERYBODY_TRUSTED
    if settings.is_guarded and not settings.guard.limits.passed_on_total:
        yield "guard_without_ceiling", NO_CEILING_WARNING
    for text in settings.warnings:
        yield "config_key_ignored", text


def not_enforced(policies: PolicySet) -> list[str]:
    """Return what has a mode of its own in which nobody is denied, such as ``nightly (dry-run)``."""
    return [f"{name} ({mode})" for name, mode in _own_modes(policies) if mode not in (None, Mode.ENFORCE)]


def enforces(policies: PolicySet) -> bool:
    if policies.mode is Mode.OFF or policies.ceiling is not None:
        return False
    return Mode.ENFORCE in {policies.mode, *(mode for _, mode in _own_modes(policies))}


def _own_modes(rules: PolicySet | Rules, place: str = "") -> Iterator[tuple[str, Mode | None]]:
    """Yield each section and limit, and the mode that it has of its own."""
    sections = {"grant ": rules.grants, "endpoint ": rules.endpoints}
    if isinstance(rules, PolicySet):
        sections = {"": rules.clients, "plan ": rules.plans, **sections}
    for kind, found in sections.items():
        for name, each in found.items():
            here = f"{kind}{quoted(name)}{place}"
            yield here, each.mode
            yield from _own_modes(each, f" of {here}")
    for policy in chain.from_iterable(filter(None, rules.limits or ())):
        yield f"limit {policy.name}{place}", policy.mode


def summary_data(settings: Settings) -> dict[str, object]:
    policies, privacy = settings.policies, settings.privacy
    return {
        "mode": policies.mode.value,
        "canary": canary_text(policies.canary),
        "limits": limits_by_kind(policies),
        "store": store_text(settings.store),
        "host": HOST_TEXTS.get(settings.host, settings.host),
        "trusted_clients": [*policies.trusted, *policies.trusted_ids],
        "clients": list(policies.clients),
        "grants": policies.named_grants,
        "endpoints": list(policies.endpoints),
        "guard": settings.guard.mode.value,
        "user_names": "plain" if privacy.key is None else f"hashed under {privacy.key}",
        "former_keys": list(map(str, privacy.former_keys)),
    }
