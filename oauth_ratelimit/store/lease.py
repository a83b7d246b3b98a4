"""
A lease: of many processes that start at once, one does what has to be done once.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.connection import Document
from oauth_ratelimit.store.mongo import translated_errors

LEASE_ID = "lease"
LEASE_S = 30.0  # so long others wait for a holder that died
RENEW_EVERY_S = 10.0
LOOK_EVERY_S = 0.1

LONG_AGO = datetime.fromtimestamp(0, UTC)


class Lease:
    """
    The lease in one collection. Goes by MongoDB's clock alone, so that nobody's own clock matters.

    Args:
        collection: Where it lies.
    """

    def __init__(self, collection: Collection[Document]) -> None:
        self._collection = collection
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    @contextmanager
    def held(self, *, patience_s: float) -> Iterator[None]:
        """
        Hold the lease, and renew it for as long as that takes.

        Args:
            patience_s: How long to wait for it.

        Raises:
            StoreUnavailable: Somebody else held it all the time, or MongoDB does not answer.
        """
        deadline_s = time.monotonic() + patience_s
        while not self.take():
            if time.monotonic() > deadline_s:
                raise StoreUnavailable(f"not within {patience_s:g} s: another process holds the lease")
            time.sleep(LOOK_EVERY_S)
        done = threading.Event()
        renewer = threading.Thread(target=self._renew_until, args=(done,), name="lease", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            done.set()
            renewer.join()
            self.release()

    def take(self) -> bool:
        """
        Take the lease if nobody holds it, and return whether it is ours now.
        """
        with translated_errors():
            try:
                free = {"$setOnInsert": {"holder": None, "until": LONG_AGO}}
                self._collection.update_one({"_id": LEASE_ID}, free, upsert=True)
            except DuplicateKeyError:
                pass  # somebody else was faster in creating it
            selected = {"_id": LEASE_ID, "$expr": {"$lt": ["$until", "$$NOW"]}}
            return self._collection.update_one(selected, [self._ours()]).modified_count == 1

    def release(self) -> None:
        """
        Give the lease back, if it is still ours.
        """
        with translated_errors():
            ours = {"_id": LEASE_ID, "holder": self.holder}
            self._collection.update_one(ours, {"$set": {"holder": None, "until": LONG_AGO}})

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(RENEW_EVERY_S):
            try:
                with translated_errors():
                    self._collection.update_one({"_id": LEASE_ID, "holder": self.holder}, [self._ours()])
            except StoreUnavailable:
                continue  # what it guards can be run twice

    def _ours(self) -> Document:
        return {"$set": {"holder": self.holder, "until": {"$add": ["$$NOW", int(LEASE_S * 1000)]}}}
