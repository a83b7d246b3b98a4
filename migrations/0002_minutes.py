"""Let statistics be read by time without a scan of the collection."""

from collections.abc import Mapping
from typing import Any


def is_done(collections: Mapping[str, Any]) -> bool:
    """Return True if the index exists: instances make it, too, where their rights allow."""
    return "minute" in collections["ratelimit_stats"].index_information()


def upgrade(collections: Mapping[str, Any]) -> None:
    """Create the index on the minute; if it exists, it stays. Documents without a minute are not in it."""
    collections["ratelimit_stats"].create_index("_id.minute", name="minute", sparse=True)
