"""Finding and removing all that MongoDB holds of a person.

Counters are looked for client by client, because the index on ``_id`` begins with the client: two small reads for each
client and none for its other users. After many clients the rest is looked through on the server, once, which is then
faster. Statistics, denials and overrides have no index on users; they are looked through once, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymongo
from bson import MaxKey, ObjectId
from pymongo import ASCENDING, UpdateOne
from pymongo.collection import Collection

from oauth_ratelimit.core.failed_auth import NAMING_SCOPES
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.heartbeats import STATISTICS
from oauth_ratelimit.store.mongo.inspect import FAILURES, filter_of_client, filter_of_user
from oauth_ratelimit.store.mongo.overrides import OVERRIDES, REVISION_ID

BATCH = 500  # documents per delete or bulk
MAX_JUMPS = 500  # clients that are looked for one by one: a second, in which a server looks through a million documents
PATIENCE_S = 600.0  # for one part, instead of the timeouts of the connection, which are meant for the sync cycle
ERASED = "[erased]"  # stands for a name where a text mentioned it


@dataclass(frozen=True, slots=True)
class Person:
    """Whom to look for.

    Args:
        names: All that the person goes by in counters, statistics and denials.
        claims: All that the person goes by where a failed authentication was counted.
        mentions: What people who write about the person may have called them.
        client_id: At this client only; None for all.
    """

    names: tuple[str, ...]
    claims: tuple[str, ...]
    mentions: tuple[str, ...]
    client_id: str | None = None


class Erasure:
    """The records of one person. Each part counts them, and removes them if it is told to.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database. Whoever made it closes it.
        collection: Name of the counters' collection, without the namespace.
        person: Whose.
    """

    def __init__(self, connection: Connection, *, collection: str, person: Person) -> None:
        self._connection = connection
        self._counters_name = collection
        self._person = person

    @property
    def parts(self) -> Mapping[str, Callable[[bool], int]]:
        """
        What there is, by name. Each returns how many documents are concerned; called with True, it removes them first.
        """
        return {
            "counters": self.counters,
            "failures": self.failures,
            "statistics": self.statistics,
            "denials": self.denials,
            "overrides": self.overrides,
        }

    def counters(self, remove: bool) -> int:
        """
        Documents of the person's own counters. An instance that counts on finds its document gone, and starts at zero.
        """
        collection = self._connection.collection(self._counters_name)
        with self._patience():
            found = (
                document["_id"]
                for selected in self._counter_filters(collection)
                for document in collection.find(selected, {"_id": True})
            )
            return _each(found, collection, remove=remove)

    def _counter_filters(self, collection: Collection[Document]) -> Iterator[Document]:
        """Yield filters that find the counters together, jumping from one client to the next in the index."""
        names = self._person.names
        if self._person.client_id is not None:
            yield from (filter_of_user(self._person.client_id, name) for name in names)
            return
        after: Document = {"clientId": ""}
        for _ in range(MAX_JUMPS):
            selected = {"_id": {"$gte": after}}
            found = list(collection.find(selected, {"_id": True}).sort("_id", ASCENDING).limit(1))
            client_id = found[0]["_id"].get("clientId") if found else None
            if not isinstance(client_id, str):
                return
            yield {"$or": [filter_of_user(client_id, name) for name in names]}
            after = {"clientId": client_id, "username": MaxKey()}
        yield {"_id": {"$gte": after}, "_id.username": {"$in": list(names)}}

    def failures(self, remove: bool) -> int:
        """Documents that count failed authentications under the person's name, from whatever address."""
        collection = self._connection.collection(FAILURES)
        selected: Document = {"_id.scope": {"$in": NAMING_SCOPES}, "_id.username": {"$regex": self._claimed}}
        if self._person.client_id is not None:
            selected |= filter_of_client(self._person.client_id)
        with self._patience():
            return _each((each["_id"] for each in collection.find(selected, {"_id": True})), collection, remove=remove)

    def denials(self, remove: bool) -> int:
        """Records that ``explain --id`` reads."""
        collection = self._connection.collection(STATISTICS)
        selected: Document = {
            "_id": {"$gte": {"denial": ""}, "$lt": {"denial": {}}},
            "$or": [
                {"username": {"$in": list(self._person.names)}},
                {"scope": {"$in": NAMING_SCOPES}, "username": {"$regex": self._claimed}},
            ],
        }
        if self._person.client_id is not None:
            selected["clientId"] = self._person.client_id
        with self._patience():
            return _each((each["_id"] for each in collection.find(selected, {"_id": True})), collection, remove=remove)

    def statistics(self, remove: bool) -> int:
        """Minutes in which the person is among the heaviest users. Only that entry is removed; the sums stay."""
        collection = self._connection.collection(STATISTICS)
        lowest = {"clientId": self._person.client_id or "", "minute": 0}
        end = {"clientId": {}} if self._person.client_id is None else {**lowest, "minute": MaxKey()}
        selected = {"_id": {"$gte": lowest, "$lt": end}, "$expr": _has_user(self._person.names)}
        count = 0
        updates: list[UpdateOne] = []
        with self._patience():
            for document in collection.find(selected, {"users": True}):
                count += 1
                paths = [f"users.{path}" for path in _paths_of(document["users"], self._person.names)]
                updates.append(UpdateOne({"_id": document["_id"]}, {"$unset": dict.fromkeys(paths, "")}))
                if remove and len(updates) == BATCH:
                    collection.bulk_write(updates, ordered=False)
                    updates = []
            if remove and updates:
                collection.bulk_write(updates, ordered=False)
        return count

    def overrides(self, remove: bool) -> int:
        """Overrides, taken back ones and resets of counters included, in whose reason or author the person is named, or
        whose counters were reset. The name is blanked there.
        """
        collection = self._connection.collection(OVERRIDES)
        words = "|".join(map(re.escape, sorted(self._person.mentions, key=len, reverse=True)))
        pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
        count = 0
        with self._patience():
            for document in collection.find({"history": {"$exists": True}}):
                changes = [*_blanked(document, pattern), *self._reset_of_person(document)]
                count += bool(changes)
                if changes and remove:
                    collection.bulk_write(changes, ordered=False)
            if count and remove:
                collection.update_one({"_id": REVISION_ID}, {"$set": {"value": ObjectId()}}, upsert=True)
        return count

    def _reset_of_person(self, document: Document) -> Iterator[UpdateOne]:
        """Yield what blanks the person in entries about a reset of their own counters."""
        identity = document["_id"]
        client_id = identity.get("clientId") if isinstance(identity, dict) else None
        if self._person.client_id not in (None, client_id):
            return
        told = {entry.get("username") for entry in _entries_of(document)}
        for name in self._person.names:
            if name in told:
                yield _blanking(identity, "username", old=name, new=ERASED)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Allow a search its time, once MongoDB has answered within the usual one."""
        with translated_errors():
            self._connection.database.command("ping")
            with pymongo.timeout(PATIENCE_S):
                yield

    @property
    def _claimed(self) -> str:
        """The pattern of ``<address> <name>``."""
        claims = "|".join(map(re.escape, self._person.claims)).replace("\0", r"\x00")  # which BSON does not take
        return f"^[^ ]+ (?:{claims})$"


def _each(identities: Iterator[Document], collection: Collection[Document], *, remove: bool) -> int:
    """Count documents, and remove them."""
    count = 0
    batch: list[Document] = []
    for identity in identities:
        count += 1
        batch.append(identity)
        if remove and len(batch) == BATCH:
            collection.delete_many({"_id": {"$in": batch}})
            batch = []
    if remove and batch:
        collection.delete_many({"_id": {"$in": batch}})
    return count


def _has_user(names: tuple[str, ...]) -> Document:
    """Return the expression that finds a name among the heaviest users, whatever else stands there."""
    own = {"$map": {"input": _entries("$$writer.v"), "as": "user", "in": {"$arrayElemAt": [_list("$$user.v"), 3]}}}
    found = {"$setIntersection": [own, list(names)]}
    return {
        "$anyElementTrue": [
            {"$map": {"input": _entries("$users"), "as": "writer", "in": {"$gt": [{"$size": found}, 0]}}}
        ]
    }


def _entries(field: str) -> Document:
    return {"$cond": [{"$eq": [{"$type": field}, "object"]}, {"$objectToArray": field}, []]}


def _list(field: str) -> Document:
    return {"$cond": [{"$isArray": [field]}, field, []]}


def _paths_of(users: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    for writer, entries in users.items():
        for digest, entry in entries.items() if isinstance(entries, dict) else ():
            is_theirs = isinstance(entry, list) and len(entry) > 3 and entry[3] in names
            if is_theirs and not {".", "$"} & {*writer, *digest}:
                yield f"{writer}.{digest}"


def _entries_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    history = document["history"]
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def _blanked(document: Mapping[str, Any], pattern: re.Pattern[str]) -> Iterator[UpdateOne]:
    """Yield what blanks everything in an override that names the person."""
    entries = _entries_of(document)
    for field in ("by", "reason"):
        text = document.get(field)
        if isinstance(text, str) and pattern.search(text):
            yield UpdateOne({"_id": document["_id"], field: text}, {"$set": {field: pattern.sub(ERASED, text)}})
        texts = [entry[field] for entry in entries if isinstance(entry.get(field), str)]
        for text in dict.fromkeys(texts):
            if pattern.search(text):
                yield _blanking(document["_id"], field, old=text, new=pattern.sub(ERASED, text))


def _blanking(identity: object, field: str, *, old: str, new: str) -> UpdateOne:
    """
    Return what replaces a text in a history. It goes by the text: by number an entry may be another one by now, because
    a reset puts one at the end and drops the oldest.
    """
    return UpdateOne(
        {"_id": identity, "history": {"$type": "array"}},
        {"$set": {f"history.$[entry].{field}": new}},
        array_filters=[{f"entry.{field}": old}],
    )
