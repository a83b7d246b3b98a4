"""Counter documents as operators see them: listed, and set to zero."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from pymongo import DESCENDING

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.errors import StoreError, StoreRejected
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.client import MAX_SCAN_MS, Connection, Document, server_time, translated_errors
from oauth_ratelimit.store.mongo.document import (
    EXPIRE,
    MAX_BYTES,
    document_id,
    filter_of_client,
    filter_of_live,
    parse_all,
    projection,
    reset_of,
)

MAX_NAMED = 5  # damaged documents in an error
MAX_LOOKED_AT = 200  # documents after a reset, each of up to 512 KiB


class ServerFacts(NamedTuple):
    """Version and time of MongoDB, and the approximate number of counter documents."""

    version: str
    document_count: int
    clock_s: float  # seconds since the epoch


class CounterDocuments:
    """The counter documents of all instances, in a collection whose name has no namespace."""

    def __init__(self, connection: Connection, *, collection: str) -> None:
        self._connection = connection
        self._name = collection

    def facts(self) -> ServerFacts:
        collection = self._connection.collection(self._name)
        with translated_errors():
            return ServerFacts(
                version=str(self._connection.client.server_info()["version"]),
                document_count=collection.estimated_document_count(),
                clock_s=server_time(self._connection.database).timestamp(),
            )

    def every(self, now_s: float) -> Iterator[tuple[Key, Snapshot]]:
        """Yield all documents that have not expired. Reads page by page."""
        yield from self._find(filter_of_live(now_s))

    def latest(self, now_s: float, count: int) -> Iterator[tuple[Key, Snapshot]]:
        """Yield up to ``count`` documents, those that expire last first. Uses the index on ``expire``."""
        last_first = [(EXPIRE, DESCENDING)]
        yield from self._find(filter_of_live(now_s), sort=last_first, limit=count, max_time_ms=MAX_SCAN_MS)

    def of_client(self, client_id: str, *, at_most: int = 0) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of a client and of its users, or only ``at_most``. Uses the index on ``_id``."""
        yield from self._find(filter_of_client(client_id), limit=at_most)

    def of_keys(self, keys: Collection[Key]) -> Iterator[tuple[Key, Snapshot]]:
        """Yield the documents of these keys, as far as they exist."""
        yield from self._find({"_id": {"$in": [document_id(key) for key in keys]}})

    def reset(self, client_id: str, username: str | None = None) -> int:
        """Set the counters of a client, or of one user of it, to zero on all instances.

        Returns the number of documents that had hits. A user's counters are those at all grant types and endpoints.
        Raises ``StoreRejected`` if some of the first ``MAX_LOOKED_AT`` are damaged: of those each instance goes on by
        what it has counted itself.
        """
        everything = filter_of_client(client_id, username)
        selected, update = reset_of(everything)
        with translated_errors():
            count = self._connection.collection(self._name).update_many(selected, update).modified_count
        damaged: list[str] = []
        with suppress(StoreError):  # the counters are set to zero all the same
            for key, found in self._find(everything, limit=MAX_LOOKED_AT, max_time_ms=MAX_SCAN_MS):
                if found.damage:
                    damaged.append(f"{document_id(key)} ({found.damage})")
        if damaged:
            raise StoreRejected(
                f"{count} counters are set to zero, but instances do not read {len(damaged)} of the first "
                f"{MAX_LOOKED_AT} in {self._connection.collection(self._name).name}: {', '.join(damaged[:MAX_NAMED])}"
            )
        return count

    def _find(self, selected: Document, **options: Any) -> Iterator[tuple[Key, Snapshot]]:
        collection = self._connection.collection(self._name)
        with translated_errors():
            yield from parse_all(collection.find(selected, projection(MAX_BYTES), **options))
