"""Let MongoDB remove what has expired, and find statistics by their minute."""

from collections.abc import Mapping
from typing import Any

from oauth_ratelimit.store.mongo.client import FAILURES
from oauth_ratelimit.store.mongo.indexes import INDEXES, create_indexes


def is_done(collections: Mapping[str, Any]) -> bool:
    """Return True if instances have created the indexes. Without the guard there are no failures."""
    found = {name: collections[name].index_information() for name in INDEXES}
    needed = [
        (name, index) for name, indexes in INDEXES.items() for index in indexes if found[name] or name != FAILURES
    ]
    return all(index.name in found[name] for name, index in needed)


def upgrade(collections: Mapping[str, Any]) -> None:
    """Create the indexes that do not exist."""
    for name, indexes in INDEXES.items():
        create_indexes(collections[name], indexes)
