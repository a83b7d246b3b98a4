"""Let MongoDB remove expired counters and statistics."""

from collections.abc import Mapping
from typing import Any


def upgrade(collections: Mapping[str, Any]) -> None:
    """Create the TTL indexes; those that exist stay."""
    for name in ("ratelimits", "ratelimit_stats"):
        collections[name].create_index("expire", name="expire", expireAfterSeconds=0)
