"""The form of a counter document: the one module that knows its fields.

Anybody who can write to the collection can put anything there: an operator by mistake, a restore, an attacker. A
document with a value of another form is in quarantine: its valid parts are read, and nothing is written to it. So it
costs the accuracy of its own key and nothing else.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeGuard

from bson import MaxKey, MinKey
from bson.int64 import Int64
from pymongo import UpdateOne

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import ERASURES, MAX_HORIZON_S, UNUSABLE_VERSION, Change, Snapshot
from oauth_ratelimit.store.mongo.client import Document
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, date_of, is_text, whole_number

NO_VERSION = -1  # no document has it, so a filter on it can only insert
FIELDS = ("version", "requestCounters", "writers", "horizons", "seen")  # all that is read of a document besides its id
SIZE = "size"  # computed by the server, never stored
NO_LIST = {"$not": {"$type": "array"}}  # the server would take the length of frames for a position in a list
EXPIRE = "expire"
USERNAME_PATH = "_id.username"
SCOPE_PATH = "_id.scope"

# No counter document has this id, and it sorts after theirs: a read that finds a document erased finds the record.
ERASURES_ID: Document = {"erasures": True}
ERASURES_KEPT = timedelta(days=1)  # for so long an instance may be cut off and still learn of them
MAX_ERASURES = 1000  # the newest

MAX_VERSION = 2**62  # ours begin below 2^52; above this one, adding to it would soon fail
MAX_STORED = 2**63 - 1  # the largest integer in BSON; no update adds more than MAX_EXACT
MAX_BYTES = 2**19  # of a document; five series with as many frames as a limit can have fit in
MAX_PRELOADED_BYTES = 2**14  # a starting instance reads a thousand documents at once
MAX_SERIES_LENGTH = 30
MAX_FRAME_LENGTH = 12
MAX_WRITER_LENGTH = 64
LATEST_S = 253_402_300_799  # the last date; a frame may have a later name

_SERIES = re.compile(r"([1-9][0-9]{0,8})(\+denied)?(\+dry-run)?")
_FRAME = re.compile(r"0|[1-9][0-9]*")
_WRITER = re.compile(r"[0-9A-Za-z_-]+")


def document_id(key: Key) -> Document:
    """Return a key's ``_id``. The order of its fields is part of it."""
    identity: Document = {"clientId": key.client_id, "username": key.username}
    if key.scope is not None:
        identity["scope"] = key.scope
    return identity


def is_document_id(value: object) -> TypeGuard[Document]:
    """Return True if a value is the ``_id`` of a counter document."""
    return (
        client_of(value) is not None
        and isinstance(value, dict)
        and "username" in value
        and all(part is None or is_text(part) for part in (value["username"], value.get("scope")))
    )


def client_of(value: object) -> str | None:
    """Return the client in an ``_id``, None if it names none."""
    client_id = value.get("clientId") if isinstance(value, dict) else None
    return client_id if is_text(client_id) else None


def filter_of_client(client_id: str) -> Document:
    """Return the filter for the documents of a client, those of its users included.

    An ``_id`` compares field by field, so the documents of a client are neighbours in the index.
    """
    low, high = ({"clientId": client_id, "username": bound} for bound in (MinKey(), MaxKey()))
    return {"_id": {"$gte": low, "$lte": high}}


def filter_of_user(client_id: str, username: str) -> Document:
    """Return the filter for the documents of a user of a client, at all grant types and endpoints."""
    low = document_id(Key(client_id, username))
    return {"_id": {"$gte": low, "$lte": low | {"scope": MaxKey()}}}


def filter_after_client(client_id: str | None) -> Document:
    """Return the filter for the documents after those of a client in the index, for all with None."""
    return {"_id": {"$gte": {"clientId": ""} if client_id is None else {"clientId": client_id, "username": MaxKey()}}}


def filter_of_live(now_s: float) -> Document:
    """Return the filter for the documents that can still affect a decision."""
    return {EXPIRE: {"$gt": date_of(now_s)}}


def reset_of(selected: Document) -> tuple[Document, Document]:
    """Return the filter and the update that set the selected documents to zero.

    A versioned write: an instance that is counting loses the race, reads the document again and sees zero. The writer
    marks stay, so that a write of unknown outcome is still found.
    """
    has_hits = {"requestCounters": {"$exists": True}}
    return {**selected, **has_hits}, {"$inc": {"version": 1}, "$unset": {"requestCounters": ""}}


def parse_all(documents: Iterable[Document]) -> Iterator[tuple[Key, Snapshot]]:
    """Yield the key and the content of every document whose ``_id`` is valid."""
    for document in documents:
        identity = document.get("_id")
        if is_document_id(identity):
            yield Key(identity["clientId"], identity["username"], identity.get("scope")), parse(document)


class ReadParser:
    """Parser of the documents that a sync cycle reads. The erasures are sent only if they have changed.

    Attributes:
        projection: The projection of the next read.
    """

    def __init__(self) -> None:
        self.projection = projection(MAX_BYTES)
        self._erasures: Snapshot | None = None  # as last sent

    def parse(self, documents: Iterable[Document]) -> Iterator[tuple[Key, Snapshot]]:
        """Yield what ``parse_all`` yields, and the erasures."""
        for document in documents:
            if document.get("_id") == ERASURES_ID:
                yield ERASURES, self._parse_erasures(document)
            else:
                yield from parse_all((document,))

    def _parse_erasures(self, document: Document) -> Snapshot:
        erasures = self._erasures
        if erasures is None or erasures.version != document.get("version"):
            erasures = self._erasures = parse(document)
            is_known = {"$and": [{"$eq": ["$_id", ERASURES_ID]}, {"$eq": ["$version", Int64(erasures.version)]}]}
            sent = projection(MAX_BYTES)
            self.projection = {**sent, "seen": {"$cond": [is_known, "$$REMOVE", sent["seen"]]}}
        return erasures


def compose_erasures(marks: Iterable[str], *, at: datetime, known: Document | None) -> Document:
    """Return the update that notes erasures for instances, in the document with the ``_id`` ``ERASURES_ID``.

    Args:
        marks: Marks of the names.
        at: The server's time.
        known: The document as it is; None if it does not exist.
    """
    noted = dict.fromkeys(marks, at)
    version = Int64(secrets.randbelow(2**52))  # by which readers see that the erasures have changed
    dates = known.get("seen", {}) if known else {}
    entries = dates.items() if isinstance(dates, dict) else ()
    valid = {mark: date for mark, date in entries if isinstance(date, datetime) and date >= at - ERASURES_KEPT}
    if not isinstance(dates, dict) or not all(map(_is_writer, dates)):  # damaged: MongoDB takes no path with such names
        made_anew = {mark: date for mark, date in valid.items() if _is_writer(mark)} | noted
        return {"$set": {"version": version, "seen": made_anew}, "$max": {EXPIRE: at + ERASURES_KEPT}}
    kept = {*sorted(valid, key=valid.__getitem__)[-MAX_ERASURES:], *noted}
    update: Document = {
        "$set": {"version": version, **{f"seen.{mark}": at for mark in noted}},
        "$max": {EXPIRE: at + ERASURES_KEPT},
    }
    if dates.keys() - kept:
        update["$unset"] = {f"seen.{mark}": "" for mark in dates.keys() - kept}
    return update


def projection(max_bytes: int) -> Document:
    """Return the projection by which the server sends the content of documents up to a size, and of others the size.

    Args:
        max_bytes: Size of the largest document that is sent.
    """
    size = {"$bsonSize": "$$ROOT"}
    is_sent = {"$lte": [size, max_bytes]}
    return {SIZE: size, **{name: {"$cond": [is_sent, f"${name}", "$$REMOVE"]} for name in FIELDS}}


def is_sent(document: Document, max_bytes: int) -> bool:
    """Return True if a document that was read by ``projection`` came with its content."""
    size: int = document[SIZE]
    return size <= max_bytes


def parse(document: Document) -> Snapshot:
    """Return a document's content, as far as it is valid. It is unusable if a value has another form."""
    size = document.get(SIZE)
    if isinstance(size, int) and size > MAX_BYTES:
        return Snapshot(UNUSABLE_VERSION, {}, {}, (SIZE,))
    damage = _Damage()
    version = whole_number(document.get("version"), at_most=MAX_VERSION)
    if version is None:
        damage.quarantine("version")
    hits = {
        series: _frames(frames, damage)
        for series, frames in _by_series(document, "requestCounters", damage)
        if _is_mapping(frames, "requestCounters", damage)
    }
    horizons: dict[Series, int] = {}
    for series, value in _by_series(document, "horizons", damage):
        horizon_s = whole_number(value, at_most=MAX_HORIZON_S)
        if horizon_s is None:
            damage.quarantine("horizons")
        else:
            horizons[series] = horizon_s
    writers: dict[str, int] = {}
    for name, value in _entries(document, "writers", damage).items():
        flush_id = whole_number(value, at_most=MAX_STORED)
        if flush_id is None or not _is_writer(name):
            damage.quarantine("writers")
        else:
            writers[name] = flush_id
    seen: dict[str, float] = {}
    for name, value in _entries(document, "seen", damage).items():
        if not isinstance(value, datetime) or not _is_writer(name):
            damage.quarantine("seen")
        else:
            seen[name] = value.timestamp()
    usable_version = UNUSABLE_VERSION if version is None or damage.is_quarantined else version
    return Snapshot(usable_version, hits, writers, tuple(sorted(damage.fields)), horizons, seen)


class _Damage:
    """Fields of a document with parts that cannot be read."""

    def __init__(self) -> None:
        self.fields: set[str] = set()
        self.is_quarantined = False

    def ignore(self, field: str) -> None:
        """Note a part that is left out and does no harm: a later version may have written it."""
        self.fields.add(field)

    def quarantine(self, field: str) -> None:
        """Note a value that cannot be trusted, so that the document must not be written."""
        self.fields.add(field)
        self.is_quarantined = True


def _entries(document: Document, field: str, damage: _Damage) -> Mapping[str, Any]:
    value = document.get(field, {})
    return value if _is_mapping(value, field, damage) else {}


def _is_mapping(value: object, field: str, damage: _Damage) -> TypeGuard[dict[str, Any]]:
    if isinstance(value, dict):
        return True
    damage.quarantine(field)
    return False


def _by_series(document: Document, field: str, damage: _Damage) -> Iterator[tuple[Series, Any]]:
    """Yield the entries of a field that are named by series."""
    for name, value in _entries(document, field, damage).items():
        series = _parse_series(name) if len(name) <= MAX_SERIES_LENGTH else None
        if series is None:
            damage.ignore(field)
        else:
            yield series, value


@lru_cache(maxsize=1000)
def _parse_series(name: str) -> Series | None:
    """Return the series with a name, None if no series has it."""
    match = _SERIES.fullmatch(name)
    return Series(int(match[1]), match[2] is not None, match[3] is not None) if match else None


@lru_cache(maxsize=1000)
def _series_name(series: Series) -> str:
    """Return the name of a series in a document, such as ``6+denied+dry-run``."""
    return f"{series.frame_s}{'+denied' * series.count_denied}{'+dry-run' * series.on_trial}"


# Most documents hold the same frames and writers, so their names are checked once. No long name is kept.


def _frame_start(name: str) -> int | None:
    """Return the start of the frame with a name, None if no frame has it."""
    return _parse_frame(name) if len(name) <= MAX_FRAME_LENGTH else None


@lru_cache(maxsize=10_000)
def _parse_frame(name: str) -> int | None:
    return int(name) if _FRAME.fullmatch(name) else None


def _is_writer(name: str) -> bool:
    """Return True if a writer can have this name."""
    return len(name) <= MAX_WRITER_LENGTH and _matches_writer(name)


@lru_cache(maxsize=1000)
def _matches_writer(name: str) -> bool:
    return _WRITER.fullmatch(name) is not None


def _frames(frames: Mapping[str, Any], damage: _Damage) -> dict[int, int]:
    hits: dict[int, int] = {}
    for name, value in frames.items():
        start_s, count = _frame_start(name), whole_number(value, at_most=MAX_STORED)
        if start_s is None or count is None:
            damage.quarantine("requestCounters")
        else:
            hits[start_s] = count
    return hits


def compose(writer: str, changes: Iterable[Change]) -> list[UpdateOne]:
    """Return one update for each change."""
    mark, seen = f"writers.{writer}", f"seen.{writer}"
    dates: dict[float, datetime] = {}  # most changes share theirs
    operations = []
    for change in changes:
        expire = dates.get(change.expire_at_s)
        if expire is None:
            expire = dates[change.expire_at_s] = date_of(min(change.expire_at_s, LATEST_S))
        increments: Document = {
            f"requestCounters.{_series_name(series)}.{start_s}": count if count <= MAX_EXACT else MAX_EXACT
            for series, frames in change.hits.items()
            for start_s, count in frames.items()
        }
        identity = document_id(change.key)
        raised: Document = {
            f"horizons.{_series_name(series)}": min(horizon_s, MAX_HORIZON_S)
            for series, horizon_s in change.horizons.items()
        }
        if change.version is None:
            update: Document = {
                "$set": {"version": Int64(change.next_version), EXPIRE: expire, mark: Int64(change.flush_id)},
                "$inc": increments,
                "$currentDate": {seen: True},
            }
            if raised:
                update["$max"] = raised
            operations.append(UpdateOne({"_id": identity, "version": NO_VERSION}, update, upsert=True))
            continue
        increments["version"] = change.next_version - change.version
        update = {
            "$inc": increments,
            "$set": {mark: Int64(change.flush_id)},
            "$max": {EXPIRE: expire, **raised},
            "$currentDate": {seen: True},
            "$setOnInsert": {"_id": None},
        }
        if change.expired_frames or change.expired_writers:
            expired = [f"requestCounters.{_series_name(series)}.{start_s}" for series, start_s in change.expired_frames]
            expired += [f"{field}.{name}" for name in change.expired_writers for field in ("writers", "seen")]
            # MongoDB refuses an update that sets and removes the same path.
            expired = [path for path in expired if path not in (mark, seen) and path not in increments]
            if expired:
                update["$unset"] = dict.fromkeys(expired, "")
        selected = {"_id": identity, "version": Int64(change.version), "requestCounters": NO_LIST}
        operations.append(UpdateOne(selected, update, upsert=True))
    return operations


def compose_leave(writer: str, keys: Iterable[Key]) -> list[UpdateOne]:
    """Return the updates that remove a writer's marks. The version stays, because nobody else reads these marks."""
    update = {"$unset": {f"writers.{writer}": "", f"seen.{writer}": ""}}
    return [UpdateOne({"_id": document_id(key)}, update) for key in keys]
