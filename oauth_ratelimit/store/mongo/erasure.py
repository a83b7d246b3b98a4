"""Search and removal of all records of a person.

No index begins with the user, so each collection is scanned once on the server, or the documents of one client.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pymongo
from bson import MaxKey
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.failed_auth import NAMING_SCOPES
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.client import (
    FAILURES,
    OVERRIDES,
    STATISTICS,
    Connection,
    Document,
    code_of,
    translated_errors,
)
from oauth_ratelimit.store.mongo.denials import claimed_by, of_user
from oauth_ratelimit.store.mongo.document import SCOPE_PATH, USERNAME_PATH, filter_of_client
from oauth_ratelimit.store.mongo.fields import MAX_LOGGED, is_text
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import user_path

PARTS = ("counters", "failures", "statistics", "denials", "overrides")
TIMEOUT_S = 600.0  # of one part; the timeouts of the connection suit the sync cycle
ERASED = "[erased]"  # replaces a name in a text
MAX_NAMED = 5  # documents in an error


class Person(NamedTuple):
    """The names of a person in each kind of record."""

    names: tuple[str, ...]  # in counters, statistics and denials
    failed_auth_names: tuple[str, ...]  # in counters of failed authentications
    mentions: tuple[str, ...]  # in reasons and authors of overrides
    client_id: str | None = None  # only client to search; None for all


class Erasure:
    """The records of one person. The counters are in a collection whose name has no namespace."""

    def __init__(self, connection: Connection, *, collection: str, person: Person) -> None:
        self._connection = connection
        self._counters_name = collection
        self._person = person

    def count(self, part: str, *, remove: bool) -> int:
        """Return the number of documents of a part, one of ``PARTS``. Remove the person from them if asked to."""
        with translated_errors():
            self._connection.database.command("ping")  # within the usual timeout
            with pymongo.timeout(TIMEOUT_S):
                if part == "overrides":
                    return self._overrides(remove)
                if part == "statistics":
                    return self._statistics(remove)
                return self._documents(part, remove)

    def _documents(self, part: str, remove: bool) -> int:
        """Remove whole documents: counters, those of failed authentications from any address, and denials of both."""
        names, failed_auth_names, client_id = self._person.names, self._person.failed_auth_names, self._person.client_id
        is_denial = {"_id": {"$gte": {"denial": ""}, "$lt": {"denial": {}}}}
        is_naming = {SCOPE_PATH: {"$in": NAMING_SCOPES}}
        places: dict[str, tuple[str, Document]] = {
            "counters": (self._counters_name, {USERNAME_PATH: {"$in": list(names)}}),
            "failures": (FAILURES, {**is_naming, **claimed_by(failed_auth_names, USERNAME_PATH)}),
            "denials": (STATISTICS, {**is_denial, **of_user(names, failed_auth_names)}),
        }
        name, selected = places[part]
        if client_id is not None:
            selected |= {"client_id": client_id} if part == "denials" else filter_of_client(client_id)
        collection = self._connection.collection(name)
        return collection.delete_many(selected).deleted_count if remove else collection.count_documents(selected)

    def _statistics(self, remove: bool) -> int:
        """Erase the person from the heaviest users of each minute. The sums stay."""
        collection = self._connection.collection(STATISTICS)
        lowest = {"clientId": self._person.client_id or "", "minute": 0}
        end = {"clientId": {}} if self._person.client_id is None else {**lowest, "minute": MaxKey()}
        paths = list(map(user_path, self._person.names))
        selected = {"_id": {"$gte": lowest, "$lt": end}, "$or": [{path: {"$exists": True}} for path in paths]}
        if remove:
            return collection.update_many(selected, {"$unset": dict.fromkeys(paths, "")}).modified_count
        return collection.count_documents(selected)

    def _overrides(self, remove: bool) -> int:
        """Blank the person's name in the history of overrides and resets: as author, in reasons, as user of a reset."""
        collection = self._connection.collection(OVERRIDES)
        words = "|".join(map(re.escape, sorted(self._person.mentions, key=len, reverse=True)))
        mention = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
        name = re.compile("|".join(map(re.escape, self._person.names)))
        count, refused = 0, list[str]()
        for document in collection.find({"history": {"$exists": True}}):
            identity = document["_id"]
            client_id = identity.get("clientId") if isinstance(identity, dict) else None
            changes = [change for field in ("by", "reason") for change in _blanked(document, field, mention.sub)]
            if self._person.client_id in (None, client_id):
                changes += _blanked(document, "username", lambda new, text: new if name.fullmatch(text) else text)
            count += bool(changes)
            if changes and remove:
                try:
                    collection.bulk_write(changes, ordered=False)
                except BulkWriteError as exc:  # of another form: it stops no other
                    code = code_of(next(iter(exc.details["writeErrors"]), {}))
                    refused.append(f"{visible_name(repr(identity)[:MAX_LOGGED])}: {code}")
        if count and remove:
            OverrideStore(self._connection).renew_revision()
        if refused:
            named = ", ".join(refused[:MAX_NAMED])
            raise StoreRejected(f"a name stays in {len(refused)} of {collection.name}: {named}")
        return count


def _blanked(document: Mapping[str, Any], field: str, sub: Callable[[str, str], str]) -> Iterator[UpdateOne]:
    """Yield the updates that blank a field of a document, and of the entries of its history.

    They select entries by their text: their positions may have changed, because a new entry drops the oldest.
    """
    history = document["history"] if isinstance(document["history"], list) else []
    entries = [entry for entry in history if isinstance(entry, dict)]
    texts = {entry[field]: entry for entry in (*entries, document) if is_text(entry.get(field))}
    for old, entry in texts.items():
        new = sub(ERASED, old)
        if new != old and entry is document:
            yield UpdateOne({"_id": document["_id"], field: old}, {"$set": {field: new}})
        if new != old and entries:
            yield UpdateOne(
                {"_id": document["_id"], "history": {"$type": "array"}},
                {"$set": {f"history.$[entry].{field}": new}},
                array_filters=[{f"entry.{field}": old}],
            )
