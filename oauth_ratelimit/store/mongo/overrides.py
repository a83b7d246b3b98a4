"""Overrides in MongoDB: one document per target with its history, and one per client with the resets of its counters.

Readers check one small document, the revision, and read the overrides when it has changed. An override that was
edited by hand, without a new revision, is found by the next unconditional read.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from bson import ObjectId
from pymongo import DESCENDING
from pymongo.collection import Collection

from oauth_ratelimit.config.limits import content_of, parse_content
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_POLICIES, LimitKind
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.mongo.client import (
    MAX_SCAN_MS,
    OVERRIDES,
    STATISTICS,
    Connection,
    Document,
    server_time,
    translated_errors,
)
from oauth_ratelimit.store.mongo.fields import checked_text, date_of, fits, is_text, newest, well_formed

log = get_logger(__name__)

T = TypeVar("T")

REVISION_ID = "revision"  # no target has it: their ids are mappings
RESETS = "counters"  # the kind of the documents about resets; no override has it
MAX_HISTORY = 1000  # entries of one document, whose size is bounded
MAX_OVERRIDES = 2000  # the newest
MAX_BYTES = 2**15  # of an override without its history; one with 100 limits has half of that
MAX_TOTAL_BYTES = 2**22  # of all: this and their number bound the time that a sync cycle waits for them
MAX_HISTORY_BYTES = 2**21  # of one target
MAX_TOTAL_HISTORY_BYTES = 2**24
ERASURE = "erasure"  # in the id of a notice; in the statistics, because MongoDB removes what has expired there
ERASURES_KEPT = timedelta(days=1)  # for so long an instance may be cut off and still learn of them
MAX_ERASURES = 1000  # the newest
MAX_ERASURE_BYTES = 4096
REVISION = {"value": {"$cond": [{"$eq": [{"$type": "$value"}, "objectId"]}, "$value", "$$REMOVE"]}}


class Erased(NamedTuple):
    """Notice to all instances that users were erased, with the ``erasure_mark`` of each name."""

    id: str
    marks: frozenset[str]
    age_s: float  # by the server's clock


class OverrideStore:
    """The overrides of all instances, and what else they learn of by its revision: users who were erased."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left_out_count = 0  # at the last read

    def revision(self) -> str | None:
        """Return the revision, which is new with every change; None before the first."""
        with translated_errors():
            document = self._collection().find_one({"_id": REVISION_ID}, REVISION)
        return str(document["value"]) if document and "value" in document else None

    def read(self) -> tuple[Override, ...]:
        """Return the newest overrides that were not removed, ended ones included. Logs those that are left out."""
        with translated_errors():
            collection = self._collection()
            count = collection.count_documents({"active": True}, maxTimeMS=MAX_SCAN_MS)
            found = newest(
                collection,
                {"$match": {"active": True}},
                {"$unset": "history"},
                at_most=MAX_OVERRIDES,
                max_bytes=MAX_BYTES,
                max_total_bytes=MAX_TOTAL_BYTES,
            )
        left_out_count = max(count - len(found), 0)
        if left_out_count > self._left_out_count:
            log.error("overrides_left_out", count=left_out_count, read_count=len(found))
        self._left_out_count = left_out_count
        return tuple(well_formed(parse_override, found, event="override_ignored"))

    def put(self, override: Override) -> None:
        """Apply an override in place of the one that its target had."""
        content = _compose_override(override)
        self._change(override.target, _noting({"action": "set", **content}, active=True, **content))

    def remove(self, target: Target, *, author: str, reason: str, at_s: float) -> bool:
        """Remove an override. Return True if there was one."""
        entry = {"action": "unset", "by": author, "reason": reason, "at": date_of(at_s)}
        return self._change(target, _noting(entry, active=False), only_active=True)

    def note_reset(self, counters: Counters, *, author: str, reason: str, at_s: float) -> None:
        entry = {"action": "reset", "by": author, "reason": reason, "at": date_of(at_s), "username": counters.username}
        with translated_errors():
            self._collection().update_one(
                {"_id": {"kind": RESETS, "clientId": counters.client_id}}, _noting(entry), upsert=True
            )

    def history(self, client_id: str | None = None) -> list[HistoryEntry]:
        """Return the last changes, or those of one client, oldest first. Logs those that cannot be read."""
        selected: Document = {"history": {"$exists": True}}
        if client_id is not None:
            selected["_id.clientId"] = {"$in": [client_id, storable_name(client_id)]}
        with translated_errors():
            found = newest(
                self._collection(),
                {"$match": selected},
                {"$project": {"history": True, "at": True}},
                at_most=MAX_OVERRIDES,
                max_bytes=MAX_HISTORY_BYTES,
                max_total_bytes=MAX_TOTAL_HISTORY_BYTES,
            )
        histories = [(each["_id"], each["history"]) for each in found if isinstance(each["history"], list)]
        entries = ({"_id": identity, "entry": entry} for identity, history in histories for entry in history)
        return sorted(well_formed(_parse_entry, entries, event="override_ignored"), key=lambda entry: entry.at_s)

    def note_erasure(self, marks: Iterable[str]) -> str:
        """Have instances drop users, by their ``erasure_mark``, and return the revision with which they read it."""
        with translated_errors():
            at = server_time(self._connection.database)
            self._connection.collection(STATISTICS).insert_one(
                {"_id": {ERASURE: str(ObjectId())}, "marks": [*marks], "at": at, "expire": at + ERASURES_KEPT}
            )
            return self.renew_revision()

    def erasures(self) -> list[Erased]:
        """Return the newest erasures of the last day."""
        selected = {
            "_id": {"$gte": {ERASURE: ""}, "$lte": {ERASURE: "g"}},  # ids are hexadecimal
            **fits(MAX_ERASURE_BYTES),
        }
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            found = list(collection.find(selected).sort("_id", DESCENDING).limit(MAX_ERASURES))
            now = server_time(self._connection.database)
        return [
            Erased(document["_id"][ERASURE], frozenset(filter(is_text, document["marks"])), (now - at).total_seconds())
            for document in found
            if isinstance(document.get("marks"), list) and isinstance(at := document.get("at"), datetime)
        ]

    def renew_revision(self) -> str:
        """Have instances read everything again, and return the new revision."""
        revision = ObjectId()
        with translated_errors():
            self._collection().replace_one({"_id": REVISION_ID}, {"value": revision}, upsert=True)
        return str(revision)

    def _change(self, target: Target, update: list[Document], *, only_active: bool = False) -> bool:
        selected: Document = {"_id": _compose_target(target)}
        if only_active:
            selected["active"] = True
        with translated_errors():
            result = self._collection().update_one(selected, update, upsert=not only_active)
            is_changed = bool(result.matched_count or result.upserted_id is not None)
            if is_changed:
                self.renew_revision()  # last, so that its readers find the change
        return is_changed

    def _collection(self) -> Collection[Document]:
        return self._connection.collection(OVERRIDES)


def _noting(entry: Document, **fields: Any) -> list[Document]:
    """Return the update that sets fields and adds an entry to the history, which begins anew if it is no list."""
    entries: Document = {"$cond": [{"$isArray": "$history"}, "$history", []]}
    history = {"$slice": [{"$concatArrays": [entries, [{"$literal": entry}]]}, -MAX_HISTORY]}
    return [{"$set": {"history": history, **{name: {"$literal": value} for name, value in fields.items()}}}]


def _compose_target(target: Target) -> Document:
    """Return a target's ``_id``. The order of its fields is part of it."""
    identity: Document = {"kind": target.kind.value, "clientId": target.client_id}
    if target.limit_kind is not None:
        identity["limitKind"] = target.limit_kind.value
    return identity


def _parse_target(identity: Mapping[str, Any]) -> Target:
    return Target(
        OverrideKind(identity["kind"]),
        _optional(checked_text, identity["clientId"]),
        _optional(LimitKind, identity.get("limitKind")),
    )


def _compose_override(override: Override) -> Document:
    return {
        "by": override.author,
        "reason": override.reason,
        "at": date_of(override.made_at_s),
        "until": _optional(date_of, override.until_s),
        "mode": override.mode and override.mode.value,
        "canary": override.canary_percent,
        "limits": list(map(content_of, override.policies)),
    }


def parse_override(content: Mapping[str, Any]) -> Override:
    """Return the override in a document, or raise one of ``MALFORMED``."""
    limits = content["limits"]
    if not isinstance(limits, list) or len(limits) > MAX_POLICIES:
        raise TypeError(f"expected a list of up to {MAX_POLICIES} limits, got {limits!r}")
    return Override(
        target=_parse_target(content["_id"]),
        author=checked_text(content["by"]),
        reason=checked_text(content["reason"]),
        made_at_s=content["at"].timestamp(),
        until_s=_optional(datetime.timestamp, content["until"]),
        policies=tuple(map(parse_content, limits)),
        mode=_optional(Mode, content["mode"]),
        canary_percent=_optional(_parse_percent, content.get("canary")),
    )


def _parse_percent(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _parse_entry(document: Mapping[str, Any]) -> HistoryEntry:
    """Return an entry of a history, or raise one of ``MALFORMED``. A reset has its user: no ``_id`` can be erased."""
    identity, entry = document["_id"], document["entry"]
    is_reset = identity["kind"] == RESETS
    return HistoryEntry(
        target=Counters(checked_text(identity["clientId"]), _optional(checked_text, entry.get("username")))
        if is_reset
        else _parse_target(identity),
        author=checked_text(entry["by"]),
        reason=checked_text(entry["reason"]),
        at_s=entry["at"].timestamp(),
        override=parse_override({**entry, "_id": identity}) if entry["action"] == "set" else None,
    )


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)
