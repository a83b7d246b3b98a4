"""Notices of clients that have revoked a token: all instances drop the tokens that they keep of them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from bson import ObjectId
from pymongo import DESCENDING, UpdateOne

from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, Document, server_time, translated_errors
from oauth_ratelimit.store.mongo.fields import NO_LIST, fits

REVOCATION = "revocation"  # in the id; in the statistics, because MongoDB removes what has expired there
KEPT = timedelta(hours=2)  # more than the longest ``reuse.max_age``
SLACK = timedelta(minutes=1)  # by which the clocks of MongoDB's members may differ
MAX_NOTICES = 1000  # the newest
MAX_BYTES = 8192
NOT_AHEAD: Final[Document] = {"$expr": {"$lte": ["$at", {"$add": ["$$NOW", SLACK // timedelta(milliseconds=1)]}]}}


class RevocationNotices:
    """The notices of all instances, as one of them reads and writes them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, object] = {}  # stamps by client
        self._since = datetime.fromtimestamp(0, UTC)

    def announce(self, client_ids: Iterable[str]) -> None:
        """Have all instances drop the tokens of clients; ``OTHER_CLIENTS`` means all."""
        with translated_errors():
            at = server_time(self._connection.database)
            fields = {"$set": {"stamp": ObjectId(), "at": at, "expire": at + KEPT}}
            self._connection.collection(STATISTICS).bulk_write(
                [UpdateOne({"_id": {REVOCATION: client_id}}, fields, upsert=True) for client_id in client_ids],
                ordered=False,
            )

    def read(self) -> set[str]:
        """Return the clients with notices since the last call; ``OTHER_CLIENTS`` means all."""
        selected: Document = {
            "_id": {"$gte": {REVOCATION: ""}, "$lt": {REVOCATION: {}}},
            f"_id.{REVOCATION}": {"$type": "string"},
            "at": {"$gte": self._since, **NO_LIST},
            "$and": [NOT_AHEAD, fits(MAX_BYTES)],
        }
        with translated_errors():
            found = self._connection.collection(STATISTICS).find(selected)
            notices = list(found.sort("at", DESCENDING).limit(MAX_NOTICES))
        stamps = {notice["_id"][REVOCATION]: notice.get("stamp") for notice in notices}
        new = {client_id for client_id, stamp in stamps.items() if self._known.get(client_id) != stamp}
        if notices:
            self._known, self._since = stamps, notices[0]["at"] - SLACK
        return {OTHER_CLIENTS} if new and len(notices) == MAX_NOTICES else new
