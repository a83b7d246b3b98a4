"""Reports of instances in MongoDB: heartbeats, a short history of instances and configurations, notices of revocations.

A notice of a client that has revoked a token has all instances drop the tokens that they keep of it.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeVar

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.config.diff import changes_between
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.mongo.client import Connection, Document, code_of, translated_errors
from oauth_ratelimit.store.mongo.fields import checked_text, date_of, fields_of, fits, is_text, mapping, well_formed
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection

log = get_logger(__name__)

T = TypeVar("T")

FORGOTTEN_AFTER_S = 600.0  # long enough to notice an instance that died
HISTORY_KEPT_S = 30 * 86_400.0  # after the last entry
MAX_INSTANCES = 2000  # heartbeats that are read
MAX_BYTES = 2**13  # of a heartbeat
MAX_HISTORY_BYTES = 2**20
MAX_EVENTS = 500  # of instances
MAX_CONFIGURATIONS = 50
MAX_VALUES = 500  # of a configuration; the changes of a larger one are not known
MAX_CHANGES = 20  # lines of an entry
MAX_LINE = 200  # characters of a line
EVENTS_ID: Document = {"history": "instances"}
CONFIGURATIONS_ID: Document = {"history": "configurations"}
REVOCATION = "revocation"  # in the id; in the statistics, because MongoDB removes what has expired there
KEPT_MS = timedelta(hours=2) // timedelta(milliseconds=1)  # more than the longest ``reuse.max_age``
BATCH_SIZE = 1000


class Heartbeat(NamedTuple):
    """Report of one instance about itself, by its own clock. Counts are those since its start."""

    instance: str  # its name in the configuration, process id and a random part
    beat_at_s: float
    started_at_s: float
    version: str
    mode: str
    interval_s: float  # seconds between two sync cycles
    lag_s: float = 0.0  # the longest time between two successful full sync cycles since the last heartbeat
    override_count: int = 0
    flushed_count: int = 0  # documents written
    conflict_count: int = 0  # lost races
    failure_count: int = 0  # failed cycles
    clock_offset_s: float = 0.0  # seconds that MongoDB's clock is ahead of its own
    over_admitted_count: int = 0  # hits above a limit that it has written
    # The start of the SHA-256 of its configuration file; None if its code configures it
    config_digest: str | None = None
    config_rejected_at_s: float | None = None  # when it began to reject its file; None while the file is valid
    fixed_values: str | None = None  # of its configuration until it ends, such as "sync.interval=1.0 …"
    connection_problem: str | None = None  # why it does not use the store.uri of its file; None if it does
    host: str | None = None  # name of the rows that it counts in together with others; None if it counts alone
    synchronises: bool = True  # False if another instance of its host does
    refused: str | None = None  # what MongoDB refuses to it, such as ``find on ratelimit_overrides``
    config_file: str | None = None  # the path of its configuration file, as it names it


class InstanceEvent(NamedTuple):
    """Start or end of an instance, or of its time without MongoDB; one that is killed has no end."""

    instance: str
    at_s: float
    kind: Literal["started", "ended", "cut off", "reconnected"]
    version: str


class ConfigurationChange(NamedTuple):
    """A configuration that was not the last one of any instance, and the instance that reported it first."""

    fingerprint: str  # hash of its values, without secrets and the name of the instance
    at_s: float
    instance: str
    changes: tuple[str, ...]  # such as ``mode: dry-run -> enforce``; empty for the first one


class HeartbeatStore(StatisticsCollection):
    """The heartbeats of all instances."""

    is_complete = True  # the last read: False if there were too many
    _last_put = ("", -math.inf)  # instance, and time by the monotonic clock

    @property
    def refused(self) -> str | None:
        """Operations that MongoDB has refused lately to this process, in any collection; None without any."""
        return self._connection.refused()

    def put(self, heartbeat: Heartbeat) -> None:
        fields = {**heartbeat._asdict(), "expire": date_of(heartbeat.beat_at_s + FORGOTTEN_AFTER_S)}
        with translated_errors():
            self._collection.replace_one({"_id": {"instance": fields.pop("instance")}}, fields, upsert=True)
        self._last_put = heartbeat.instance, time.monotonic()

    def is_elsewhere(self, other: "HeartbeatStore") -> bool:
        """Return True if another database than this one does not have the heartbeat that was written lately here."""
        instance, at_s = self._last_put
        with translated_errors():
            found = other._collection.find_one({"_id": {"instance": instance}}, {"_id": True})
        return found is None and time.monotonic() - at_s < FORGOTTEN_AFTER_S / 2

    def remove(self, instance: str) -> None:
        """Have an instance's heartbeat forgotten, because it ends normally. MongoDB removes it: no instance may."""
        with translated_errors():
            self._collection.update_one({"_id": {"instance": instance}}, {"$set": {"expire": date_of(0)}})

    def note_event(self, event: InstanceEvent) -> None:
        with translated_errors():
            update = _adding(event._asdict(), event.at_s, at_most=MAX_EVENTS)
            self._collection.update_one({"_id": EVENTS_ID}, update, upsert=True)

    def note_configuration(self, instance: str, values: Mapping[str, str], *, at_s: float) -> bool:
        """Add a configuration to the history, unless it is the last one there: texts by path, without secrets.

        Returns False if another instance has changed the history meanwhile.
        """
        fingerprint = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=6).hexdigest()
        with translated_errors():
            collection = self._collection
            is_sent = fits(MAX_HISTORY_BYTES)["$expr"]
            fields = {name: {"$cond": [is_sent, f"${name}", "$$REMOVE"]} for name in ("fingerprint", "values")}
            last = collection.find_one({"_id": CONFIGURATIONS_ID}, fields) or {}
            known = last.get("fingerprint")
            if known == fingerprint:
                return True
            former = _texts_by_path(last.get("values"))
            changes = changes_between(former, values) if former and len(values) <= MAX_VALUES else []
            lines = tuple(line[:MAX_LINE] for line in changes[:MAX_CHANGES])
            entry = ConfigurationChange(fingerprint, at_s, instance, lines)
            update = _adding(entry._asdict(), at_s, at_most=MAX_CONFIGURATIONS)
            kept = list(map(list, values.items())) if len(values) <= MAX_VALUES else []
            update["$set"] = {"fingerprint": fingerprint, "values": kept}
            result = collection.update_one({"_id": CONFIGURATIONS_ID, "fingerprint": known}, update, upsert=not last)
            return result.matched_count > 0 or result.upserted_id is not None

    def events(self) -> list[InstanceEvent]:
        """Return the last starts and ends of instances, the oldest first."""
        return self._entries(EVENTS_ID, MAX_EVENTS, _parse_event)

    def configurations(self) -> list[ConfigurationChange]:
        """Return the last configurations, the oldest first."""
        return self._entries(CONFIGURATIONS_ID, MAX_CONFIGURATIONS, _parse_configuration)

    def _entries(self, identity: Document, at_most: int, parse: Callable[[Document], T]) -> list[T]:
        fields = {"entries": {"$slice": -at_most}, "values": False}
        with translated_errors():
            found = self._collection.find_one({"_id": identity, **fits(MAX_HISTORY_BYTES)}, fields)
        entries = mapping(found).get("entries")
        return list(well_formed(parse, entries if isinstance(entries, list) else ()))

    def read(self, now_s: float) -> list[Heartbeat]:
        """Return the heartbeats of the last ten minutes, by instance. Logs those that cannot be read."""
        ids = {"$gte": {"instance": ""}, "$lt": {"instance": {}}}
        is_own = {"_id.instance": {"$exists": True}}  # the server compares types before names
        selected: Document = {"_id": ids, **is_own, "expire": {"$gte": date_of(now_s)}, **fits(MAX_BYTES)}
        with translated_errors():
            found = list(self._collection.find(selected).sort("_id").limit(MAX_INSTANCES + 1))
        self.is_complete = len(found) <= MAX_INSTANCES
        if not self.is_complete:
            log.error("heartbeat_ignored", id=None, reason=f"there are more than {MAX_INSTANCES:,}")
        return list(well_formed(parse, found[:MAX_INSTANCES], event="heartbeat_ignored"))


def _parse_event(entry: Document) -> InstanceEvent:
    kind: Any = checked_text(entry["kind"])
    return InstanceEvent(kind=kind, **fields_of(InstanceEvent, entry))


def _parse_configuration(entry: Document) -> ConfigurationChange:
    changes = tuple(line[:MAX_LINE] for line in (entry.get("changes") or ())[:MAX_CHANGES] if is_text(line))
    return ConfigurationChange(changes=changes, **fields_of(ConfigurationChange, entry))


def _texts_by_path(pairs: object) -> dict[str, str]:
    pairs = [pair for pair in pairs if isinstance(pair, list)] if isinstance(pairs, list) else []
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and is_text(pair[0]) and is_text(pair[1])}


def _adding(entry: Document, at_s: float, *, at_most: int) -> Document:
    return {
        "$push": {"entries": {"$each": [entry], "$slice": -at_most}},
        "$max": {"expire": date_of(at_s + HISTORY_KEPT_S)},
    }


def parse(document: Mapping[str, Any]) -> Heartbeat:
    """Return the heartbeat in a document, or raise one of ``MALFORMED``."""
    return Heartbeat(**fields_of(Heartbeat, {"instance": document["_id"]["instance"], **document}))


class RevocationNotices(StatisticsCollection):
    """The notices of all instances, as one of them reads and writes them, each by its ``_id``."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._known: dict[str, object] = {}  # stamps by client
        self._own: ObjectId | None = None  # the last stamp of this instance

    def announce(self, ages_s: Mapping[str, float]) -> dict[str, str]:
        """Have all instances drop the tokens of clients, by the age of the revocation; ``OTHER_CLIENTS`` means all.

        A notice is written whole, and MongoDB dates it. Returns what was wrong with those that instances do not read.
        """
        stamp = self._own = ObjectId()
        fields = {
            "_id": "$_id",
            "stamp": stamp,
            "replaced": _stamp_in("$stamp"),
            "expire": {"$add": ["$$NOW", KEPT_MS]},
        }
        reason = "it is gone"
        with translated_errors():
            for identities in _ids_of(ages_s):
                changes = []
                for each in identities:
                    at = {"$subtract": ["$$NOW", int(1000 * ages_s[each[REVOCATION]])]}
                    at = {"$min": ["$$NOW", {"$max": [at, "$at"]}]}  # of the later one, if it replaces another
                    changes.append(UpdateOne({"_id": each}, [{"$replaceWith": {**fields, "at": at}}], upsert=True))
                try:
                    self._collection.bulk_write(changes, ordered=False)
                except BulkWriteError as exc:  # one that cannot be written stops no other
                    reason = code_of(next(iter(exc.details["writeErrors"]), exc.details))
            seen = {client_id for client_id, notice in self._find(ages_s) if notice["stamp"] == stamp}
        return dict.fromkeys(set(ages_s) - seen, reason)

    def read(self, client_ids: Collection[str]) -> dict[str, float]:
        """Return the seconds since the revocation of those clients that have a notice which was not read before.

        One that was written here is new only if it has replaced one that is. ``OTHER_CLIENTS`` means all.
        """
        with translated_errors():
            found = dict(self._find(client_ids))
        former, self._known = self._known, {client_id: notice["stamp"] for client_id, notice in found.items()}
        return {
            client_id: (notice["age"] or 0) / 1000
            for client_id, notice in found.items()
            if (
                notice["replaced"] not in (None, former.get(client_id))
                if notice["stamp"] == self._own
                else notice["stamp"] != former.get(client_id, notice)
            )
        }

    def _find(self, client_ids: Collection[str]) -> Iterator[tuple[str, Document]]:
        """Yield the notices of some clients, with their age in milliseconds by MongoDB's clock."""
        age = {"$cond": [{"$eq": [{"$type": "$at"}, "date"]}, {"$subtract": ["$$NOW", "$at"]}, None]}
        fields = {"stamp": _stamp_in("$stamp"), "replaced": _stamp_in("$replaced"), "age": age}
        for identities in _ids_of(client_ids):
            for notice in self._collection.find({"_id": {"$in": identities}}, fields):
                yield notice["_id"][REVOCATION], notice


def _stamp_in(field: str) -> Document:
    return {"$cond": [{"$eq": [{"$type": field}, "objectId"]}, field, None]}


def _ids_of(client_ids: Collection[str]) -> Iterator[list[Document]]:
    identities = [{REVOCATION: client_id} for client_id in client_ids]
    yield from (identities[start : start + BATCH_SIZE] for start in range(0, len(identities), BATCH_SIZE))
