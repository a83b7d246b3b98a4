"""
A bound on what is logged about denials, over all keys.
"""

import heapq
import threading
from dataclasses import dataclass, field

import structlog

from oauth_ratelimit.core.key import visible_name

log = structlog.get_logger("oauth_ratelimit")

MINUTE_S = 60.0
SHARES = 4  # a single client gets one of them, so that its flood does not hide the others
MAX_CLIENTS = 1000  # whose suppressed events are told apart
MAX_NAMED = 5  # of them in the log


@dataclass(slots=True)
class _Minute:
    """
    What one minute has seen.
    """

    since_s: float
    logged_count: int = 0
    logged: dict[str, int] = field(default_factory=dict)  # by client
    suppressed_count: int = 0
    suppressed: dict[str, int] = field(default_factory=dict)  # by client


class Budget:
    """
    So many events in a minute, a quarter of them for one client. Those left out are counted, and told afterwards.

    Counts without a lock: an event more or less does no harm.

    Args:
        per_minute: How many events.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._minute = _Minute(0.0)
        self._turning = threading.Lock()  # so that a minute is told once

    def take(self, client_id: str, now_s: float) -> bool:
        """
        Return whether there is room for one more event about a client.
        """
        self.turn(now_s)
        minute = self._minute
        of_client = minute.logged.get(client_id, 0)
        if minute.logged_count < self.per_minute and of_client < max(1, self.per_minute // SHARES):
            minute.logged_count += 1
            minute.logged[client_id] = of_client + 1
            return True
        minute.suppressed_count += 1
        if client_id in minute.suppressed or len(minute.suppressed) < MAX_CLIENTS:
            minute.suppressed[client_id] = minute.suppressed.get(client_id, 0) + 1
        return False

    def turn(self, now_s: float) -> None:
        """
        Begin another minute if the last one is over, and say what was left out in that.

        Args:
            now_s: The time, seconds since the epoch; infinity at the end.
        """
        minute = self._minute
        if minute.since_s <= now_s < minute.since_s + MINUTE_S:
            return
        with self._turning:
            if self._minute is not minute:
                return
            self._minute = _Minute(now_s)
        if minute.suppressed_count:
            suppressed = list(minute.suppressed.items())  # one step, because late threads still add to it
            most = heapq.nlargest(MAX_NAMED, suppressed, key=lambda item: item[1])
            log.warning(
                "denial_events_suppressed",
                suppressed_count=minute.suppressed_count,
                per_minute=self.per_minute,
                by_client={visible_name(client_id): count for client_id, count in most},
            )
