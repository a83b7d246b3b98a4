"""
Overrides in MongoDB: one document per target, with what was done to it; and one per client whose counters were set to
zero, because that is to be on record, too. Of each the latest thousand entries are kept.

Readers look at one small document, the revision, and read the overrides when it has changed. Somebody who edits
overrides by hand and leaves the revision alone is noticed with the next unconditional read.
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
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, LimitKind, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICY_NAME_LENGTH, POLICY_NAME_PATTERN, Policy
from oauth_ratelimit.core.window import MAX_FRAMES, MAX_WINDOW_S, Estimator, Window
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors

COUNTERS = "counters"  # the kind of the documents about resets; no override's
MAX_LIMITS = 100  # of one kind: each is a bucket in every key


def compose_target(target: Target) -> Document:
    """Return a target's ``_id``. The order of its fields is part of it."""
    identity: Document = {"kind": target.kind.value, "clientId": target.client_id}
    if target.limit_kind is not None:
        identity["limitKind"] = target.limit_kind.value
    return identity


def compose_override(override: Override) -> Document:
    """Return what a document says of an override besides its target."""
    return {
        "by": override.author,
        "reason": override.reason,
        "at": date_of(override.made_at_s),
        "until": None if override.until_s is None else date_of(override.until_s),
        "mode": override.mode and override.mode.value,
        "limits": [_compose_policy(policy) for policy in override.policies],
    }


def parse_override(identity: Mapping[str, Any], content: Mapping[str, Any]) -> Override:
    """Return the override that a document holds.

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
    """Return the target of an ``_id``.

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
    """Return an entry in the history of a document.

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
    """Return the entry about counters that were set to zero. The user stands in it, not in the ``_id``: the one can be
    erased and the other not.
    """
    entry = {"action": "reset", "by": author, "reason": reason, "at": date_of(at_s)}
    return entry if counters.username is None else {**entry, "username": counters.username}


def _parse_counters(identity: Mapping[str, Any], entry: Mapping[str, Any]) -> Counters:
    username = entry.get("username")
    return Counters(_text(identity["clientId"]), None if username is None else _text(username))


def date_of(at_s: float) -> datetime:
    """Return a time as MongoDB keeps it."""
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
    """Return a name as the configuration takes it: it stands in headers, logs and metrics."""
    name = _text(value)
    if len(name) > MAX_POLICY_NAME_LENGTH or not re.fullmatch(POLICY_NAME_PATTERN, name):
        raise ValueError(f"expected the name of a limit, got {name!r}")
    return name


def _mappings(value: object, most: int) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
        raise TypeError(f"expected a list of up to {most} mappings, got {value!r}")
    return value


HISTORY_KEPT = 1000  # entries of one document: a script may add one every minute, and a document has an end
MAX_SAID = 300  # characters of what is wrong with a document
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)  # what reading a strange document raises

log = structlog.get_logger(__name__)

OVERRIDES = "ratelimit_overrides"
REVISION_ID = "revision"  # no target's _id: those are mappings


class OverrideStore:
    """The overrides of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def revision(self) -> str | None:
        """Return what changes with every change; None before the first."""
        with translated_errors():
            document = self._collection().find_one({"_id": REVISION_ID})
        return str(document.get("value")) if document else None

    def read(self) -> tuple[Override, ...]:
        """Return the overrides that nobody has taken back, ended ones included. One that cannot be read is reported."""
        with translated_errors():
            found = list(self._collection().find({"active": True}, {"history": False}).sort("at"))
        overrides = []
        for document in found:
            try:
                overrides.append(parse_override(document["_id"], document))
            except DAMAGE as exc:
                _complain(document["_id"], exc)
        return tuple(overrides)

    def put(self, override: Override) -> None:
        """Put an override in force, instead of the one that its target had."""
        content = compose_override(override)
        entry = {"action": "set", **content}
        update = {"$set": {"active": True, **content}, "$push": _latest(entry)}
        self._change(override.target, update)

    def remove(self, target: Target, *, author: str, reason: str, at_s: float) -> bool:
        """Take an override back, and return whether there was one."""
        entry = {"action": "unset", "by": author, "reason": reason, "at": date_of(at_s)}
        update = {"$set": {"active": False}, "$push": _latest(entry)}
        return self._change(target, update, only_active=True)

    def note_reset(self, counters: Counters, *, author: str, reason: str, at_s: float) -> None:
        """Put on record that counters are set to zero."""
        entry = compose_reset(counters, author=author, reason=reason, at_s=at_s)
        with translated_errors():
            self._collection().update_one(
                {"_id": {"kind": COUNTERS, "clientId": counters.client_id}}, {"$push": _latest(entry)}, upsert=True
            )

    def history(self, client_id: str | None = None) -> list[HistoryEntry]:
        """Return all that was done, oldest first; with a client's id only what was done to that client. What cannot be
        read is reported.
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
                    entries.append(parse_entry(document["_id"], entry))
                except DAMAGE as exc:
                    _complain(document["_id"], exc)
        return sorted(entries, key=lambda entry: entry.at_s)

    def _change(self, target: Target, update: Document, *, only_active: bool = False) -> bool:
        selected: Document = {"_id": compose_target(target)}
        if only_active:
            selected["active"] = True
        with translated_errors():
            collection = self._collection()
            result = collection.update_one(selected, update, upsert=not only_active)
            is_changed = bool(result.matched_count or result.upserted_id is not None)
            if is_changed:
                # After the override itself: who sees the new revision finds what it stands for.
                collection.update_one({"_id": REVISION_ID}, {"$set": {"value": ObjectId()}}, upsert=True)
        return is_changed

    def _collection(self) -> Collection[Document]:
        return self._connection.collection(OVERRIDES)


def _latest(entry: Document) -> Document:
    """Return what puts an entry at the end of a history."""
    return {"history": {"$each": [entry], "$slice": -HISTORY_KEPT}}


def _complain(identity: object, error: Exception) -> None:
    reason = visible_name(f"{type(error).__name__}: {error}"[:MAX_SAID])
    log.error("override_ignored", id=visible_name(repr(identity)[:MAX_SAID]), reason=reason)
