"""Overrides in MongoDB: one document per target with its history, and one per client with the resets of its counters.

Readers check one small document, the revision, and read the overrides when it has changed. An override that was
edited by hand, without a new revision, is found by the next unconditional read.

Anybody may have put anything under any ``_id``. So a document is written whole, MongoDB dates it, and its writer reads
it back as instances do. These read the few documents that concern everybody by their ``_id``, all others in its order,
and go by no value that a document brings. If there are too many, nobody is denied.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from bson import CodecOptions, ObjectId, decode, encode
from pymongo.collection import Collection

from oauth_ratelimit.config.policies import content_of, parse_content
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_POLICIES, LimitKind
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.mongo.client import MAX_SCAN_MS, OVERRIDES, Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.document import MAX_ID_BYTES, SIZE
from oauth_ratelimit.store.mongo.fields import checked_text, well_formed

log = get_logger(__name__)

T = TypeVar("T")

REVISION_ID = "revision"  # no target has it: their ids are mappings
RESETS = "counters"  # the kind of the documents about resets; no override has it
CONTENT = ("by", "reason", "at", "until", "mode", "canary", "limits")
MAX_OVERRIDES = 5000
MAX_BYTES = 2**15  # of an override without its history; one with 100 limits has half of that
MAX_TOTAL_BYTES = 2**23  # of all: this and their number bound the time that a sync cycle waits for them
MAX_HISTORY = 1000  # entries of one document
MAX_HISTORY_BYTES = 2**21  # of one document
KEPT_ENTRIES = 50  # of a history that would be larger
MAX_TOTAL_HISTORY_BYTES = 2**24
REVISION = {"value": {"$cond": [{"$eq": [{"$type": "$value"}, "objectId"]}, "$value", "$$REMOVE"]}}
TOO_MANY = f"more overrides than instances read: {MAX_OVERRIDES:,}, or {MAX_TOTAL_BYTES // 2**20} MiB together"
LEFT_OUT = Override(Target(OverrideKind.MODE), "oauth_ratelimit", TOO_MANY, 0.0, mode=Mode.DRY_RUN)


class OverrideStore:
    """The overrides of all instances."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_complete = True  # the last read

    def revision(self) -> str | None:
        """Return the revision, which is new with every change; None before the first."""
        with translated_errors():
            document = self._collection().find_one({"_id": REVISION_ID}, REVISION)
        return str(document["value"]) if document and "value" in document else None

    def read_for_everybody(self) -> tuple[Override, ...]:
        """Return the overrides that concern no single client, and that were not removed, ended ones included."""
        found, _ = self._find({**_of_client(None), "active": True}, CONTENT)
        return tuple(well_formed(parse_override, found, event="override_ignored"))

    def read(self) -> tuple[Override, ...]:
        """Return all overrides that were not removed, by time. Logs those that are damaged.

        If there are too many, a dry run for everybody comes in place of what enforces, and that is logged, too.
        """
        found, is_complete = self._find({**_from(OverrideKind.LIMIT.value), "active": True}, CONTENT)
        others = list(well_formed(parse_override, found, event="override_ignored"))
        overrides = {each.target: each for each in (*others, *self.read_for_everybody())}
        if not is_complete:
            if self._is_complete:
                log.error("overrides_left_out", read_count=len(found))
            overrides = with_dry_run(overrides)
        self._is_complete = is_complete
        return tuple(sorted(overrides.values(), key=lambda each: each.made_at_s))

    def put(self, override: Override) -> Override:
        """Apply an override in place of the one that its target had, and return it with the times by MongoDB's clock.

        Raises ``StoreRejected`` if instances do not read it.
        """
        content = _compose_override(override)
        until = {"until": None if override.lasts_ms is None else {"$add": ["$$NOW", override.lasts_ms]}}
        update = _whole({"action": "set", **content}, until, active=True, **content)
        self._change({"_id": _compose_target(override.target)}, update, upsert=True)
        is_way_back = override.target.client_id is None and override.mode in (Mode.OFF, Mode.DRY_RUN)
        found = self.read_for_everybody() if is_way_back else self.read()
        seen = {each.target: each for each in found}.get(override.target)
        if seen is None or not _is_same(seen, override):
            raise self._rejection(override.target, seen)
        return seen

    def remove(self, target: Target, *, author: str, reason: str) -> bool:
        """Remove an override. Return True if there was one. Raises ``StoreRejected`` if instances still read one."""
        entry = {"action": "unset", "by": author, "reason": reason}
        is_removed = self._change({"_id": _compose_target(target), "active": True}, _whole(entry, {}, active=False))
        if is_removed and (seen := {each.target: each for each in self.read()}.get(target)):
            raise self._rejection(target, seen)
        return is_removed

    def note_reset(self, counters: Counters, *, author: str, reason: str) -> None:
        entry = {"action": "reset", "by": author, "reason": reason, "username": counters.username}
        identity = {"kind": RESETS, "clientId": counters.client_id}
        with translated_errors():
            self._collection().update_one({"_id": identity}, _whole(entry, {}), upsert=True)

    def history(self, client_id: str | None = None) -> list[HistoryEntry]:
        """Return the last changes, or those of one client, oldest first. Logs those that cannot be read."""
        selected = _from(RESETS) if client_id is None else _of_client(client_id, storable_name(client_id))
        selected = {**selected, "history": {"$exists": True}}
        bounds = {"max_bytes": MAX_HISTORY_BYTES, "max_total_bytes": MAX_TOTAL_HISTORY_BYTES}
        found, is_complete = self._find(selected, ("history",), **bounds)
        if not is_complete:
            log.error("overrides_left_out", read_count=len(found))
        histories = well_formed(_parse_history, found, event="override_ignored")
        entries = ({"_id": identity, "entry": entry} for identity, history in histories for entry in history)
        return sorted(well_formed(_parse_entry, entries, event="override_ignored"), key=lambda entry: entry.at_s)

    def renew_revision(self) -> None:
        """Have instances read everything again."""
        with translated_errors():
            self._collection().replace_one({"_id": REVISION_ID}, {"value": ObjectId()}, upsert=True)

    def _change(self, selected: Document, update: list[Document], *, upsert: bool = False) -> bool:
        with translated_errors():
            result = self._collection().update_one(selected, update, upsert=upsert)
            is_changed = bool(result.matched_count or result.upserted_id is not None)
            if is_changed:
                self.renew_revision()  # last, so that its readers find the change
        return is_changed

    def _rejection(self, target: Target, seen: Override | None) -> StoreRejected:
        """Return the error that names the document that is stored where an override was written or removed."""
        reason = f"it is that of {seen.author}: {seen.reason}" if seen else "it is gone, or damaged"
        if not self._is_complete:
            reason = f"there are {TOO_MANY}. Nobody is denied until there are fewer"
        identity = f"{self._collection().name} {_compose_target(target)}"
        return StoreRejected(f"instances do not see the change of {identity}: {reason}")

    def _find(
        self,
        selected: Document,
        fields: tuple[str, ...],
        *,
        max_bytes: int = MAX_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> tuple[list[Document], bool]:
        """Return some fields of documents in the order of their ids, and whether these are all.

        The server sends no document and no ``_id`` above a size.
        """
        size = {"$bsonSize": {"id": "$_id", **{name: f"${name}" for name in fields}}}
        is_sent = {"$lte": [size, max_bytes]}
        projection = {
            SIZE: size,
            "_id": {
                "$cond": [{"$and": [{"$lte": [{"$bsonSize": {"id": "$_id"}}, MAX_ID_BYTES]}, _IS_EXACT]}, "$_id", None]
            },
            **{name: {"$cond": [is_sent, f"${name}", "$$REMOVE"]} for name in fields},
        }
        found: list[Document] = []
        left_bytes = max_total_bytes
        with translated_errors():
            collection = self._collection()
            cursor = collection.find(selected, projection, sort=[("_id", 1)], batch_size=500, max_time_ms=MAX_SCAN_MS)
            with cursor:
                for document in cursor:
                    left_bytes -= min(document[SIZE], max_bytes)
                    if len(found) == MAX_OVERRIDES or left_bytes < 0:
                        return found, False
                    found.append(document)
        return found, True

    def _collection(self) -> Collection[Document]:
        return self._connection.collection(OVERRIDES)


def with_dry_run(overrides: dict[Target, Override]) -> dict[Target, Override]:
    """Return overrides with a dry run for everybody, unless they switch limits off."""
    present = overrides.get(LEFT_OUT.target)
    return overrides if present and present.mode is Mode.OFF else {**overrides, LEFT_OUT.target: LEFT_OUT}


_TARGET: Final[Document] = {"kind": "$_id.kind", "clientId": "$_id.clientId"}
_IS_EXACT: Final[Document] = {
    "$and": [
        {"$in": ["$_id", [_TARGET, {**_TARGET, "limitKind": "$_id.limitKind"}]]},
        {"$in": [{"$type": "$_id.clientId"}, ["string", "null"]]},
    ]
}
"""Expression for an ``_id`` without further or repeated fields: the driver decodes the last of several, and null for
undefined, so that two documents were about one target."""


def _of_client(*client_ids: str | None) -> Document:
    """Return the filter for all that is about a client, or about everybody for None, by the ids."""
    kinds = [*OverrideKind, RESETS] if None not in client_ids else [OverrideKind.LIMIT, OverrideKind.MODE]
    identities = [
        {"kind": str(kind), "clientId": client_id, **more}
        for client_id in client_ids
        for kind in kinds
        for more in ([{"limitKind": each.value} for each in LimitKind] if kind == OverrideKind.LIMIT else [{}])
    ]
    return {"_id": {"$in": identities}}


def _from(kind: str) -> Document:
    """Return the filter for all that is about a target, from a kind on."""
    return {"_id": {"$gte": {"kind": kind}, "$lt": {"kind": OverrideKind.TRUSTED.value, "clientId": {}}}}


def _is_same(found: Override, written: Override) -> bool:
    """Return True if two overrides differ in nothing but their times, which MongoDB's clock gives."""
    is_same_form = (found.until_s is None) == (written.until_s is None)
    return is_same_form and replace(found, made_at_s=written.made_at_s, until_s=written.until_s) == written


def _whole(entry: Document, dates: Document, **fields: Any) -> list[Document]:
    """Return the update that writes a document anew, but for its history, which gets an entry.

    MongoDB computes the dates, which both get. Of what others have put into the history, only entries of a sensible
    form and size are kept, so that a document always fits.
    """
    is_small = {"$lte": [{"$bsonSize": "$$entry"}, MAX_BYTES]}
    is_entry = {"$cond": [{"$eq": [{"$type": "$$entry"}, "object"]}, is_small, False]}
    former = {"$cond": [{"$isArray": "$history"}, "$history", []]}
    is_large = {"$gt": [{"$bsonSize": {"history": "$history"}}, MAX_HISTORY_BYTES - MAX_BYTES]}
    kept = {"$cond": [is_large, -KEPT_ENTRIES, 1 - MAX_HISTORY]}
    entries = {"$slice": [{"$filter": {"input": former, "as": "entry", "cond": is_entry}}, kept]}
    content, new = ({name: {"$literal": value} for name, value in each.items()} for each in (fields, entry))
    dates = {"at": "$$NOW", **dates}
    history = {"$concatArrays": [entries, [{**new, **dates}]]}
    return [{"$replaceWith": {"_id": "$_id", **content, **dates, "history": history}}]


def _compose_target(target: Target) -> Document:
    """Return a target's ``_id``. The order of its fields is part of it."""
    identity: Document = {"kind": target.kind.value, "clientId": target.client_id}
    if target.limit_kind is not None:
        identity["limitKind"] = target.limit_kind.value
    return identity


def _parse_target(identity: Mapping[str, Any]) -> Target:
    target = Target(
        OverrideKind(identity["kind"]),
        _optional(checked_text, identity["clientId"]),
        _optional(LimitKind, identity.get("limitKind")),
    )
    if [*identity.items()] != [*_compose_target(target).items()]:
        raise ValueError("the _id of no target")  # else two documents were about one
    return target


def _compose_override(override: Override) -> Document:
    return {
        "by": override.author,
        "reason": override.reason,
        "mode": override.mode and override.mode.value,
        "canary": override.canary_percent,
        "limits": list(map(content_of, override.policies)),
    }


def parse_override(content: Mapping[str, Any]) -> Override:
    """Return the override in a document, or raise one of ``MALFORMED``."""
    _check_size(content, MAX_BYTES)
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


def pack_overrides(overrides: Iterable[Override]) -> bytes:
    """Return overrides as bytes, for other processes of the host."""
    contents: list[Document] = [
        {
            "_id": _compose_target(each.target),
            **_compose_override(each),
            "at": datetime.fromtimestamp(each.made_at_s, UTC),
            "until": None if each.until_s is None else datetime.fromtimestamp(each.until_s, UTC),
        }
        for each in overrides
    ]
    return encode({"overrides": contents})


def unpack_overrides(packed: bytes) -> tuple[Override, ...]:
    """Return packed overrides, without those that are damaged."""
    contents: list[Document] = decode(packed, CodecOptions(tz_aware=True))["overrides"]
    return tuple(well_formed(parse_override, contents, event="override_ignored"))


def _check_size(content: Mapping[str, Any], max_bytes: int) -> None:
    if content.get(SIZE, 0) > max_bytes:
        raise ValueError(f"{content[SIZE]:,} bytes, more than {max_bytes:,}")


def _parse_percent(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _parse_history(document: Mapping[str, Any]) -> tuple[object, list[Any]]:
    _check_size(document, MAX_HISTORY_BYTES)
    if not isinstance(document["history"], list):
        raise TypeError("the history is no list")
    return document["_id"], document["history"]


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
