"""
Statistics in MongoDB: one document per client and minute, written by all instances.

Exactly once without a protocol: each process keeps its own growing numbers under a name of its own and writes them with
``$max``, so that a write that is repeated, late or doubled changes nothing. The sum over the processes is the truth.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import structlog
from pymongo import ASCENDING
from pymongo.errors import BulkWriteError, OperationFailure

from oauth_ratelimit.core.statistics import MINUTE_S, ClientMinute, Share
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.process.yielding import gently
from oauth_ratelimit.store.mongo.client import (
    AUTHENTICATION_FAILED,
    Connection,
    Document,
    ensure_expiry,
    translated_errors,
)
from oauth_ratelimit.store.mongo.heartbeats import STATISTICS
from oauth_ratelimit.store.mongo.minute_form import compose_update, parse_minute

log = structlog.get_logger(__name__)

PARTS: Final = ("by", "peaks", "users", "registers", "burst")
DUPLICATE_KEY = 11000
PAGE = 1000  # documents that the server sends at once
LONGEST_LOOK_MS = 2000  # where the index is missing, MongoDB would look through everything


class StatisticsStore:
    """
    The statistics of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._has_indexes = False

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        """
        Write what a process has counted, in one bulk. A repeated or late write changes nothing.

        Args:
            writer: Names the process for ever: letters, digits, hyphens and underscores.

            shares: Its numbers.

            keep_s: How long they are kept.

        Returns:
            The positions of those that were refused, because something else is in their place in the document.
        """
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            if not self._has_indexes:
                ensure_expiry(collection)
                self._ensure_minutes()
                self._has_indexes = True
            try:
                collection.bulk_write(
                    [compose_update(writer, share, keep_s) for share in gently(shares)], ordered=False
                )
            except BulkWriteError as exc:
                if exc.details["writeConcernErrors"]:
                    raise StoreUnavailable("a majority did not confirm the write") from exc
                if any(error["code"] == DUPLICATE_KEY for error in exc.details["writeErrors"]):
                    raise StoreUnavailable("two processes began the same minute at once") from exc
                return [error["index"] for error in exc.details["writeErrors"]]
        return []

    def minutes(
        self,
        since_s: float,
        until_s: float,
        client_id: str | None = None,
        *,
        parts: Collection[str] = PARTS,
        every: int = 1,
    ) -> Iterator[ClientMinute]:
        """
        Yield the minutes that begin in a time, of all clients or of one, in order of time.

        Args:
            since_s: Seconds since the epoch.

            until_s: Where the time ends; what begins then is not in it.

            client_id: The client, None for all of them.

            parts: What is needed of ``PARTS``: without ``users`` and ``registers`` it goes faster.

            every: 1 for all minutes; 10 for every tenth since the epoch, a sample.
        """
        selected, order = _selection(since_s, until_s, client_id)
        if every > 1:
            selected["_id.minute"] = selected.get("_id.minute", {}) | {"$mod": [every * MINUTE_S, 0]}
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            found = collection.find(selected, dict.fromkeys(parts, 1), batch_size=PAGE)
            for document in found.sort(order, ASCENDING).allow_disk_use(True):  # where the index is missing
                minute = parse_minute(document)
                if minute is not None:
                    yield minute

    def count(self, since_s: float, until_s: float, client_id: str | None = None) -> int:
        """
        Return how many ``minutes`` would yield.
        """
        selected, _ = _selection(since_s, until_s, client_id)
        with translated_errors():
            return self._connection.collection(STATISTICS).count_documents(selected)

    def knows(self, client_id: str) -> bool:
        """
        Return whether there is any minute of a client.
        """
        selected, _ = _selection(0.0, math.inf, client_id)
        with translated_errors():
            return self._connection.collection(STATISTICS).find_one(selected, {"_id": 1}) is not None

    def clients(self, since_s: float, *, at_most: int) -> set[str]:
        """
        Return who has asked since a time; looks at so many minutes of clients at most.
        """
        selected, _ = _selection(since_s, math.inf, None)
        with translated_errors():
            found = self._connection.collection(STATISTICS).find(selected, {"_id": 1}).limit(at_most)
            names = {document["_id"].get("clientId") for document in found.max_time_ms(LONGEST_LOOK_MS)}
        return {name for name in names if isinstance(name, str)}

    def _ensure_minutes(self) -> None:
        """
        Create the index on the minute where rights allow. Without it reading takes longer.
        """
        collection = self._connection.collection(STATISTICS)
        try:
            collection.create_index("_id.minute", name="minute", sparse=True)
        except OperationFailure as exc:
            if exc.code == AUTHENTICATION_FAILED:
                raise
            log.warning(
                "minute_index_missing", collection=collection.name, reason=exc.details and exc.details["errmsg"]
            )


def _selection(since_s: float, until_s: float, client_id: str | None) -> tuple[Document, str]:
    """
    Return the filter for the minutes that begin in a time, and the field that orders them by it.
    """
    first_s = int(-(-since_s // MINUTE_S) * MINUTE_S)
    if client_id is None:
        return {"_id.minute": {"$gte": first_s, "$lt": until_s}}, "_id.minute"
    lowest, end = ({"clientId": client_id, "minute": limit_s} for limit_s in (first_s, until_s))
    return {"_id": {"$gte": lowest, "$lt": end}}, "_id"
