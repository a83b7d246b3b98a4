"""Derives the rollups of the statistics, in the background of each process."""

import random
import time
from collections.abc import Callable

from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
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
        self._second = random.uniform(0, MINUTE_S)
        self._next_s = 0.0
        self._looked_at_s = 0.0
        self._found: list[Step] = []
        self._due: list[Step] = []
        self._log = ThrottledLog(log, LOG_INTERVAL_S)

    def run(self) -> None:
        """Derive steps for some tenths of a second."""
        now_s, keep_s = self._clock(), self._settings().keep_s
        if not keep_s:
            return
        end_s = time.monotonic() + BUDGET_S
        try:
            if not self._due and not self._next_s - MINUTE_S <= now_s < self._next_s:
                self._next_s = (now_s - self._second) // MINUTE_S * MINUTE_S + MINUTE_S + self._second
                self._found = self._store.due(now_s)
                self._due, self._looked_at_s = list(self._found), now_s
            while self._due and time.monotonic() < end_s:
                self._store.derive(self._due[0], keep_s=keep_s)
                del self._due[0]
                if not self._due:
                    self._store.forget_late(self._found, now_s=self._looked_at_s)
        except StoreUnavailable:
            self._due = []  # the next look finds them again
        except StoreRejected as exc:
            self._due = []
            self._log.warning("rollups_refused", error=str(exc))

    def close(self, deadline: Deadline) -> None:
        """Leave the rest to other instances."""
