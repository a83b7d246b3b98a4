"""From settings to parts: the one place that knows which stores there are."""

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo.client import Connection, full_name
from oauth_ratelimit.store.mongo.counters import MongoStore


def open_store(settings: StoreSettings) -> CounterStore | None:
    """Return the store of a configuration, None if the limits hold in this process only. Does not connect yet."""
    if settings.uri is None:
        return None
    collection = full_name(settings.collection, namespace=settings.namespace)
    return MongoStore(settings.uri, collection=collection, timeout_s=settings.timeout_s)


def open_connection(settings: StoreSettings) -> Connection | None:
    """Return the way to what is beside the counters, None if nothing is shared. Does not connect yet."""
    if settings.uri is None:
        return None
    return Connection(settings.uri, namespace=settings.namespace, timeout_s=settings.timeout_s)
