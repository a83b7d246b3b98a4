"""Notices of clients that have revoked a token: all instances drop the tokens that they keep of them."""

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, Document, code_of, translated_errors

REVOCATION = "revocation"  # in the id; in the statistics, because MongoDB removes what has expired there
KEPT_MS = timedelta(hours=2) // timedelta(milliseconds=1)  # more than the longest ``reuse.max_age``
SLACK_S = 60.0  # by which the clocks of MongoDB's members may differ
BATCH_SIZE = 1000


class RevocationNotices:
    """The notices of all instances, as one of them reads and writes them, each by its ``_id``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, object] = {}  # stamps by client

    def announce(self, client_ids: Collection[str]) -> dict[str, str]:
        """Have all instances drop the tokens of clients; ``OTHER_CLIENTS`` means all.

        A notice is written whole, and MongoDB dates it. Returns what was wrong with those that instances do not read.
        """
        stamp = ObjectId()
        fields = {"_id": "$_id", "stamp": stamp, "at": "$$NOW", "expire": {"$add": ["$$NOW", KEPT_MS]}}
        reason = "it is gone"
        with translated_errors():
            for identities in _ids_of(client_ids):
                changes = [UpdateOne({"_id": each}, [{"$replaceWith": fields}], upsert=True) for each in identities]
                try:
                    self._connection.collection(STATISTICS).bulk_write(changes, ordered=False)
                except BulkWriteError as exc:  # one that cannot be written stops no other
                    reason = code_of(next(iter(exc.details["writeErrors"]), exc.details))
            seen = {client_id for client_id, notice in self._find(client_ids) if notice.get("stamp") == stamp}
        return dict.fromkeys(set(client_ids) - seen, reason)

    def read(self, held_s: Mapping[str, float]) -> set[str]:
        """Return which of some clients have a notice that was not read before; ``OTHER_CLIENTS`` means all.

        ``held_s`` has the seconds for which tokens of each are kept: what was revoked before concerns none of them.
        """
        with translated_errors():
            found = dict(self._find(held_s))
        former, self._known = self._known, {client_id: notice.get("stamp") for client_id, notice in found.items()}
        return {
            client_id
            for client_id, notice in found.items()
            if notice.get("stamp") != former.get(client_id, notice)
            and (notice["age"] or 0) <= 1000 * (held_s[client_id] + SLACK_S)
        }

    def _find(self, client_ids: Collection[str]) -> Iterator[tuple[str, Document]]:
        """Yield the notices of some clients, with their age in milliseconds by MongoDB's clock."""
        age = {"$cond": [{"$eq": [{"$type": "$at"}, "date"]}, {"$subtract": ["$$NOW", "$at"]}, None]}
        stamp = {"$cond": [{"$eq": [{"$type": "$stamp"}, "objectId"]}, "$stamp", None]}
        for identities in _ids_of(client_ids):
            selected = {"_id": {"$in": identities}}
            for notice in self._connection.collection(STATISTICS).find(selected, {"stamp": stamp, "age": age}):
                yield notice["_id"][REVOCATION], notice


def _ids_of(client_ids: Collection[str]) -> Iterator[list[Document]]:
    identities = [{REVOCATION: client_id} for client_id in client_ids]
    yield from (identities[start : start + BATCH_SIZE] for start in range(0, len(identities), BATCH_SIZE))
