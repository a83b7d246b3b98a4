"""Time of the store's clock, and its difference from this machine's."""

import json
import math
from collections.abc import Callable

from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.store.base import CounterStore

log = get_logger(__name__)

MEASURE_EVERY_S = 60.0
SAMPLE_COUNT = 3  # the one with the shortest round trip is the most exact
NOTABLE_S = 0.5  # less is within the delay of a loaded network
MAY_LACK = (False, False, True, False, False, True)  # for each number of a measurement whether it may be missing


class ServerClock:
    """The store's clock as measured, carried on with the monotonic clock in between.

    It measures once a minute, and at once when the two clocks of this machine disagree. A change that they do not
    explain, such as a failover to a server with a wrong clock, counts only when the next measurement confirms it.
    ``offset_s`` is how far the store's clock is ahead of the wall clock; 0.0 if they hardly differ. ``on_change`` is
    called with the server's time at monotonic zero, to go by: from then on a wall clock that is set changes nothing.
    Where it is None, the offset is no fault, and is not logged. ``measurement`` is the last one as text, which another
    process of the machine can ``adopt``; None without one.
    """

    def __init__(
        self,
        store: CounterStore,
        *,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        on_change: Callable[[float], None] | None,
    ) -> None:
        self.offset_s = 0.0
        self.measurement: str | None = None
        self._store = store
        self._wall = wall
        self.monotonic = monotonic
        self._on_change = on_change
        self._measured_s: float | None = None  # by the monotonic clock
        self._epoch_s = 0.0  # the store's time when the monotonic clock was at zero
        self._unconfirmed_epoch_s: float | None = None  # ``_epoch_s`` of a measurement that the next one must confirm
        self._followed_s: float | None = None  # the time that ``on_change`` was called with last
        self._wall_epoch_s = 0.0  # the wall clock's time when the monotonic clock was at zero
        self._asked: tuple[float | None] | None = None  # the answer in this cycle

    @property
    def is_measured(self) -> bool:
        """True if the store's clock was measured."""
        return self._measured_s is not None

    def begin_cycle(self) -> None:
        """Measure if it is time to. Logs ``clock_skew`` when the clocks drift apart, or come together again."""
        self._asked = None
        now_s, wall_s = self.monotonic(), self._wall()
        is_fresh = self._measured_s is not None and now_s - self._measured_s < MEASURE_EVERY_S
        if not is_fresh or abs(wall_s - now_s - self._wall_epoch_s) > NOTABLE_S:
            self._measure()

    def _measure(self) -> None:
        """Measure the store's clock, and take over its time unless nothing explains or confirms a change."""
        _, epoch_s = min(self._sample() for _ in range(SAMPLE_COUNT))
        now_s = self.monotonic()
        wall_epoch_s = self._wall() - now_s
        former_s = self._unconfirmed_epoch_s
        is_confirmed = former_s is not None and abs(epoch_s - former_s) <= NOTABLE_S
        if not self.is_measured or is_confirmed or self._is_explained(epoch_s, wall_epoch_s):
            self._epoch_s, self._unconfirmed_epoch_s = epoch_s, None
        else:
            self._unconfirmed_epoch_s = epoch_s
        offset_s = self._epoch_s - wall_epoch_s
        self._follow(wall_epoch_s, offset_s if abs(offset_s) >= NOTABLE_S else 0.0)
        self._measured_s, self._wall_epoch_s = now_s, wall_epoch_s  # last: if interrupted, the next cycle measures
        times = now_s, self._epoch_s, self._unconfirmed_epoch_s, wall_epoch_s, self.offset_s, self._followed_s
        self.measurement = json.dumps(times)

    def adopt(self, measurement: str) -> None:
        """Go by the measurement of another process, so that all of a machine have the same time.

        A damaged one is ignored; the process that measures replaces it.
        """
        if measurement == self.measurement:
            return
        times = _times_of(measurement)
        if times is None:
            return
        followed_s = times[5]
        if self._on_change is not None and followed_s is not None and followed_s != self._followed_s:
            offset_s = followed_s + self.monotonic() - self._wall()
            if abs(offset_s - self.offset_s) >= NOTABLE_S:
                log.warning("clock_skew", offset_s=round(offset_s, 3), former_offset_s=round(self.offset_s, 3))
            self._on_change(followed_s)
            self._followed_s = followed_s
        # Last: a measurement that was adopted is ignored from then on, and must be followed.
        self._measured_s, self._unconfirmed_epoch_s = times[0], times[2]
        self._epoch_s, self._wall_epoch_s, self.offset_s = times[1] or 0.0, times[3] or 0.0, times[4] or 0.0
        self.measurement = measurement

    def _is_explained(self, epoch_s: float, wall_epoch_s: float) -> bool:
        """Return whether the store's clock has gone on as one of the two clocks of this machine has."""
        changed_s = epoch_s - self._epoch_s
        # A machine that was suspended wakes up with a wall clock that has gone on and a monotonic clock that has not.
        wall_changed_s = wall_epoch_s - self._wall_epoch_s
        return min(abs(changed_s), abs(changed_s - wall_changed_s)) <= NOTABLE_S

    def _follow(self, wall_epoch_s: float, offset_s: float) -> None:
        if abs(offset_s - self.offset_s) >= NOTABLE_S:
            if self._on_change is not None:
                log.warning("clock_skew", offset_s=round(offset_s, 3), former_offset_s=round(self.offset_s, 3))
            self.offset_s = offset_s
        followed_s = wall_epoch_s + offset_s
        if self._on_change is None:
            return
        if self._followed_s is None or abs(followed_s - self._followed_s) >= NOTABLE_S:
            self._on_change(followed_s)
            self._followed_s = followed_s

    def _sample(self) -> tuple[float, float]:
        """Return the length of a round trip, and the store's time when the monotonic clock was at zero."""
        asked_s = self.monotonic()
        time_s = self._store.time_s()
        answered_s = self.monotonic()
        return answered_s - asked_s, time_s - (asked_s + answered_s) / 2

    def time_s(self) -> float | None:
        """Return the earliest that the store's time can be, asked once in a cycle: what is removed goes by it.

        None if the store does not answer, or if its clock and the time carried on from the last one differ.
        """
        if self._asked is None:
            self._asked = (self._ask(),)
        return self._asked[0]

    def _ask(self) -> float | None:
        if self._measured_s is None or self._unconfirmed_epoch_s is not None:
            return None
        try:
            round_trip_s, epoch_s = self._sample()
        except StoreError:
            return None
        if abs(epoch_s - self._epoch_s) > NOTABLE_S + round_trip_s:
            return None
        # The process may have been stopped while it waited, so the store may have read its clock at the very end.
        return epoch_s - round_trip_s / 2 + self.monotonic()


def _times_of(measurement: str) -> list[float | None] | None:
    """Return the numbers of a measurement, None if it is damaged."""
    try:
        times = json.loads(measurement)
        is_valid = all(
            (number is None and may_lack) or math.isfinite(number)
            for number, may_lack in zip(times, MAY_LACK, strict=True)
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return times if is_valid else None
