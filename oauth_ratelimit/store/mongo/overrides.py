"""
Overrides in MongoDB: one document per target, with what was done to it; and one per client whose counters were set to
zero, because that is to be on record, too. Of each the latest thousand entries are kept.

Readers look at one small document, the revision, and read the overrides when it has changed. Somebody who edits
overrides by hand and leaves the revision alone is noticed with the next unconditional read.
"""

import structlog
from bson import ObjectId
from pymongo.collection import Collection

from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, Target
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.override_form import (
    COUNTERS,
    compose_override,
    compose_reset,
    compose_target,
    date_of,
    parse_entry,
    parse_override,
)

HISTORY_KEPT = 1000  # entries of one document: a script may add one every minute, and a document has an end
MAX_SAID = 300  # characters of what is wrong with a document
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)  # what reading a strange document raises

log = structlog.get_logger(__name__)

OVERRIDES = "ratelimit_overrides"
REVISION_ID = "revision"  # no target's _id: those are mappings


class OverrideStore:
    """
    The overrides of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def revision(self) -> str | None:
        """
        Return what changes with every change; None before the first.
        """
        with translated_errors():
            document = self._collection().find_one({"_id": REVISION_ID})
        return str(document.get("value")) if document else None

    def read(self) -> tuple[Override, ...]:
        """
        Return the overrides that nobody has taken back, ended ones included. One that cannot be read is reported.
        """
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
        """
        Put an override in force, instead of the one that its target had.
        """
        content = compose_override(override)
        entry = {"action": "set", **content}
        update = {"$set": {"active": True, **content}, "$push": _latest(entry)}
        self._change(override.target, update)

    def remove(self, target: Target, *, author: str, reason: str, at_s: float) -> bool:
        """
        Take an override back, and return whether there was one.
        """
        entry = {"action": "unset", "by": author, "reason": reason, "at": date_of(at_s)}
        update = {"$set": {"active": False}, "$push": _latest(entry)}
        return self._change(target, update, only_active=True)

    def note_reset(self, counters: Counters, *, author: str, reason: str, at_s: float) -> None:
        """
        Put on record that counters are set to zero.
        """
        entry = compose_reset(counters, author=author, reason=reason, at_s=at_s)
        with translated_errors():
            self._collection().update_one(
                {"_id": {"kind": COUNTERS, "clientId": counters.client_id}}, {"$push": _latest(entry)}, upsert=True
            )

    def history(self, client_id: str | None = None) -> list[HistoryEntry]:
        """
        Return all that was done, oldest first; with a client's id only what was done to that client. What cannot be
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
    """
    Return what puts an entry at the end of a history.
    """
    return {"history": {"$each": [entry], "$slice": -HISTORY_KEPT}}


def _complain(identity: object, error: Exception) -> None:
    reason = visible_name(f"{type(error).__name__}: {error}"[:MAX_SAID])
    log.error("override_ignored", id=visible_name(repr(identity)[:MAX_SAID]), reason=reason)
