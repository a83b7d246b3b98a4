"""Is this machine's clock right? Frames are only the same everywhere if clocks are."""

import structlog

from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.store.base import CounterStore

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 60.0
NOTABLE_S = 0.5  # less is within what a loaded network adds to the measurement


class ServerClock:
    """Compares this machine's clock with the store's, now and then.

    Args:
        store: Whose clock is the measure.

    Attributes:
        offset_s: How far the store's clock is ahead; 0.0 while that is too little to matter.
    """

    def __init__(self, store: CounterStore) -> None:
        self.offset_s = 0.0
        self._store = store
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        """Measure, if it is time to. Logs ``clock_skew`` when the clocks have come apart, or together again."""
        if self._next_s - LOOK_EVERY_S <= now_s < self._next_s:
            return
        try:
            offset_s = self._store.clock_offset_s()
        except StoreError:
            return  # the next cycle tries again
        self._next_s = now_s + LOOK_EVERY_S
        if abs(offset_s) < NOTABLE_S:
            offset_s = 0.0
        if abs(offset_s - self.offset_s) >= NOTABLE_S:
            log.warning("clock_skew", offset_s=round(offset_s, 3), former_offset_s=round(self.offset_s, 3))
            self.offset_s = offset_s
