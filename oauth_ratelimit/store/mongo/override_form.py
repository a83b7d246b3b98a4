"""
The form of an override in MongoDB, and of an entry in the history.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bson import Int64

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, LimitKind, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICY_NAME_LENGTH, POLICY_NAME_PATTERN, Policy
from oauth_ratelimit.core.window import MAX_FRAMES, MAX_WINDOW_S, Estimator, Window
from oauth_ratelimit.store.mongo.client import Document

COUNTERS = "counters"  # the kind of the documents about resets; no override's
MAX_LIMITS = 100  # of one kind: each is a bucket in every key


def compose_target(target: Target) -> Document:
    """
    Return a target's ``_id``. The order of its fields is part of it.
    """
    identity: Document = {"kind": target.kind.value, "clientId": target.client_id}
    if target.limit_kind is not None:
        identity["limitKind"] = target.limit_kind.value
    return identity


def compose_override(override: Override) -> Document:
    """
    Return what a document says of an override besides its target.
    """
    return {
        "by": override.author,
        "reason": override.reason,
        "at": date_of(override.made_at_s),
        "until": None if override.until_s is None else date_of(override.until_s),
        "mode": override.mode and override.mode.value,
        "limits": [_compose_policy(policy) for policy in override.policies],
    }


def parse_override(identity: Mapping[str, Any], content: Mapping[str, Any]) -> Override:
    """
    Return the override that a document holds.

    Raises:
        KeyError, TypeError, ValueError: It holds none.
    """
    until = content["until"]
    return Override(
        target=parse_target(identity),
        author=_text(content["by"]),
        reason=_text(content["reason"]),
        made_at_s=_seconds(content["at"]),
        until_s=None if until is None else _seconds(until),
        policies=tuple(_parse_policy(limit) for limit in _mappings(content["limits"], MAX_LIMITS)),
        mode=None if content["mode"] is None else Mode(content["mode"]),
    )


def parse_target(identity: Mapping[str, Any]) -> Target:
    """
    Return the target of an ``_id``.

    Raises:
        KeyError, TypeError, ValueError: It names none.
    """
    client_id, limit_kind = identity["clientId"], identity.get("limitKind")
    return Target(
        kind=OverrideKind(identity["kind"]),
        client_id=None if client_id is None else _text(client_id),
        limit_kind=None if limit_kind is None else LimitKind(limit_kind),
    )


def _compose_policy(policy: Policy) -> Document:
    return {
        "name": policy.name,
        "limit": Int64(policy.limit),
        "window": policy.window.window_s,
        "frames": policy.window.frame_count,
        "estimator": policy.estimator.value,
        "countDenied": policy.count_denied,
        "mode": policy.mode and policy.mode.value,
    }


def _parse_policy(content: Mapping[str, Any]) -> Policy:
    frame_count, mode = content.get("frames"), content.get("mode")
    return Policy(
        name=_policy_name(content["name"]),
        limit=_whole(content["limit"], MAX_LIMIT),
        window=Window.of(
            _whole(content["window"], MAX_WINDOW_S),
            frame_count=None if frame_count is None else _whole(frame_count, MAX_FRAMES),
        ),
        estimator=Estimator(content.get("estimator", Estimator.SLIDING)),
        count_denied=content.get("countDenied") is True,
        mode=None if mode is None else Mode(mode),
    )


def parse_entry(identity: Mapping[str, Any], entry: Mapping[str, Any]) -> HistoryEntry:
    """
    Return an entry in the history of a document.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    return HistoryEntry(
        target=_parse_counters(identity, entry) if identity["kind"] == COUNTERS else parse_target(identity),
        author=_text(entry["by"]),
        reason=_text(entry["reason"]),
        at_s=_seconds(entry["at"]),
        override=parse_override(identity, entry) if entry["action"] == "set" else None,
    )


def compose_reset(counters: Counters, *, author: str, reason: str, at_s: float) -> Document:
    """
    Return the entry about counters that were set to zero. The user stands in it, not in the ``_id``: the one can be
    erased and the other not.
    """
    entry = {"action": "reset", "by": author, "reason": reason, "at": date_of(at_s)}
    return entry if counters.username is None else {**entry, "username": counters.username}


def _parse_counters(identity: Mapping[str, Any], entry: Mapping[str, Any]) -> Counters:
    username = entry.get("username")
    return Counters(_text(identity["clientId"]), None if username is None else _text(username))


def date_of(at_s: float) -> datetime:
    """
    Return a time as MongoDB keeps it.
    """
    return datetime.fromtimestamp(at_s, UTC)


def _seconds(value: object) -> float:
    if not isinstance(value, datetime):
        raise TypeError(f"expected a date, got {type(value).__name__}")
    return value.timestamp() if value.tzinfo else value.replace(tzinfo=UTC).timestamp()


def _whole(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"expected a whole number from 1 to {most}, got {value!r}")
    return int(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def _policy_name(value: object) -> str:
    """
    Return a name as the configuration takes it: it stands in headers, logs and metrics.
    """
    name = _text(value)
    if len(name) > MAX_POLICY_NAME_LENGTH or not re.fullmatch(POLICY_NAME_PATTERN, name):
        raise ValueError(f"expected the name of a limit, got {name!r}")
    return name


def _mappings(value: object, most: int) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
        raise TypeError(f"expected a list of up to {most} mappings, got {value!r}")
    return value
