"""Reads the counters back from MongoDB, with the driver alone: nothing of the limiter takes part."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from demo.tally import Key
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.client import connect, database_of
from tests.support.mongod_program import MONGO_URI_VARIABLE, MongodUnavailable

_TIMEOUT_S = 10.0


@contextmanager
def counters_in(uri: str, namespace: str) -> Iterator["Collection[dict[str, Any]]"]:
    """Yield the collection of counters in a namespace, and drop all collections of that afterwards.

    Raises:
        MongodUnavailable: Nobody answers at this URI, or not to us, or it is none.
    """
    try:
        connected = connect(uri, timeout_s=_TIMEOUT_S)
    except StoreRejected as exc:
        raise MongodUnavailable(f"in {MONGO_URI_VARIABLE}, {exc}") from exc
    with connected as client:
        try:
            client.admin.command("ping")
        except PyMongoError as exc:
            raise MongodUnavailable(f"the one that {MONGO_URI_VARIABLE} names does not answer") from exc
        database = database_of(client)
        try:
            yield database[f"{namespace}_ratelimits"]
        finally:
            for name in database.list_collection_names(filter={"name": {"$regex": f"^{namespace}_"}}):
                database.drop_collection(name)


def read_counts(documents: "Collection[dict[str, Any]]") -> Counter[Key]:
    """Return per client and user what MongoDB holds.

    Each request counts once in every tier. The widest tier still has all its frames: they leave after an hour.
    """
    counts: Counter[Key] = Counter()
    for document in documents.find():
        tiers = document["requestCounters"]
        widest = max(tiers, key=int)
        identity = document["_id"]
        counts[identity["clientId"], identity["username"]] += sum(tiers[widest].values())
    return counts
