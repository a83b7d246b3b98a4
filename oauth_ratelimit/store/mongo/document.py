"""The form of a counter document: composed, and read again with distrust.

Whoever can write the collection can put anything there: an operator's slip, a restore gone wrong, an attacker. What is
not of our form counts as not there, so that it costs the accuracy of its own key and nothing else.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from heapq import nlargest
from typing import Any, TypeGuard

from bson.int64 import Int64
from pymongo import UpdateOne

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import UNUSABLE_VERSION, Change, Snapshot

Document = dict[str, Any]

NO_VERSION = -1  # no document has it, so a filter on it can only insert
FIELDS = ("version", "requestCounters", "writers")  # all that is read of a document besides its id

MAX_VERSION = 2**62  # ours begin below 2^52; above this one, adding to it would soon fail
MAX_EXACT = 2**53  # up to here a floating-point number is exact; no update adds more, because BSON ends at 2^63
MAX_FRAMES = 20_000  # of one series, the newest; more is an attack, and would keep requests waiting
MAX_SERIES = 100
MAX_WRITERS = 10_000

_SERIES = re.compile(r"([1-9][0-9]{0,8})(\+denied)?(\+dry-run)?")
MAX_SERIES_LENGTH = 30
_FRAME = re.compile(r"[0-9]{1,12}")
_WRITER = re.compile(r"[0-9A-Za-z_-]{1,64}")


def document_id(key: Key) -> Document:
    """Return a key's ``_id``. The order of its fields is part of it."""
    identity: Document = {"clientId": key.client_id, "username": key.username}
    if key.scope is not None:
        identity["scope"] = key.scope
    return identity


def is_identity(value: object) -> TypeGuard[Document]:
    """Whether a value is the ``_id`` of a counter document."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("clientId"), str)
        and "username" in value
        and isinstance(value["username"], str | None)
        and isinstance(value.get("scope"), str | None)
    )


def key_of(identity: Document) -> Key:
    """Return the key of an ``_id``."""
    return Key(identity["clientId"], identity["username"], identity.get("scope"))


def parse_all(documents: Iterable[Document]) -> Iterator[tuple[Key, Snapshot]]:
    """Yield the key and content of every document that has an ``_id`` of ours."""
    for document in documents:
        if is_identity(document.get("_id")):
            yield key_of(document["_id"]), parse(document)


def parse(document: Document) -> Snapshot:
    """Return a document's content, as far as it is of our form."""
    damage: set[str] = set()
    version = _whole(document.get("version"))
    if version is None or version > MAX_VERSION:
        damage.add("version")
        version = UNUSABLE_VERSION
    hits: dict[Series, dict[int, int]] = {}
    for name, frames in _entries(document, "requestCounters", MAX_SERIES, damage):
        series = _parse_series(name) if len(name) <= MAX_SERIES_LENGTH else None
        if series is None or not isinstance(frames, dict):
            damage.add("requestCounters")
        else:
            hits[series] = _frames(frames, damage)
    writers: dict[str, int] = {}
    for name, value in _entries(document, "writers", MAX_WRITERS, damage):
        flush_id = _whole(value)
        if flush_id is None or not _WRITER.fullmatch(name):
            damage.add("writers")
        else:
            writers[name] = flush_id
    return Snapshot(version, hits, writers, tuple(sorted(damage)))


def _entries(document: Document, field: str, max_count: int, damage: set[str]) -> list[tuple[str, Any]]:
    value = document.get(field)
    if value is None and field not in document:
        return []
    if not isinstance(value, dict):
        damage.add(field)
        return []
    if len(value) > max_count:
        damage.add(field)
    return list(value.items())[:max_count]


@lru_cache(maxsize=1000)
def _parse_series(name: str) -> Series | None:
    """Return the series that a name in a document means, None if it is none of ours."""
    match = _SERIES.fullmatch(name)
    return Series(int(match[1]), match[2] is not None, match[3] is not None) if match else None


@lru_cache(maxsize=1000)
def _series_name(series: Series) -> str:
    """Return the name of a series in a document, such as ``6+denied+dry-run``."""
    return f"{series.frame_s}{'+denied' * series.count_denied}{'+dry-run' * series.on_trial}"


def _frames(frames: Mapping[str, Any], damage: set[str]) -> dict[int, int]:
    hits: dict[int, int] = {}
    for name, value in frames.items():
        count = _whole(value)
        if count is None or not _FRAME.fullmatch(name):
            damage.add("requestCounters")
        else:
            hits[int(name)] = count
    if len(hits) > MAX_FRAMES:
        damage.add("requestCounters")
        return {start_s: hits[start_s] for start_s in nlargest(MAX_FRAMES, hits)}
    return hits


def _whole(value: object) -> int | None:
    """Return a whole number that is not negative, None for anything else. Old shells write every number as a float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer() and value <= MAX_EXACT:
        value = int(value)
    return int(value) if isinstance(value, int) and value >= 0 else None


def compose(writer: str, changes: Iterable[Change]) -> list[UpdateOne]:
    """Return one update for each change."""
    mark = f"writers.{writer}"
    expires: dict[float, datetime] = {}
    operations = []
    for change in changes:
        expire = expires.get(change.expire_at_s)
        if expire is None:
            expire = expires[change.expire_at_s] = datetime.fromtimestamp(change.expire_at_s, UTC)
        increments: Document = {
            f"requestCounters.{_series_name(series)}.{start_s}": count if count <= MAX_EXACT else MAX_EXACT
            for series, frames in change.hits.items()
            for start_s, count in frames.items()
        }
        identity = document_id(change.key)
        if change.version is None:
            update: Document = {
                "$set": {"version": Int64(change.next_version), "expire": expire, mark: Int64(change.flush_id)},
                "$inc": increments,
            }
            operations.append(UpdateOne({"_id": identity, "version": NO_VERSION}, update, upsert=True))
            continue
        increments["version"] = change.next_version - change.version
        update = {
            "$inc": increments,
            "$set": {mark: Int64(change.flush_id)},
            "$max": {"expire": expire},
            "$setOnInsert": {"_id": None},
        }
        stale = [f"requestCounters.{_series_name(series)}.{start_s}" for series, start_s in change.expired_frames]
        stale += [f"writers.{name}" for name in change.expired_writers]
        # A path can be changed in one way only: an update that also removed what it sets would be refused.
        stale = [path for path in stale if path != mark and path not in increments]
        if stale:
            update["$unset"] = dict.fromkeys(stale, "")
        operations.append(UpdateOne({"_id": identity, "version": Int64(change.version)}, update, upsert=True))
    return operations
