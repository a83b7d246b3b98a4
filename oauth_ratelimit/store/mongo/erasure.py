"""Search and removal of all records of a person.

Counters are searched client by client, because the index on ``_id`` begins with the client: two small reads per client.
After many clients one scan on the server is faster. Statistics, denials and overrides have no index on users, so they
are scanned once, too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymongo
from bson import MaxKey, ObjectId
from pymongo import ASCENDING, UpdateOne
from pymongo.collection import Collection

from oauth_ratelimit.core.failed_auth import NAMING_SCOPES
from oauth_ratelimit.core.pseudonyms import erasure_mark
from oauth_ratelimit.store.mongo.client import (
    FAILURES,
    OVERRIDES,
    STATISTICS,
    Connection,
    Document,
    server_time,
    translated_errors,
)
from oauth_ratelimit.store.mongo.document import (
    ERASURES_ID,
    SCOPE_PATH,
    USERNAME_PATH,
    client_of,
    compose_erasures,
    filter_after_client,
    filter_of_client,
    filter_of_user,
)
from oauth_ratelimit.store.mongo.overrides import REVISION_ID

BATCH = 500  # documents per delete or bulk
MAX_JUMPS = 500  # clients searched one by one: about a second, in which a server scans a million documents
TIMEOUT_S = 600.0  # of one part; the timeouts of the connection suit the sync cycle
ERASED = "[erased]"  # replaces a name in a text


@dataclass(frozen=True, slots=True)
class Person:
    """The names of a person in each kind of record.

    Args:
        names: In counters, statistics and denials.
        failed_auth_names: In counters of failed authentications.
        mentions: In reasons and authors of overrides.
        client_id: Only client to search; None for all.
    """

    names: tuple[str, ...]
    failed_auth_names: tuple[str, ...]
    mentions: tuple[str, ...]
    client_id: str | None = None


class Erasure:
    """The records of one person. Each part counts them, and removes them if asked to.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
        collection: Name of the counters' collection, without the namespace.
        person: The person.
    """

    def __init__(self, connection: Connection, *, collection: str, person: Person) -> None:
        self._connection = connection
        self._counters_name = collection
        self._person = person

    @property
    def parts(self) -> Mapping[str, Callable[[bool], int]]:
        """The parts by name. Each returns the number of documents; called with True, it removes the records, too."""
        return {
            "counters": self.counters,
            "failures": self.failures,
            "statistics": self.statistics,
            "denials": self.denials,
            "overrides": self.overrides,
        }

    def counters(self, remove: bool) -> int:
        """Erase the person's counters. Instances drop what they hold of them when they read the next document."""
        collection = self._connection.collection(self._counters_name)
        with self._long_timeout():
            if remove:
                self._note(collection, self._person.names)
            return _erase(collection, self._counter_filters(collection), remove=remove)

    def _note(self, collection: Collection[Document], names: Iterable[str]) -> None:
        """Note the erasure for instances, which drop what they hold of these names when they read it.

        It comes before the removal: an instance that finds a document gone finds the erasure, too.
        """
        marks = [erasure_mark(name, self._person.client_id) for name in names]
        at = server_time(self._connection.database)
        known = collection.find_one({"_id": ERASURES_ID})
        collection.update_one({"_id": ERASURES_ID}, compose_erasures(marks, at=at, known=known), upsert=True)

    def _counter_filters(self, collection: Collection[Document]) -> Iterator[Document]:
        """Yield filters that together find the counters, by jumping from client to client in the index."""
        names = self._person.names
        if self._person.client_id is not None:
            yield from (filter_of_user(self._person.client_id, name) for name in names)
            return
        client_id = None
        for _ in range(MAX_JUMPS):
            following = collection.find(filter_after_client(client_id), {"_id": True}).sort("_id", ASCENDING)
            client_id = client_of(next(iter(following.limit(1)), {}).get("_id"))
            if client_id is None:
                return
            yield {"$or": [filter_of_user(client_id, name) for name in names]}
        yield filter_after_client(client_id) | {USERNAME_PATH: {"$in": list(names)}}

    def failures(self, remove: bool) -> int:
        """Erase the counters of failed authentications under the person's name, from any address."""
        collection = self._connection.collection(FAILURES)
        selected: Document = {SCOPE_PATH: {"$in": NAMING_SCOPES}, USERNAME_PATH: {"$regex": self._failed_auth_pattern}}
        if self._person.client_id is not None:
            selected |= filter_of_client(self._person.client_id)
        with self._long_timeout():
            if remove:
                self._note(collection, self._person.failed_auth_names)
            return _erase(collection, [selected], remove=remove)

    def denials(self, remove: bool) -> int:
        """Erase the records of denials."""
        collection = self._connection.collection(STATISTICS)
        selected: Document = {
            "_id": {"$gte": {"denial": ""}, "$lt": {"denial": {}}},
            "$or": [
                {"username": {"$in": list(self._person.names)}},
                {"scope": {"$in": NAMING_SCOPES}, "username": {"$regex": self._failed_auth_pattern}},
            ],
        }
        if self._person.client_id is not None:
            selected["clientId"] = self._person.client_id
        with self._long_timeout():
            return _erase(collection, [selected], remove=remove)

    def statistics(self, remove: bool) -> int:
        """Erase the person from the heaviest users of each minute. The sums stay."""
        collection = self._connection.collection(STATISTICS)
        lowest = {"clientId": self._person.client_id or "", "minute": 0}
        end = {"clientId": {}} if self._person.client_id is None else {**lowest, "minute": MaxKey()}
        selected = {"_id": {"$gte": lowest, "$lt": end}, "$expr": _has_user(self._person.names)}
        count = 0
        updates: list[UpdateOne] = []
        with self._long_timeout():
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
        """Blank the person's name in the history of overrides and resets: as author, in reasons, as user of a reset."""
        collection = self._connection.collection(OVERRIDES)
        words = "|".join(map(re.escape, sorted(self._person.mentions, key=len, reverse=True)))
        pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
        count = 0
        with self._long_timeout():
            for document in collection.find({"history": {"$exists": True}}):
                changes = [*_blanked(document, pattern), *self._reset_of_person(document)]
                count += bool(changes)
                if changes and remove:
                    collection.bulk_write(changes, ordered=False)
            if count and remove:
                collection.update_one({"_id": REVISION_ID}, {"$set": {"value": ObjectId()}}, upsert=True)
        return count

    def _reset_of_person(self, document: Document) -> Iterator[UpdateOne]:
        """Yield the updates that blank the person in entries about resets of their counters."""
        identity = document["_id"]
        client_id = identity.get("clientId") if isinstance(identity, dict) else None
        if self._person.client_id not in (None, client_id):
            return
        usernames = [entry.get("username") for entry in _history_of(document)]
        for name in self._person.names:
            if name in usernames:
                yield _blanking(identity, "username", old=name, new=ERASED)

    @contextmanager
    def _long_timeout(self) -> Iterator[None]:
        """Allow a search a longer timeout, once MongoDB has answered within the usual one."""
        with translated_errors():
            self._connection.database.command("ping")
            with pymongo.timeout(TIMEOUT_S):
                yield

    @property
    def _failed_auth_pattern(self) -> str:
        """Pattern of ``<address> <name>`` with a name of the person."""
        names = "|".join(map(re.escape, self._person.failed_auth_names))
        return f"^[^ ]+ (?:{names})$".replace("\0", r"\x00")  # BSON allows no NUL in a pattern


def _erase(collection: Collection[Document], filters: Iterable[Document], *, remove: bool) -> int:
    """Count the documents that any filter selects, and remove them batch by batch."""
    count = 0
    batch: list[Document] = []
    for document in (document for selected in filters for document in collection.find(selected, {"_id": True})):
        count += 1
        batch.append(document["_id"])
        if remove and len(batch) == BATCH:
            collection.delete_many({"_id": {"$in": batch}})
            batch = []
    if remove and batch:
        collection.delete_many({"_id": {"$in": batch}})
    return count


def _has_user(names: tuple[str, ...]) -> Document:
    """Return the expression that finds a name among the heaviest users. It ignores values of another form."""
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
            is_match = isinstance(entry, list) and len(entry) > 3 and entry[3] in names
            if is_match and not {".", "$"} & {*writer, *digest}:
                yield f"{writer}.{digest}"


def _history_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    history = document["history"]
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def _blanked(document: Mapping[str, Any], pattern: re.Pattern[str]) -> Iterator[UpdateOne]:
    """Yield the updates that blank the person in an override and its history."""
    entries = _history_of(document)
    for field in ("by", "reason"):
        text = document.get(field)
        if isinstance(text, str) and pattern.search(text):
            yield UpdateOne({"_id": document["_id"], field: text}, {"$set": {field: pattern.sub(ERASED, text)}})
        texts = [entry[field] for entry in entries if isinstance(entry.get(field), str)]
        for text in dict.fromkeys(texts):
            if pattern.search(text):
                yield _blanking(document["_id"], field, old=text, new=pattern.sub(ERASED, text))


def _blanking(identity: object, field: str, *, old: str, new: str) -> UpdateOne:
    """Return the update that replaces a text in a history.

    It selects entries by their text: their positions may have changed, because a new entry drops the oldest.
    """
    return UpdateOne(
        {"_id": identity, "history": {"$type": "array"}},
        {"$set": {f"history.$[entry].{field}": new}},
        array_filters=[{f"entry.{field}": old}],
    )
