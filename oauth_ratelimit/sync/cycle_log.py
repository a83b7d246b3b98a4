"""Log events of the sync cycle: outages, and hits that are lost."""

from collections import Counter
from collections.abc import Callable

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.counters.registry import ClientRegistry
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.sync.flusher import CycleReport

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0  # between two events of a lasting outage
MAX_CLIENTS_LOGGED = 50


class CycleLog:
    """Log events of one limiter's cycles: an outage once a minute, its end, and hits that are lost.

    The clock is one that is never set.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)
        self._failing_since_s: float | None = None
        self._outage_count = 0

    def note(self, report: CycleReport) -> None:
        """Log what went wrong in a cycle, and the first success after it."""
        now_s = self._clock()
        if report.dropped_hits:
            log.warning(
                "hits_dropped", hits=report.dropped_hits, reason="they waited for the store until no window held them"
            )
        if report.error is not None:
            if self._failing_since_s is None:
                self._failing_since_s = now_s
                self._outage_count += 1
            failing_for_s = round(now_s - self._failing_since_s, 1)
            # With a key of its own, each outage is logged at once.
            self._log.warning(
                "flush_failed", key=str(self._outage_count), error=str(report.error), failing_for_s=failing_for_s
            )
        elif self._failing_since_s is not None and (report.flushed_count or report.pulled_count):
            log.info("flush_recovered", failed_for_s=round(now_s - self._failing_since_s, 1))
            self._failing_since_s = None

    def note_unsent(self, clients: ClientRegistry, *, is_idle: bool) -> None:
        """Log the hits in flight by client, which will not be sent any more, or may be on their way."""
        undelivered, unconfirmed = Counter[str](), Counter[str]()
        for client in clients:
            of_keys, of_total = (0, 0), (0, 0)  # hits in flight, and those of them that may have been applied
            with client.lock:
                counted = [(state, state.request_count(state.in_flight())) for state in client.all_keys()]
            for state, hits in counted:
                unconfirmed_hits = state.unconfirmed_hits if is_idle else hits
                if state.is_total:
                    of_total = hits, unconfirmed_hits
                else:
                    of_keys = of_keys[0] + hits, of_keys[1] + unconfirmed_hits
            # Users that have no limit of their own are in the total alone.
            hits, unconfirmed_hits = max(of_keys, of_total)
            unconfirmed[client.client_id] += unconfirmed_hits
            undelivered[client.client_id] += hits - unconfirmed_hits
        if undelivered.total():
            log.error("hits_undelivered", hits=undelivered.total(), by_client=_largest(undelivered))
        if unconfirmed.total():
            log.error("hits_unconfirmed", hits=unconfirmed.total(), by_client=_largest(unconfirmed))


def _largest(counted: Counter[str]) -> dict[str, int]:
    return {logged_name(client_id): hits for client_id, hits in (+counted).most_common(MAX_CLIENTS_LOGGED)}
