"""Log events about denials, few enough to be read while a client floods."""

import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from oauth_ratelimit.core.cached_denial import SuppressionPeriod
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.denial_record import Denial, Trace
from oauth_ratelimit.core.failed_auth import FAILURE_SCOPES
from oauth_ratelimit.core.key import logged_name, storable_name
from oauth_ratelimit.observe.denials import DenialQueue, PendingDenial

log = structlog.get_logger("oauth_ratelimit")

MINUTE_S = 60.0
SHARES = 4  # a single client gets one of them, so that its flood does not hide the others
MAX_CLIENTS = 1000  # clients whose suppressed events are counted by name
MAX_NAMED = 5  # of them in the log

REPEAT_S = 60.0  # seconds between two events of one key
MAX_KEYS = 10_000  # keys whose last event is remembered

Key = tuple[str, str | None, str | None, bool]
"""Client id, username and scope of a denial, and if it was admitted: a dry run has events of its own."""


@dataclass(slots=True)
class _Minute:
    """Events of one minute, logged and suppressed."""

    since_s: float
    logged_count: int = 0
    logged: Counter[str] = field(default_factory=Counter)  # by client
    suppressed_count: int = 0
    suppressed: Counter[str] = field(default_factory=Counter)  # by client


class EventBudget:
    """Number of events that may be logged in a minute, a quarter of it for one client. Thread-safe.

    Logs ``denial_events_suppressed`` after each minute in which some were left out.

    Args:
        per_minute: Maximum number of events in a minute.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._lock = threading.Lock()  # guards _minute and its counts
        self._minute = _Minute(0.0)

    def admit(self, client_id: str, now_s: float) -> bool:
        """Return True if one more event about a client may be logged, and count it."""
        self.end_minute(now_s)
        with self._lock:
            minute = self._minute
            client_share = max(1, self.per_minute // SHARES)
            if minute.logged_count < self.per_minute and minute.logged[client_id] < client_share:
                minute.logged_count += 1
                minute.logged[client_id] += 1
                return True
            minute.suppressed_count += 1
            if client_id in minute.suppressed or len(minute.suppressed) < MAX_CLIENTS:
                minute.suppressed[client_id] += 1
            return False

    def end_minute(self, now_s: float) -> None:
        """Log what the last minute left out, if it is over.

        Args:
            now_s: Time in seconds since the epoch; infinity ends any minute.
        """
        with self._lock:
            minute = self._minute
            if minute.since_s <= now_s < minute.since_s + MINUTE_S:
                return
            self._minute = _Minute(now_s)
        if minute.suppressed_count:
            log.warning(
                "denial_events_suppressed",
                suppressed_count=minute.suppressed_count,
                per_minute=self.per_minute,
                by_client={
                    logged_name(client_id): count for client_id, count in minute.suppressed.most_common(MAX_NAMED)
                },
            )


class DenialEvents:
    """Logs a denial once per key and minute, within a budget; the next one says how many were left out.

    It takes no lock: a race may log one more event or miscount by one, which is harmless.

    Args:
        per_minute: Maximum number of events in a minute, over all keys. Denials by the guard have as many of their own,
            so that a flood of guesses does not hide denials of tokens.
        trace_of: Returns the trace of the current request; called for each event, not for each denial.
        queue: Queue for the first denial of each key and minute, logged or not; None if denials are not recorded.
    """

    def __init__(
        self, per_minute: int, *, trace_of: Callable[[], Trace] = Trace, queue: DenialQueue | None = None
    ) -> None:
        self._trace_of = trace_of
        self._queue = queue
        self._per_minute = per_minute
        self.reset()

    def reset(self) -> None:
        """Forget everything, such as what the parent logged before a fork."""
        self._budget, self._guard_budget = EventBudget(self._per_minute), EventBudget(self._per_minute)
        self._periods: dict[Key, SuppressionPeriod] = {}
        self._ended_periods: dict[Key, SuppressionPeriod] = {}  # ended early; their counts are not logged yet
        if self._queue is not None:
            self._queue.clear()

    def reconfigure(self, per_minute: int) -> None:
        """End all suppression periods, because denials may have another reason now."""
        self._per_minute = self._budget.per_minute = self._guard_budget.per_minute = per_minute
        ended, self._periods = self._periods, {}
        self._ended_periods.update(ended)
        if len(self._ended_periods) > MAX_KEYS:
            self._ended_periods = ended

    def end_minute(self, now_s: float) -> None:
        """Log what the last minute left out, if it is over. Infinity ends any minute."""
        self._budget.end_minute(now_s)
        self._guard_budget.end_minute(now_s)

    def report(
        self,
        client_id: str,
        username: str | None,
        *,
        scope: str | None,
        grant_type: str | None,
        decision: FullDecision,
        is_canary: bool,
        now_s: float,
    ) -> SuppressionPeriod:
        """Log ``request_denied`` or ``request_would_be_denied``, unless it is suppressed or the budget is used up.

        Sets the ``decision_id`` of a denial, logged or not, unless its record would be lost.

        Args:
            client_id: The client.
            username: Pseudonym of the user, None for grants without a user.
            scope: Scope of the key, None for the plain token counter.
            grant_type: Grant type of the request, None if it is unknown.
            decision: The denial.
            is_canary: True if the canary enforces limits for the client.
            now_s: Time of the request, seconds since the epoch.

        Returns:
            The period in which denials of this key are counted and not reported.
        """
        key = (client_id, username, scope, decision.allowed)
        last = self._periods.get(key)
        if last is not None and last.since_s <= now_s < last.until_s:
            last.last_at_s = now_s
            last.suppressed_count += 1
            _set_decision_id(decision, last)
            return last
        last = last or self._ended_periods.pop(key, None)
        suppressed_count = last.suppressed_count if last else 0
        budget = self._guard_budget if scope in FAILURE_SCOPES else self._budget
        is_logged = budget.admit(client_id, now_s)
        queue = self._queue if not decision.allowed else None
        is_lost = queue is not None and not queue.has_room()
        # This generator is seeded anew after a fork. 63 bits leave room to count on from there.
        number = random.getrandbits(63)
        before_count = 0 if is_logged else suppressed_count + 1
        period = self._start_period(key, now_s, first_id=None if is_lost else number - before_count)
        period.suppressed_count = before_count
        _set_decision_id(decision, period)
        if is_logged or (queue is not None and not is_lost):
            denial = _denial(
                number, key, decision, grant_type=grant_type, is_canary=is_canary, at_s=now_s, trace=self._trace_of()
            )
            if is_logged:
                _log_denial(denial, decision, suppressed_count=suppressed_count)
            if queue is not None and not is_lost:
                queue.put(PendingDenial(denial, period, before_count))
        return period

    def _start_period(self, key: Key, now_s: float, *, first_id: int | None) -> SuppressionPeriod:
        if len(self._periods) >= MAX_KEYS:
            self._periods.clear()
        period = self._periods[key] = SuppressionPeriod(now_s, now_s + REPEAT_S, first_id)
        return period


def _denial(
    number: int,
    key: Key,
    decision: FullDecision,
    *,
    grant_type: str | None,
    is_canary: bool,
    at_s: float,
    trace: Trace,
) -> Denial:
    client_id, username, scope, _ = key
    return Denial(
        first_id=number,
        at_s=at_s,
        client_id=storable_name(client_id),
        username=None if username is None else storable_name(username),
        scope=scope,
        grant_type=grant_type,
        policy=decision.policy,
        limit=decision.limit,
        window_s=decision.window_s,
        mode=decision.mode.value,
        is_canary=is_canary,
        retry_after_s=decision.retry_after_s,
        trace=trace,
    )


def _set_decision_id(decision: FullDecision, period: SuppressionPeriod) -> None:
    if not decision.allowed:
        decision.decision_id = period.decision_id(period.suppressed_count)


def _log_denial(denial: Denial, decision: FullDecision, *, suppressed_count: int) -> None:
    optional: dict[str, Any] = {"decision_id": decision.decision_id, **_logged_trace(denial.trace)}
    log.warning(
        "request_would_be_denied" if decision.allowed else "request_denied",
        client_id=logged_name(denial.client_id),
        username=None if denial.username is None else logged_name(denial.username),
        scope=denial.scope,
        grant_type=denial.grant_type,
        policy=denial.policy,
        limit=denial.limit,
        window_s=denial.window_s,
        retry_after_s=denial.retry_after_s if math.isfinite(denial.retry_after_s) else None,  # JSON has no infinity
        mode=denial.mode,
        canary=denial.is_canary,
        suppressed_count=suppressed_count,
        **{name: value for name, value in optional.items() if value is not None},
    )


def _logged_trace(trace: Trace) -> dict[str, str | None]:
    return {name: value and logged_name(value) for name, value in trace._asdict().items()}
