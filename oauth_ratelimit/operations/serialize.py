"""Records for programs: the JSON of the command line and of the admin page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oauth_ratelimit.core.denial_record import DenialRecord, decision_id_of
from oauth_ratelimit.core.origin import Origin
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, Target
from oauth_ratelimit.core.statistics import Tally
from oauth_ratelimit.core.what_if import Effect
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.format import policy_text, utc_time
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat

Record = dict[str, object]

LATE_AFTER_S = 30.0  # three heartbeats


def usage_data(usage: LimitUsage) -> Record:
    """Return the usage of one limit by one key."""
    return {
        "client_id": usage.key.client_id,
        "username": usage.key.username,
        "scope": usage.key.scope,
        "kind": usage.kind.value,
        "policy": usage.policy.name,
        "mode": usage.mode.value,
        "limit": usage.policy.limit,
        "window_s": usage.policy.window.window_s,
        "estimate": usage.estimate,
        "used_ratio": usage.used_ratio,
        "remaining": usage.remaining,
        "retry_after_s": usage.retry_after_s,
        "reset_after_s": usage.reset_after_s,
    }


def heartbeat_data(beat: Heartbeat, now_s: float) -> Record:
    """Return the last heartbeat of an instance."""
    seen_s = max(0.0, now_s - beat.beat_at_s)
    return {
        "instance": beat.instance,
        "seen_s": seen_s,
        "is_late": seen_s > LATE_AFTER_S,
        "up_s": beat.beat_at_s - beat.started_at_s,
        "version": beat.version,
        "mode": beat.mode,
        "interval_s": beat.interval_s,
        "lag_s": beat.lag_s,
        "override_count": beat.override_count,
        "flushed_count": beat.flushed_count,
        "conflict_count": beat.conflict_count,
        "failure_count": beat.failure_count,
        "over_admitted_count": beat.over_admitted_count,
        "clock_offset_s": beat.clock_offset_s,
    }


def target_data(target: Target | Counters) -> Record:
    """Return the target of an override or a reset."""
    if isinstance(target, Counters):
        return {"kind": "counters", "client_id": target.client_id, "limit_kind": None}
    return {
        "kind": target.kind.value,
        "client_id": target.client_id,
        "limit_kind": target.limit_kind and target.limit_kind.value,
    }


def override_data(override: Override) -> Record:
    """Return an override."""
    return {
        **target_data(override.target),
        "mode": override.mode and override.mode.value,
        "limits": [policy_text(policy) for policy in override.policies],
        "by": override.author,
        "reason": override.reason,
        "at": utc_time(override.made_at_s),
        "until": None if override.until_s is None else utc_time(override.until_s),
    }


def entry_data(entry: HistoryEntry) -> Record:
    """Return one change from the history."""
    override = entry.override
    return {
        "action": entry.action,
        **target_data(entry.target),
        "mode": override and override.mode and override.mode.value,
        "limits": [policy_text(policy) for policy in override.policies] if override else [],
        "by": entry.author,
        "reason": entry.reason,
        "at": utc_time(entry.at_s),
        "until": None if override is None or override.until_s is None else utc_time(override.until_s),
        "username": entry.target.username if isinstance(entry.target, Counters) else None,
    }


def tally_data(tally: Tally, *, every: int = 1) -> Record:
    """Return request counts, scaled up if only every n-th minute was read."""
    names = ("offered", "issued", "denied", "would_deny", "trusted", "retries")
    return {name: getattr(tally, name) * every for name in names}


def effects_data(effects: Sequence[Effect]) -> Record:
    """Return the sum of the effects of another limit."""
    return {
        "offered": sum(effect.offered for effect in effects),
        "denied": sum(effect.denied for effect in effects),
        "at_least": sum(effect.at_least for effect in effects),
        "at_most": sum(effect.at_most for effect in effects),
        "bearer_count": len(effects),
        "concerned_count": sum(effect.denied > 0 for effect in effects),
    }


def bearer_data(effect: Effect) -> Record:
    """Return the effect of another limit on one client or user."""
    return {
        "client_id": effect.subject.client_id,
        "username": effect.subject.username,
        "offered": effect.offered,
        "denied": effect.denied,
        "at_least": effect.at_least,
        "at_most": effect.at_most,
    }


def origin_data(origin: Origin) -> Record:
    """Return the origin of a configured value."""
    override = origin.override
    if override is None:
        return {"layer": origin.name}
    until = None if override.until_s is None else utc_time(override.until_s)
    return {"layer": origin.name, "by": override.author, "reason": override.reason, "until": until}


def finite(value: Any) -> Any:
    """Return a value that fits JSON: floats rounded to thousandths, infinity and NaN as None."""
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def denial_data(record: DenialRecord, position: int) -> Record:
    """Return one denial.

    Args:
        record: The record of the logged denial that it belongs to.
        position: Its distance from the logged denial; 0 for the logged one itself.
    """
    denial = record.denial
    return {
        "decision_id": decision_id_of(denial.first_id + position),
        "logged_decision_id": decision_id_of(denial.first_id),
        "position": position,
        "is_recorded": position <= record.suppressed_count,
        "client_id": denial.client_id,
        "username": denial.username,
        "scope": denial.scope,
        "grant_type": denial.grant_type,
        "policy": denial.policy,
        "limit": denial.limit,
        "window_s": denial.window_s,
        "mode": denial.mode,
        "canary": denial.is_canary,
        "retry_after_s": denial.retry_after_s,
        "first_at": utc_time(denial.at_s),
        "last_at": utc_time(record.last_at_s),
        "suppressed_count": record.suppressed_count,
        "instance": record.instance,
        "trace_id": denial.trace.trace_id,
        "request_id": denial.trace.request_id,
    }
