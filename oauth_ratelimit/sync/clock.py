"""Difference between this machine's clock and the store's."""

import structlog

from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.store.base import CounterStore

log = structlog.get_logger(__name__)

MEASURE_EVERY_S = 60.0
NOTABLE_S = 0.5  # less is within the delay of a loaded network


class ServerClock:
    """Measures the offset of the store's clock once a minute.

    Args:
        store: The store with the clock that counts.

    Attributes:
        offset_s: Seconds that the store's clock is ahead; 0.0 if they hardly differ.
    """

    def __init__(self, store: CounterStore) -> None:
        self.offset_s = 0.0
        self._store = store
        self._next_s = 0.0

    def measure(self, now_s: float) -> None:
        """Measure if it is time to. Logs ``clock_skew`` when the clocks drift apart, or come together again."""
        if self._next_s - MEASURE_EVERY_S <= now_s < self._next_s:
            return
        try:
            offset_s = self._store.clock_offset_s()
        except StoreError:
            return  # the next cycle tries again
        self._next_s = now_s + MEASURE_EVERY_S
        if abs(offset_s) < NOTABLE_S:
            offset_s = 0.0
        if abs(offset_s - self.offset_s) >= NOTABLE_S:
            log.warning("clock_skew", offset_s=round(offset_s, 3), former_offset_s=round(self.offset_s, 3))
            self.offset_s = offset_s
