"""Records for programs: the JSON of the command line and of the admin page."""

import math
from collections.abc import Mapping
from typing import Any

from oauth_ratelimit.core.denial_record import DenialRecord
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Origin, Override, Target
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.format import policy_text, utc_time

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
