"""
Let MongoDB remove counters that no window can need any more, and statistics that are too old.
"""

from typing import Any

name = "0001_indexes"
dependencies: list[str] = []

COLLECTIONS = ("ratelimits", "ratelimit_stats")


def upgrade(db: Any) -> None:
    """
    Create the indexes; those that exist stay.
    """
    for collection in COLLECTIONS:
        db[collection].create_index("expire", name="expire", expireAfterSeconds=0)


def downgrade(db: Any) -> None:
    """
    Drop the indexes. Documents then stay until somebody removes them.
    """
    for collection in COLLECTIONS:
        if "expire" in db[collection].index_information():
            db[collection].drop_index("expire")
