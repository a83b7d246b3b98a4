"""
From settings to parts: the one place that knows which store there is.
"""

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo import MongoStore


def open_store(settings: StoreSettings) -> CounterStore | None:
    """
    Return the store of a configuration, None if the limits hold in this process only. Does not connect yet.
    """
    if settings.uri is None:
        return None
    collection = settings.collection
    if settings.namespace:
        collection = f"{settings.namespace}_{collection}"
    return MongoStore(settings.uri, collection=collection, timeout_s=settings.timeout_s)
