"""The counter documents as operators look at them: listed, and set to zero."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from bson import MaxKey, MinKey
from pymongo import DESCENDING

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.document import FIELDS, document_id, parse_all

LONGEST_LOOK_MS = 2000  # where the index is missing, MongoDB would look through everything


FAILURES = "ratelimit_failures"  # failed authentications, in documents of the same form


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What there is to know about the server.

    Args:
        version: Of MongoDB.
        document_count: Counter documents, about.
        clock_s: The server's time, seconds since the epoch.
    """

    version: str
    document_count: int
    clock_s: float


class CounterDocuments:
    """The counter documents of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To their database. Whoever made it closes it.
        collection: Name of their collection, without the namespace.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._collection_name = collection

    def facts(self) -> ServerFacts:
        """Return what there is to know about the server."""
        with translated_errors():
            database = self._connection.database
            return ServerFacts(
                version=str(self._connection.client.server_info()["version"]),
                document_count=self._connection.collection(self._collection_name).estimated_document_count(),
                clock_s=database.command("hello")["localTime"].timestamp(),
            )

    def every(self, now_s: float) -> Iterator[tuple[Key, Snapshot]]:
        """Yield all documents that can still matter. Reads as it goes, so that their number does not matter."""
        yield from self._find({"expire": {"$gt": datetime.fromtimestamp(now_s, UTC)}})

    def latest(self, now_s: float, count: int) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents that will matter longest, so many at most. Uses the index on ``expire``."""
        live: Document = {"expire": {"$gt": datetime.fromtimestamp(now_s, UTC)}}
        with translated_errors():
            found = self._connection.collection(self._collection_name).find(live, FIELDS).sort("expire", DESCENDING)
            yield from parse_all(found.limit(count).max_time_ms(LONGEST_LOOK_MS))

    def of_client(self, client_id: str, *, at_most: int = 0) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of one client, those of its users included. Uses the index on ``_id``.

        Args:
            client_id: Whose.
            at_most: How many; 0 for all.
        """
        yield from self._find(filter_of_client(client_id), at_most=at_most)

    def of_keys(self, keys: Collection[Key]) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of some keys, of those that have one."""
        yield from self._find({"_id": {"$in": [document_id(key) for key in keys]}})

    def reset(self, client_id: str, username: str | None = None) -> int:
        """Set counters to zero on all instances, and return how many documents had any.

        A versioned write: an instance that counts on loses the race, reads the document again and sees zero. Its
        marks stay, so that a write of unknown outcome is still found.

        Args:
            client_id: Whose.
            username: One user of the client, at all grant types and endpoints; None for everything of the client.
        """
        selected = filter_of_client(client_id) if username is None else filter_of_user(client_id, username)
        selected["requestCounters"] = {"$exists": True}
        update: Document = {"$inc": {"version": 1}, "$unset": {"requestCounters": ""}}
        with translated_errors():
            return self._connection.collection(self._collection_name).update_many(selected, update).modified_count

    def _find(self, selected: Document, *, at_most: int = 0) -> Iterator[tuple[Key, Snapshot]]:
        with translated_errors():
            found = self._connection.collection(self._collection_name).find(selected, FIELDS)
            yield from parse_all(found.limit(at_most))


def filter_of_client(client_id: str) -> Document:
    """Return the filter for a client. An ``_id`` compares field by field, so those of a client are neighbours."""
    low, high = ({"clientId": client_id, "username": bound} for bound in (MinKey(), MaxKey()))
    return {"_id": {"$gte": low, "$lte": high}}


def filter_of_user(client_id: str, username: str) -> Document:
    """Return the filter for a user of a client, at all grant types and endpoints."""
    low = document_id(Key(client_id, username))
    return {"_id": {"$gte": low, "$lte": low | {"scope": MaxKey()}}}
