"""What else is looked at beside the counters, and when."""

from itertools import pairwise

from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL, SyncScheduler


class Idle:
    """A limiter with nothing to do."""

    def __init__(self) -> None:
        self.full = CycleReport()

    def sync(self) -> CycleReport:
        """Run a full cycle."""
        return self.full

    def sync_urgent(self) -> None:
        """Have nothing urgent."""


def test_ticks_of_three_intervals() -> None:
    """The configuration and the overrides are looked at with the first tick, then after each full cycle."""
    limiter = Idle()
    seen: list[tuple[int, CycleReport | None]] = []
    tick = 0
    scheduler = SyncScheduler(limiter, interval_s=1.0, on_tick=lambda report: seen.append((tick, report)))
    for tick in range(3 * TICKS_PER_INTERVAL):  # noqa: B007  # read by on_tick
        scheduler.run_once()

    full = [number for number, report in seen if report is limiter.full]
    assert 0 == seen[0][0]
    assert 3 == len(full)
    assert [TICKS_PER_INTERVAL] * 2 == [later - sooner for sooner, later in pairwise(full)]
    assert len(seen) - len(full) <= 1
