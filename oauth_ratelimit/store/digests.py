"""
How far the digests of a day have been sent, so that one instance sends them and another goes on after a crash.

Goes by MongoDB's clock alone, as a lease does.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from oauth_ratelimit.store.connection import Connection, Document
from oauth_ratelimit.store.heartbeats import STATISTICS
from oauth_ratelimit.store.lease import LONG_AGO
from oauth_ratelimit.store.mongo import translated_errors

KEEP_S = 40 * 86_400.0


@dataclass(frozen=True, slots=True)
class Progress:
    """
    A day that is ours to send.

    Args:
        after: The last client that is done with, in the order of ids; "" for none.

        sent_count: Clients whose digest was taken.

        refused_count: Clients whose digest was refused for good.

        failure_count: How often sending stopped since the last client.
    """

    after: str = ""
    sent_count: int = 0
    refused_count: int = 0
    failure_count: int = 0


class DigestStore:
    """
    The state of each day's digests.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.

        holder: Who claims.
    """

    def __init__(self, connection: Connection, *, holder: str) -> None:
        self._connection = connection
        self._holder = holder

    def claim(self, day: str, *, day_s: int, lease_s: float) -> Progress | None:
        """
        Take a day that nobody is at work on, and that is not done.

        Args:
            day: Its name.

            day_s: When it began, seconds since the epoch.

            lease_s: For how long it is ours, unless ``keep`` makes it longer.

        Returns:
            How far it is, None if it is not ours.
        """
        expire = datetime.fromtimestamp(day_s + KEEP_S, UTC)
        blank: Document = {"holder": None, "until": LONG_AGO, "isDone": False, "expire": expire}
        blank |= {"after": "", "sent": 0, "refused": 0, "failures": 0}
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            with suppress(DuplicateKeyError):  # somebody else was faster in creating it
                collection.update_one(_id(day), {"$setOnInsert": blank}, upsert=True)
            free = {**_id(day), "isDone": False, "$expr": {"$lt": ["$until", "$$NOW"]}}
            taken = collection.find_one_and_update(
                free, [_lease(self._holder, lease_s)], return_document=ReturnDocument.AFTER
            )
        if taken is None:
            return None
        return Progress(str(taken["after"]), int(taken["sent"]), int(taken["refused"]), int(taken["failures"]))

    def is_done(self, day: str) -> bool:
        """
        Whether nothing is left to do for a day.
        """
        with translated_errors():
            return self._connection.collection(STATISTICS).find_one({**_id(day), "isDone": True}) is not None

    def keep(self, day: str, progress: Progress, *, lease_s: float) -> bool:
        """
        Note how far a day is, and keep it for longer.

        Returns:
            Whether it is still ours.
        """
        return self._update(day, progress, _lease(self._holder, lease_s))

    def stop(self, day: str, progress: Progress, *, wait_s: float, is_done: bool) -> None:
        """
        Give a day back.

        Args:
            day: Its name.

            progress: How far it is.

            wait_s: How long nobody is to take it up.

            is_done: Whether nothing is left to do for it.
        """
        self._update(day, progress, {"$set": {"isDone": is_done}}, _lease(None, wait_s))

    def _update(self, day: str, progress: Progress, *stages: Document) -> bool:
        state = {
            "after": {"$literal": progress.after},
            "sent": progress.sent_count,
            "refused": progress.refused_count,
            "failures": progress.failure_count,
        }
        ours = {**_id(day), "holder": self._holder, "isDone": False}
        with translated_errors():
            done = self._connection.collection(STATISTICS).update_one(ours, [{"$set": state}, *stages])
        return done.matched_count == 1


def _id(day: str) -> Document:
    return {"_id": {"digest": day}}


def _lease(holder: str | None, lease_s: float) -> Document:
    return {"$set": {"holder": {"$literal": holder}, "until": {"$add": ["$$NOW", int(lease_s * 1000)]}}}
