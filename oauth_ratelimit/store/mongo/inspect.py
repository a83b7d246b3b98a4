"""Counter documents as operators see them: listed, and set to zero."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pymongo import DESCENDING

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.client import MAX_SCAN_MS, Connection, Document, server_time, translated_errors
from oauth_ratelimit.store.mongo.document import (
    ERASURES_ID,
    EXPIRE,
    MAX_BYTES,
    document_id,
    filter_of_client,
    filter_of_live,
    filter_of_user,
    parse_all,
    projection,
    reset_of,
)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about the server.

    Args:
        version: Version of MongoDB.
        document_count: Approximate number of counter documents.
        clock_s: The server's time, seconds since the epoch.
    """

    version: str
    document_count: int
    clock_s: float


class CounterDocuments:
    """The counter documents of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
        collection: Name of the collection, without the namespace.
    """

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._name = collection

    def facts(self) -> ServerFacts:
        """Return facts about the server."""
        collection = self._connection.collection(self._name)
        with translated_errors():
            has_erasures = collection.find_one({"_id": ERASURES_ID}, {"_id": True}) is not None
            return ServerFacts(
                version=str(self._connection.client.server_info()["version"]),
                document_count=collection.estimated_document_count() - has_erasures,
                clock_s=server_time(self._connection.database).timestamp(),
            )

    def every(self, now_s: float) -> Iterator[tuple[Key, Snapshot]]:
        """Yield all documents that have not expired. Reads page by page."""
        yield from self._find(filter_of_live(now_s))

    def latest(self, now_s: float, count: int) -> Iterator[tuple[Key, Snapshot]]:
        """Yield up to ``count`` documents, those that expire last first. Uses the index on ``expire``."""
        with translated_errors():
            found = self._connection.collection(self._name).find(filter_of_live(now_s), projection(MAX_BYTES))
            yield from parse_all(found.sort(EXPIRE, DESCENDING).limit(count).max_time_ms(MAX_SCAN_MS))

    def of_client(self, client_id: str, *, at_most: int = 0) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of a client, those of its users included. Uses the index on ``_id``.

        Args:
            client_id: The client.
            at_most: Maximum number; 0 for all.
        """
        yield from self._find(filter_of_client(client_id), at_most=at_most)

    def of_keys(self, keys: Collection[Key]) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of these keys, as far as they exist."""
        yield from self._find({"_id": {"$in": [document_id(key) for key in keys]}})

    def reset(self, client_id: str, username: str | None = None) -> int:
        """Set counters to zero on all instances, and return the number of documents that had hits.

        Args:
            client_id: The client.
            username: One user of the client, at all grant types and endpoints; None for everything of the client.
        """
        selected, update = reset_of(
            filter_of_client(client_id) if username is None else filter_of_user(client_id, username)
        )
        with translated_errors():
            return self._connection.collection(self._name).update_many(selected, update).modified_count

    def _find(self, selected: Document, *, at_most: int = 0) -> Iterator[tuple[Key, Snapshot]]:
        with translated_errors():
            yield from parse_all(
                self._connection.collection(self._name).find(selected, projection(MAX_BYTES)).limit(at_most)
            )
