"""Values as text for people: durations, times, limits, origins."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.overrides import Origin
from oauth_ratelimit.core.policy import OnLimit, Policy, PolicySet

MAX_SHOWN = 40  # characters of a name in a list or a sentence


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
    """Return a number such as ``1,200``, ``12`` or ``1.2``: below ten with one digit, unless it is whole."""
    return f"{value:,.0f}" if abs(value) >= 9.95 or value == int(value) else f"{value:.1f}"


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


def policy_text(policy: Policy) -> str:
    """Return a limit such as ``user: 100/minute``."""
    mode = f" {policy.mode.value}" if policy.mode else ""
    reuse = " reuse" if policy.on_limit is OnLimit.REUSE else ""
    return f"{policy.name}: {rate_text(policy.limit, policy.window.window_s)}{mode}{reuse}"


def origin_text(origin: Origin) -> str:
    """Return the origin of a value: a configuration key, or an override with author and reason."""
    override = origin.override
    if override is None:
        is_specific = "." in origin.name or "[" in origin.name
        return origin.name if is_specific else f"{origin.name}, for everybody"
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
    return name if len(name) <= at_most else f"{name[: at_most - 1]}…"
