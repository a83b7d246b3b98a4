"""The form of a counter document: the one module that knows its fields.

Anybody who can write to the collection can put anything there: an operator by mistake, a restore, an attacker. A
document with a value of another form is in quarantine: nothing of it is believed, and nothing is written to it. So it
costs the accuracy of its own key and nothing else.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypeGuard

from bson import MaxKey, MinKey
from bson.int64 import Int64
from pymongo import UpdateOne

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import MAX_HORIZON_S, TOO_LARGE, UNUSABLE_VERSION, VERSION_JUMP, Change, Snapshot
from oauth_ratelimit.store.mongo.client import Document
from oauth_ratelimit.store.mongo.fields import LATEST_S, MALFORMED, MAX_EXACT, NO_LIST, checked_number, date_of, is_text

NO_VERSION = -1  # no document has it, so a filter on it can only insert
SIZE = "size"  # computed by the server, never stored
NO_ID = {"_id": None}
EXPIRE = "expire"
USERNAME_PATH = "_id.username"
SCOPE_PATH = "_id.scope"

MAX_VERSION = 2**62  # ours begin below 2^52; above this one, adding to it would soon fail
MAX_STORED = 2**63 - 1  # the largest integer in BSON; no update adds more than MAX_EXACT
MAX_BYTES = 2**19  # of a document; a hundred series with as many frames as a limit can have fit in
MAX_ID_BYTES = 2**13  # three names of 512 letters; an ``_id`` may have any size, too
MAX_PRELOADED_BYTES = 2**14  # a starting instance reads a thousand documents at once
MAX_SERIES_LENGTH = 30

_SERIES = re.compile(r"([1-9][0-9]{0,8})(\+denied)?(\+dry-run)?")
_FRAMES = re.compile(r"(?:(?:0|[1-9][0-9]{0,11})(?:,|\Z))*")
_WRITER = re.compile(r"[0-9A-Za-z_-]{1,64}")


def document_id(key: Key) -> Document:
    """Return a key's ``_id``. The order of its fields is part of it."""
    identity: Document = {"clientId": key.client_id, "username": key.username}
    if key.scope is not None:
        identity["scope"] = key.scope
    return identity


def is_document_id(value: object) -> TypeGuard[Document]:
    """Return True if a value is the ``_id`` of a counter document."""
    return (
        isinstance(value, dict)
        and is_text(value.get("clientId"))
        and "username" in value
        and all(part is None or is_text(part) for part in (value["username"], value.get("scope")))
    )


def filter_of_client(client_id: str, username: str | None = None) -> Document:
    """Return the filter for the documents of a client, those of its users included, or of one user, at all scopes.

    An ``_id`` compares field by field, so the documents of a client are neighbours in the index.
    """
    if username is not None:
        low = document_id(Key(client_id, username))
        return {"_id": {"$gte": low, "$lte": low | {"scope": MaxKey()}}}
    low, high = ({"clientId": client_id, "username": bound} for bound in (MinKey(), MaxKey()))
    return {"_id": {"$gte": low, "$lte": high}}


def filter_of_live(now_s: float) -> Document:
    """Return the filter for the documents that can still affect a decision."""
    return {EXPIRE: {"$gt": date_of(now_s)}}


def reset_of(selected: Document) -> tuple[Document, Document]:
    """Return the filter and the update that set the selected documents to zero.

    A versioned write: an instance that is counting loses the race, reads the document again and sees zero. The writer
    marks stay, so that a write of unknown outcome is still found. A document whose version is none is left alone.
    """
    has_hits = {"requestCounters": {"$exists": True}, "version": {"$gte": 0, "$lte": MAX_VERSION, **NO_LIST}}
    return {**selected, **has_hits}, {"$inc": {"version": VERSION_JUMP}, "$unset": {"requestCounters": ""}}


def parse_all(documents: Iterable[Document], *, max_bytes: int = MAX_BYTES) -> Iterator[tuple[Key, Snapshot]]:
    """Yield the key and the content of every document whose ``_id`` is valid."""
    for document in documents:
        identity = document.get("_id")
        if is_document_id(identity):
            key = Key(identity["clientId"], identity["username"], identity.get("scope"))
            yield key, parse(document, max_bytes=max_bytes)


def parse(document: Document, *, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Return a document's content. It is in quarantine if it is too large, or if a value has another form."""
    size = document.get(SIZE)
    if isinstance(size, int) and size > max_bytes:
        return Snapshot(UNUSABLE_VERSION, {}, {}, TOO_LARGE)
    content: dict[str, Any] = {}
    for field, read in _READERS.items():
        try:
            content[field] = read(document.get(field, {}))
        except MALFORMED:
            return Snapshot(UNUSABLE_VERSION, {}, {}, field)
    return Snapshot(hits=content.pop("requestCounters"), **content)


@lru_cache
def projection(max_bytes: int) -> Document:
    """Return the projection by which the server sends the content of documents up to a size, and of others the size."""
    size = {"$bsonSize": "$$ROOT"}
    is_sent = {"$lte": [size, max_bytes]}
    content = {field: {"$cond": [is_sent, f"${field}", "$$REMOVE"]} for field in _READERS}
    return {
        SIZE: size,
        "_id": {"$cond": [{"$lte": [{"$bsonSize": {"id": "$_id"}}, MAX_ID_BYTES]}, "$_id", None]},
        **content,
    }


def _by_series(values: Mapping[str, Any]) -> Iterator[tuple[Series, Any]]:
    """Yield the values that are named by series. A later version may have other names: they are left out."""
    for name, value in values.items():
        series = _series(name) if len(name) <= MAX_SERIES_LENGTH else None
        if series is not None:
            yield series, value


# Most documents hold the same names, so they are checked once. One that raises is not cached.


@lru_cache(maxsize=1000)
def _series(name: str) -> Series | None:
    match = _SERIES.fullmatch(name)
    return Series(int(match[1]), *(part is not None for part in match.groups()[1:])) if match else None


@lru_cache(maxsize=1000)
def _writer(name: str) -> str:
    if not _WRITER.fullmatch(name):
        raise ValueError("expected the name of a writer")
    return name


def _hits(value: Mapping[str, Any]) -> dict[Series, dict[int, int]]:
    return {series: _frames(frames) for series, frames in _by_series(value)}


def _frames(value: Mapping[str, Any]) -> dict[int, int]:
    """Return the hits of frames, checked together: a document may have thousands."""
    names, counts = value.keys(), list(value.values())
    if not _FRAMES.fullmatch(",".join(names)):
        raise ValueError("expected the starts of frames")
    if not {int}.issuperset(map(type, counts)) or min(counts, default=0) < 0:
        counts = [checked_number(count, at_most=MAX_STORED) for count in counts]
    return dict(zip(map(int, names), counts, strict=True))


_READERS: dict[str, Callable[[Any], Any]] = {
    "version": partial(checked_number, at_most=MAX_VERSION),
    "requestCounters": _hits,
    "writers": lambda value: {_writer(name): checked_number(mark, at_most=MAX_STORED) for name, mark in value.items()},
    "horizons": lambda value: {series: checked_number(s, at_most=MAX_HORIZON_S) for series, s in _by_series(value)},
    "seen": lambda value: {_writer(name): datetime.timestamp(date) for name, date in value.items()},
}
"""All that is read of a document besides its id. Each raises one of ``MALFORMED`` for a value of another form."""


@lru_cache(maxsize=1000)
def _series_name(series: Series) -> str:
    """Return the name of a series in a document, such as ``6+denied+dry-run``."""
    return f"{series.frame_s}{'+denied' * series.count_denied}{'+dry-run' * series.on_trial}"


def compose(writer: str, changes: Iterable[Change]) -> list[UpdateOne]:
    mark, seen = f"writers.{writer}", f"seen.{writer}"
    operations = []
    for change in changes:
        update: Document = {
            "$set": {mark: Int64(change.write_number)},
            "$max": {EXPIRE: date_of(min(change.expire_at_s, LATEST_S))},
            "$currentDate": {seen: True},
        }
        if change.horizons:
            update["$max"] = update["$max"] | {
                f"horizons.{_series_name(series)}": min(s, MAX_HORIZON_S) for series, s in change.horizons.items()
            }
        if change.version is None:
            # One value: the server looks through the document for each path that it sets.
            counters = {
                _series_name(series): {str(start_s): min(count, MAX_EXACT) for start_s, count in frames.items()}
                for series, frames in change.hits.items()
            }
            selected: Document = {"_id": document_id(change.key), "version": NO_VERSION}
            update["$set"] = update["$set"] | {"version": Int64(change.next_version), "requestCounters": counters}
        else:
            selected = {"_id": document_id(change.key), "version": change.version, "requestCounters": NO_LIST}
            if change.mark is not None:
                selected |= {"version": {"$gte": change.version, "$lte": change.last_version}, mark: change.mark}
            increments = update["$inc"] = {
                _frame_path(series, start_s): min(count, MAX_EXACT)
                for series, frames in change.hits.items()
                for start_s, count in frames.items()
            }
            increments["version"] = change.next_version - change.version
            update["$setOnInsert"] = NO_ID
            # MongoDB refuses an update that sets and removes the same path.
            if change.expired_frames or change.expired_writers:
                kept = {mark, seen, *increments}
                if expired := [path for path in _expired_paths(change) if path not in kept]:
                    update["$unset"] = dict.fromkeys(expired, "")
        operations.append(UpdateOne(selected, update, upsert=True))
    return operations


def _expired_paths(change: Change) -> Iterator[str]:
    for series, start_s in change.expired_frames:
        yield _frame_path(series, start_s)
    for name in change.expired_writers:
        yield from (f"writers.{name}", f"seen.{name}")


@lru_cache(maxsize=1000)
def _frame_path(series: Series, start_s: int) -> str:
    return f"requestCounters.{_series_name(series)}.{start_s}"


def compose_mark_removal(writer: str, marks: Mapping[Key, int]) -> list[UpdateOne]:
    """Return the updates that remove a writer's marks, unless it has left others meanwhile.

    The version stays, because nobody else reads these marks.
    """
    name = f"writers.{writer}"
    update = {"$unset": {name: "", f"seen.{writer}": ""}}
    return [UpdateOne({"_id": document_id(key), name: mark}, update) for key, mark in marks.items()]
