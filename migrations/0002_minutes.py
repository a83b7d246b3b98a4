"""
Let statistics be read by time without looking at every document.
"""

from typing import Any

name = "0002_minutes"
dependencies: list[str] = ["0001_indexes"]


def upgrade(db: Any) -> None:
    """
    Create the index on the minute; if it exists, it stays. What has no minute is not in it.
    """
    db["ratelimit_stats"].create_index("_id.minute", name="minute", sparse=True)


def downgrade(db: Any) -> None:
    """
    Drop the index. Statistics of all clients then take longer to read.
    """
    if "minute" in db["ratelimit_stats"].index_information():
        db["ratelimit_stats"].drop_index("minute")
