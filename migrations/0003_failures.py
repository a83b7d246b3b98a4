"""Let MongoDB remove expired counters of failed authentications."""

from collections.abc import Mapping
from typing import Any


def is_done(collections: Mapping[str, Any]) -> bool:
    """Return True if the TTL index exists, or no collection: instances with the guard make both where rights allow."""
    indexes = collections["ratelimit_failures"].index_information()  # empty without a collection
    return not indexes or "expire" in indexes


def upgrade(collections: Mapping[str, Any]) -> None:
    """Create the TTL index, also where the guard is off: somebody may switch it on. If it exists, it stays."""
    collections["ratelimit_failures"].create_index("expire", name="expire", expireAfterSeconds=0)
