"""Let MongoDB remove expired counters and statistics."""

from collections.abc import Mapping
from typing import Any


def is_done(collections: Mapping[str, Any]) -> bool:
    """Return True if the TTL indexes exist: instances make them, too, where their rights allow."""
    return all("expire" in collections[name].index_information() for name in ("ratelimits", "ratelimit_stats"))


def upgrade(collections: Mapping[str, Any]) -> None:
    """Create the TTL indexes; those that exist stay."""
    for name in ("ratelimits", "ratelimit_stats"):
        collections[name].create_index("expire", name="expire", expireAfterSeconds=0)
