"""
From settings to parts: the one place that knows which stores there are.
"""

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.mongo import MongoStore
from oauth_ratelimit.store.overrides import OverrideStore

OVERRIDES = "ratelimit_overrides"


def open_store(settings: StoreSettings) -> CounterStore | None:
    """
    Return the store of a configuration, None if the limits hold in this process only. Does not connect yet.
    """
    if settings.uri is None:
        return None
    collection = collection_name(settings, settings.collection)
    return MongoStore(settings.uri, collection=collection, timeout_s=settings.timeout_s)


def open_overrides(settings: StoreSettings) -> OverrideStore | None:
    """
    Return the store of overrides, None if nothing is shared. Does not connect yet.
    """
    if settings.uri is None:
        return None
    collection = collection_name(settings, OVERRIDES)
    return OverrideStore(settings.uri, collection=collection, timeout_s=settings.timeout_s)


def collection_name(settings: StoreSettings, name: str) -> str:
    """
    Return what a collection is called in the database: the namespace keeps issuers apart.
    """
    return f"{settings.namespace}_{name}" if settings.namespace else name
