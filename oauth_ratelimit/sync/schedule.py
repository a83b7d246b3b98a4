"""Times at which the sync cycle takes each row again."""

from collections.abc import Callable
from math import inf

from oauth_ratelimit.sync import reading
from oauth_ratelimit.sync.flusher import Remote
from oauth_ratelimit.sync.replica import Replica


class Schedule:
    """Times at which rows are taken next. ``monotonic`` returns the time of a clock that is never set.

    Attributes:
        left: Requests that the last full cycle could not write, by row.
        quarantined: Rows whose document it has found damaged.
    """

    def __init__(
        self, *, interval_s: float, max_interval_s: float, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._interval_s = interval_s
        self._max_interval_s = max_interval_s
        self._clock = clock
        self._monotonic = monotonic
        self._began_s = 0.0  # time of the present cycle, by the limiter's clock
        self._found_rates: dict[str, float] = {}  # hits per second of others that its reads have found, by row
        self._empty_counts: dict[str, int] = {}  # reads in a row that found nothing since the last request, by row
        self.left: dict[str, int] = {}
        self.quarantined: set[str] = set()

    def begin_full(self) -> None:
        """Begin a full cycle."""
        self.left, self.quarantined = {}, set()

    def begin(self) -> None:
        """Begin to synchronise rows."""
        self._began_s, self._found_rates = self._clock(), {}

    def forget(self, name: str) -> None:
        """Forget a row that is removed."""
        self._empty_counts.pop(name, None)

    def forget_all(self) -> None:
        """Forget what is known of rows, because another process may have removed some."""
        self._empty_counts.clear()

    def is_overdue(self, replica: Replica) -> bool:
        """Return whether a document is read although the write was no conflict."""
        document, now_s = replica.document, self._clock()
        if document.read_s is None:
            return document.version is not None  # what was written here may not be all
        return replica.limits is not None and reading.is_overdue(
            now_s - document.read_s,
            shortest_window_s=min(tier.window_s for tier in replica.tiers),
            horizon_s=replica.limits.horizon_s,
            is_far=lambda: replica.is_far(now_s),
        )

    def put(
        self, replica: Replica, remote: Remote | None = None, *, is_failed: bool = False, is_rejected: bool = False
    ) -> None:
        """Decide when a row is taken next, or forget it."""
        now_s, monotonic_s = self._clock(), self._monotonic()
        replica.requested_s = min(replica.requested_s, now_s)  # a clock that was set back must not keep it for so long
        replica.urgent_s = None
        self.left.pop(replica.name, None)
        self.quarantined.discard(replica.name)
        if replica.document.is_quarantined:
            self.quarantined.add(replica.name)
        if is_failed:
            replica.document.read_s = replica.document.known_s = None  # others may have written meanwhile
        is_held_up = is_failed or is_rejected or replica.attempt is not None
        if is_held_up or (replica.has_unsent and replica.document.is_quarantined):
            if not replica.is_total:  # a request is in the hits of its key and in those of the total
                self.left[replica.name] = replica.request_count(replica.in_flight)
            replica.due_s = monotonic_s
            return
        gap_s = self._read_gap_s(replica, now_s, remote)
        if replica.has_unsent:  # of requests that came during the cycle, or that lost each race
            wait_s = replica.limits.wait_s if replica.limits and replica.is_far(now_s) else 0.0
            replica.due_s = monotonic_s + max(0.0, min(wait_s, self._max_interval_s) - self._interval_s)
            if replica.must_send(now_s):
                replica.urgent_s = monotonic_s
        elif replica.is_asked:  # by requests that were counted nowhere, since this cycle has written the hits
            replica.due_s = monotonic_s
        elif replica.is_idle(now_s):
            replica.is_forgotten = True
            self.forget(replica.name)
        else:
            over_s = replica.requested_s + replica.horizon_s - now_s + self._interval_s
            replica.due_s = monotonic_s + min(gap_s, over_s)
        if gap_s <= self._interval_s / 2 and replica.urgent_s is None:
            replica.urgent_s = monotonic_s + gap_s

    def _read_gap_s(self, replica: Replica, now_s: float, remote: Remote | None) -> float:
        """Return the seconds until a row is read although it has no requests, ``inf`` if it is not."""
        name = replica.name
        quiet_s = 0.0 if replica.requested_s >= self._began_s else now_s - replica.requested_s
        if remote is not None:
            self._found_rates[name] = reading.found_rate(remote.hits, remote.passed_s)
        if quiet_s <= 0.0 or (remote is not None and remote.hits):
            self._empty_counts.pop(name, None)
        elif remote is not None:
            self._empty_counts[name] = self._empty_counts.get(name, 0) + 1
        gap_s = min(
            (
                reading.read_gap_s(
                    tier,
                    content,
                    quiet_s=quiet_s,
                    found_rate=self._found_rates.get(name, 0.0),
                    writer_count=replica.writer_count,
                    instance_count=replica.expected_writer_count,
                    interval_s=self._interval_s,
                )
                for tier, content in zip(replica.tiers, replica.contents(now_s), strict=True)
                if content.estimate >= reading.AGAIN_RATIO * tier.limit  # few keys
            ),
            default=inf,
        )
        return max(gap_s, reading.back_off_s(self._empty_counts.get(name, 0), remote.passed_s if remote else 0.0))
