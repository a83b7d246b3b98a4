"""What there is to see, as plain data for programs."""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from oauth_ratelimit.core.denial_record import DenialRecord, decision_id_of
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Origin, Override, Target
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.statistics import Tally
from oauth_ratelimit.core.what_if import Effect
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat


def duration(seconds: float) -> str:
    """Return a duration for people, rounded up to whole seconds: somebody who comes early comes in vain."""
    if math.isinf(seconds):
        return "never"
    whole = math.ceil(seconds)
    for unit_s, unit, rest_s, rest in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            more = whole % unit_s // rest_s
            return f"{whole // unit_s} {unit}" + (f" {more} {rest}" if more else "")
    return f"{whole} s"


def counted(count: int, word: str) -> str:
    """Return a number of things: ``1 instance``, ``2 instances``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def moment(at_s: float) -> str:
    """Return a time for people and programs."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


LATE_AFTER_S = 30.0  # three heartbeats

Record = dict[str, object]


def nearest(usages: Iterable[LimitUsage], count: int) -> list[LimitUsage]:
    """Return those that have used up most of their limit, the first one first."""
    return heapq.nlargest(count, usages, key=attrgetter("used_ratio"))


def usage_data(usage: LimitUsage) -> Record:
    """Return where a key stands."""
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


def beat_data(beat: Heartbeat, now_s: float) -> Record:
    """Return what an instance has last said of itself."""
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
        "clock_offset_s": beat.clock_offset_s,
    }


def target_data(target: Target | Counters) -> Record:
    """Return what an override or a reset is about."""
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
        "at": moment(override.made_at_s),
        "until": None if override.until_s is None else moment(override.until_s),
    }


def entry_data(entry: HistoryEntry) -> Record:
    """Return one thing that was done."""
    override = entry.override
    return {
        "action": entry.action,
        **target_data(entry.target),
        "mode": override and override.mode and override.mode.value,
        "limits": [policy_text(policy) for policy in override.policies] if override else [],
        "by": entry.author,
        "reason": entry.reason,
        "at": moment(entry.at_s),
        "until": None if override is None or override.until_s is None else moment(override.until_s),
        "username": entry.target.username if isinstance(entry.target, Counters) else None,
    }


def tally_data(tally: Tally, *, every: int = 1) -> Record:
    """Return what became of requests, of which every n-th minute was read."""
    names = ("offered", "issued", "denied", "would_deny", "trusted", "retries")
    return {name: getattr(tally, name) * every for name in names}


def effects_data(effects: Sequence[Effect]) -> Record:
    """Return what another limit would have done to all together."""
    return {
        "offered": sum(effect.offered for effect in effects),
        "denied": sum(effect.denied for effect in effects),
        "at_least": sum(effect.at_least for effect in effects),
        "at_most": sum(effect.at_most for effect in effects),
        "bearer_count": len(effects),
        "concerned_count": sum(effect.denied > 0 for effect in effects),
    }


def bearer_data(effect: Effect) -> Record:
    """Return what another limit would have done to one client or user."""
    return {
        "client_id": effect.bearer.client_id,
        "username": effect.bearer.username,
        "offered": effect.offered,
        "denied": effect.denied,
        "at_least": effect.at_least,
        "at_most": effect.at_most,
    }


def origin_data(layer: Origin) -> Record:
    """Return where a value comes from."""
    override = layer.override
    if override is None:
        return {"layer": layer.name}
    until = None if override.until_s is None else moment(override.until_s)
    return {"layer": layer.name, "by": override.author, "reason": override.reason, "until": until}


def finite(value: Any) -> Any:
    """Return a value as JSON can have it: numbers rounded to thousandths, and none that are infinite."""
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def policy_text(policy: Policy) -> str:
    """Return a limit in a few words."""
    mode = f" {policy.mode.value}" if policy.mode else ""
    return f"{policy.name}: {policy.limit}/{policy.window.window_s}s{mode}"


def origin_text(layer: Origin) -> str:
    """Return where a value comes from, for people."""
    override = layer.override
    if override is None:
        return layer.name if "." in layer.name or "[" in layer.name else f"{layer.name}, for everybody"
    end = "" if override.until_s is None else f" until {moment(override.until_s)}"
    return f"override by {override.author}{end}: {override.reason}"


def denial_data(record: DenialRecord, position: int) -> Record:
    """Return a denial.

    Args:
        record: The logged one that it belongs to.
        position: How many it came after that.
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
        "first_at": moment(denial.at_s),
        "last_at": moment(record.last_at_s),
        "suppressed_count": record.suppressed_count,
        "instance": record.instance,
        "trace_id": denial.trace.trace_id,
        "request_id": denial.trace.request_id,
    }
