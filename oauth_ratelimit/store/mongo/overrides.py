"""Overrides in MongoDB: one document per target with its history, and one per client with the resets of its counters.

Readers check one small document, the revision, and read the overrides when it has changed. An override that was
edited by hand, without a new revision, is found by the next unconditional read.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from bson import Int64, ObjectId
from pymongo.collection import Collection

from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICY_NAME_LENGTH, POLICY_NAME_PATTERN, LimitKind, Policy
from oauth_ratelimit.core.window import MAX_FRAMES, MAX_WINDOW_S, Estimator, Window
from oauth_ratelimit.store.mongo.client import OVERRIDES, Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MALFORMED, date_of, is_text

log = structlog.get_logger(__name__)

REVISION_ID = "revision"  # no target has it: their ids are mappings
RESETS = "counters"  # the kind of the documents about resets; no override has it
MAX_HISTORY = 1000  # entries of one document, whose size is bounded
MAX_LIMITS = 100  # of one kind: each is a bucket in every key
MAX_LOGGED = 300  # characters of what is wrong with a document


class OverrideStore:
    """The overrides of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def revision(self) -> str | None:
        """Return the revision, which is new with every change; None before the first."""
        with translated_errors():
            document = self._collection().find_one({"_id": REVISION_ID})
        return str(document.get("value")) if document else None

    def read(self) -> tuple[Override, ...]:
        """Return the overrides that were not removed, ended ones included. Logs those that cannot be read."""
        with translated_errors():
            found = list(self._collection().find({"active": True}, {"history": False}).sort("at"))
        overrides = []
        for document in found:
            try:
                overrides.append(parse_override(document["_id"], document))
            except MALFORMED as exc:
                _log_ignored(document["_id"], exc)
        return tuple(overrides)

    def put(self, override: Override) -> None:
        """Apply an override in place of the one that its target had."""
        content = _compose_override(override)
        entry = {"action": "set", **content}
        update = {"$set": {"active": True, **content}, "$push": _appended(entry)}
        self._change(override.target, update)

    def remove(self, target: Target, *, author: str, reason: str, at_s: float) -> bool:
        """Remove an override. Return True if there was one."""
        entry = {"action": "unset", "by": author, "reason": reason, "at": date_of(at_s)}
        update = {"$set": {"active": False}, "$push": _appended(entry)}
        return self._change(target, update, only_active=True)

    def note_reset(self, counters: Counters, *, author: str, reason: str, at_s: float) -> None:
        """Record a reset of counters."""
        entry = _compose_reset(counters, author=author, reason=reason, at_s=at_s)
        with translated_errors():
            self._collection().update_one(
                {"_id": {"kind": RESETS, "clientId": counters.client_id}}, {"$push": _appended(entry)}, upsert=True
            )

    def history(self, client_id: str | None = None) -> list[HistoryEntry]:
        """Return all changes, oldest first. Logs those that cannot be read.

        Args:
            client_id: One client; None for all changes.
        """
        selected: Document = {"history": {"$exists": True}}
        if client_id is not None:
            selected["_id.clientId"] = {"$in": [client_id, storable_name(client_id)]}
        with translated_errors():
            found = list(self._collection().find(selected, {"history": True}))
        entries = []
        for document in found:
            history = document["history"]
            for entry in history if isinstance(history, list) else ():
                try:
                    entries.append(_parse_entry(document["_id"], entry))
                except MALFORMED as exc:
                    _log_ignored(document["_id"], exc)
        return sorted(entries, key=lambda entry: entry.at_s)

    def _change(self, target: Target, update: Document, *, only_active: bool = False) -> bool:
        selected: Document = {"_id": _compose_target(target)}
        if only_active:
            selected["active"] = True
        with translated_errors():
            collection = self._collection()
            result = collection.update_one(selected, update, upsert=not only_active)
            is_changed = bool(result.matched_count or result.upserted_id is not None)
            if is_changed:
                # Last, so that a reader of the new revision finds the change.
                collection.update_one({"_id": REVISION_ID}, {"$set": {"value": ObjectId()}}, upsert=True)
        return is_changed

    def _collection(self) -> Collection[Document]:
        return self._connection.collection(OVERRIDES)


def _appended(entry: Document) -> Document:
    """Return the operand of ``$push`` that appends an entry to a history."""
    return {"history": {"$each": [entry], "$slice": -MAX_HISTORY}}


def _log_ignored(identity: object, error: Exception) -> None:
    reason = visible_name(f"{type(error).__name__}: {error}"[:MAX_LOGGED])
    log.error("override_ignored", id=visible_name(repr(identity)[:MAX_LOGGED]), reason=reason)


def _compose_target(target: Target) -> Document:
    """Return a target's ``_id``. The order of its fields is part of it."""
    identity: Document = {"kind": target.kind.value, "clientId": target.client_id}
    if target.limit_kind is not None:
        identity["limitKind"] = target.limit_kind.value
    return identity


def _compose_override(override: Override) -> Document:
    """Return the fields of an override, besides its target."""
    return {
        "by": override.author,
        "reason": override.reason,
        "at": date_of(override.made_at_s),
        "until": None if override.until_s is None else date_of(override.until_s),
        "mode": override.mode and override.mode.value,
        "limits": [_compose_policy(policy) for policy in override.policies],
    }


def parse_override(identity: Mapping[str, Any], content: Mapping[str, Any]) -> Override:
    """Return the override in a document, or raise one of ``MALFORMED``."""
    until = content["until"]
    return Override(
        target=_parse_target(identity),
        author=_text(content["by"]),
        reason=_text(content["reason"]),
        made_at_s=_seconds(content["at"]),
        until_s=None if until is None else _seconds(until),
        policies=tuple(_parse_policy(limit) for limit in _mappings(content["limits"], MAX_LIMITS)),
        mode=None if content["mode"] is None else Mode(content["mode"]),
    )


def _parse_target(identity: Mapping[str, Any]) -> Target:
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


def _parse_entry(identity: Mapping[str, Any], entry: Mapping[str, Any]) -> HistoryEntry:
    """Return an entry of a history, or raise one of ``MALFORMED``."""
    return HistoryEntry(
        target=_parse_counters(identity, entry) if identity["kind"] == RESETS else _parse_target(identity),
        author=_text(entry["by"]),
        reason=_text(entry["reason"]),
        at_s=_seconds(entry["at"]),
        override=parse_override(identity, entry) if entry["action"] == "set" else None,
    )


def _compose_reset(counters: Counters, *, author: str, reason: str, at_s: float) -> Document:
    """Return the entry about a reset. The user is not in the ``_id``, because an ``_id`` cannot be erased."""
    entry = {"action": "reset", "by": author, "reason": reason, "at": date_of(at_s)}
    return entry if counters.username is None else {**entry, "username": counters.username}


def _parse_counters(identity: Mapping[str, Any], entry: Mapping[str, Any]) -> Counters:
    username = entry.get("username")
    return Counters(_text(identity["clientId"]), None if username is None else _text(username))


def _seconds(value: object) -> float:
    if not isinstance(value, datetime):
        raise TypeError(f"expected a date, got {type(value).__name__}")
    return value.timestamp() if value.tzinfo else value.replace(tzinfo=UTC).timestamp()


def _whole(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"expected a whole number from 1 to {most}, got {value!r}")
    return int(value)


def _text(value: object) -> str:
    if not is_text(value):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def _policy_name(value: object) -> str:
    """Return a name that the configuration would accept: it appears in headers, logs and metrics."""
    name = _text(value)
    if len(name) > MAX_POLICY_NAME_LENGTH or not re.fullmatch(POLICY_NAME_PATTERN, name):
        raise ValueError(f"expected the name of a limit, got {name!r}")
    return name


def _mappings(value: object, most: int) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
        raise TypeError(f"expected a list of up to {most} mappings, got {value!r}")
    return value
