"""
What the log is told of documents that cannot be used.
"""

from typing import Any

import structlog

from oauth_ratelimit.core.key import Key, visible_name

log = structlog.get_logger(__name__)

REPEAT_S = 60.0  # one event of a kind per key and this long
MAX_KEYS = 1000  # a collection full of damaged documents must not fill the log


class Complaints:
    """
    Says once per key and minute what is wrong with its document. Used by the sync cycle alone.
    """

    def __init__(self) -> None:
        self._said_s: dict[tuple[str, Key], float] = {}

    def say(self, event: str, key: Key, now_s: float, **facts: Any) -> None:
        """
        Log a complaint, unless that was done a moment ago or too many were.

        Args:
            event: What the log calls it.

            key: Whose document it is.

            now_s: The time, seconds since the epoch.

            facts: What else the log is told.
        """
        said_s = self._said_s.get((event, key))
        if said_s is not None and said_s <= now_s < said_s + REPEAT_S:
            return
        if len(self._said_s) >= MAX_KEYS:
            self._said_s = {said: at_s for said, at_s in self._said_s.items() if at_s <= now_s < at_s + REPEAT_S}
            if len(self._said_s) >= MAX_KEYS:
                return
        self._said_s[event, key] = now_s
        username = None if key.username is None else visible_name(key.username)
        log.error(event, client_id=visible_name(key.client_id), username=username, scope=key.scope, **facts)
