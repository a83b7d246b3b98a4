"""Derives the rollups of the statistics, in the background of each process."""

import time
from collections.abc import Callable, Iterator
from random import SystemRandom

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.errors import StoreError, StoreUnreachable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.store.mongo.rollups import RollupStore, Step

log = get_logger(__name__)

BUDGET_S = 0.3  # of one run, because the next sync cycle waits for it
LOG_INTERVAL_S = 600.0


class RollupTask:
    """Derives what no other instance has derived. A task of the background thread.

    Each process looks once a minute, at a second of its own, so the others mostly find nothing to do. Two that derive a
    step at once write the same.
    """

    def __init__(
        self, store: RollupStore, *, settings: Callable[[], StatisticsSettings], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._second = SystemRandom().uniform(0, MINUTE_S)
        self._next_s = 0.0
        self._work: Iterator[Step] | None = None
        self._log = ThrottledLog(log, LOG_INTERVAL_S)

    def run(self) -> None:
        """Derive steps for some tenths of a second."""
        now_s, keep_s = self._clock(), self._settings().keep_s
        if not keep_s:
            return
        end_s = time.monotonic() + BUDGET_S
        try:
            if self._work is None and not self._next_s - MINUTE_S <= now_s < self._next_s:
                self._next_s = (now_s - self._second) // MINUTE_S * MINUTE_S + MINUTE_S + self._second
                self._work = self._store.derive_due(now_s, keep_s=keep_s)
            while self._work is not None and time.monotonic() < end_s:
                if next(self._work, None) is None:
                    self._work = None
        except StoreError as exc:
            self._work = None  # the next look finds the rest again
            if not isinstance(exc, StoreUnreachable):
                self._log.warning("rollups_refused", error=str(exc))

    def close(self, deadline: Deadline) -> None:
        """Leave the rest to other instances."""
