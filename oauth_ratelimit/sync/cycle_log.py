"""Log events of the sync cycles."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.counters.rules import EVERY_CLIENT, meaning_of
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.replica import Replica

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0  # between two events of a lasting outage
MAX_CLIENTS_LOGGED = 50


class CycleLog:
    """Log events of one limiter's cycles: an outage once a minute, its end, and hits that are lost.

    The clock is one that is never set. ``synced_s`` returns when the last full cycle without an error of any process of
    the host ended by it, None if that is not known.
    """

    def __init__(self, clock: Callable[[], float], synced_s: Callable[[], float | None]) -> None:
        self._clock = clock
        self._synced_s = synced_s
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)
        self._failing_since_s: float | None = None
        self._outage_count = 0

    def note(self, report: CycleReport) -> None:
        """Log what went wrong in a cycle, and the first success after it. An outage lasts from the last one before."""
        now_s = self._clock()
        if report.dropped_hits:
            log.warning(
                "hits_dropped", hits=report.dropped_hits, reason="they waited for the store until no window held them"
            )
        if report.error is not None:
            if self._failing_since_s is None:
                synced_s = self._synced_s()
                self._failing_since_s = now_s if synced_s is None else synced_s
                self._outage_count += 1
            failing_for_s = round(now_s - self._failing_since_s, 1)
            # With a key of its own, each outage is logged at once.
            self._log.warning(
                "flush_failed", key=str(self._outage_count), error=str(report.error), failing_for_s=failing_for_s
            )
        elif self._failing_since_s is not None and (report.flushed_count or report.pulled_count):
            log.info("flush_recovered", failed_for_s=round(now_s - self._failing_since_s, 1))
            self._failing_since_s = None

    def note_elsewhere(self) -> None:
        """Log the end of an outage that another process has seen."""
        synced_s = self._synced_s()
        if self._failing_since_s is not None and synced_s is not None and synced_s > self._failing_since_s:
            log.info("flush_recovered", failed_for_s=round(synced_s - self._failing_since_s, 1))
            self._failing_since_s = None

    def note_unsent(self, replicas: Iterable[Replica], *, is_idle: bool) -> None:
        """Log the hits in flight by client, which will not be sent any more, or may be on their way."""
        found = defaultdict[tuple[str, str | None], list[Counter[bool]]](lambda: [Counter(), Counter()])
        for replica in replicas:
            key, hits = replica.key, replica.request_count(replica.in_flight)
            meaning = meaning_of(key.scope)
            in_flight, unconfirmed = found[key.client_id, meaning.endpoint + (meaning.grant_type or "")]
            in_flight[meaning.is_total] += hits
            unconfirmed[meaning.is_total] += replica.unconfirmed_count if is_idle else hits
        undelivered, unconfirmed_by = Counter[str](), Counter[str]()
        for (client_id, _), (in_flight, unconfirmed) in found.items():
            # Users that have no limit of their own are in the total alone.
            is_total = in_flight[True] > in_flight[False]
            unconfirmed_by[client_id] += unconfirmed[is_total]
            undelivered[client_id] += in_flight[is_total] - unconfirmed[is_total]
        for counted in (undelivered, unconfirmed_by):
            # A request of a user through all clients is in the rows of its client, too, unless that has no limits.
            of_users = counted.pop(EVERY_CLIENT, 0)
            counted[EVERY_CLIENT] = max(0, of_users - counted.total())
        if undelivered.total():
            log.error("hits_undelivered", hits=undelivered.total(), by_client=_largest(undelivered))
        if unconfirmed_by.total():
            log.error("hits_unconfirmed", hits=unconfirmed_by.total(), by_client=_largest(unconfirmed_by))


def _largest(counted: Counter[str]) -> dict[str, int]:
    return {logged_name(client_id): hits for client_id, hits in (+counted).most_common(MAX_CLIENTS_LOGGED)}
