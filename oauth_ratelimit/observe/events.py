"""Log events about denials, few enough to be read while a client floods."""

import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.denial_record import Denial, Trace
from oauth_ratelimit.core.failed_auth import FAILURE_SCOPES
from oauth_ratelimit.core.key import logged_name, storable_name
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.observe.denials import DenialRecorder, SuppressionPeriod
from oauth_ratelimit.process.log import get_logger

log = get_logger("oauth_ratelimit")

SHARES = 4  # a single client gets one of them, so that its flood does not hide the others
MAX_CLIENTS = 1000  # clients whose suppressed events are counted by name
MAX_NAMED = 5  # of them in the log

REPEAT_S = 60.0  # seconds between two events of one key
MAX_KEYS = 10_000  # keys whose last event is remembered

EventKey = tuple[str, str | None, str | None, bool]
"""Client id, username and scope of a denial, and if it was admitted: a dry run has events of its own."""


class EventBudget:
    """Number of events that may be logged in a minute, a quarter of it for one client. Thread-safe.

    Logs ``denial_events_suppressed`` after each minute in which some were left out.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._lock = threading.Lock()  # guards the attributes below
        self._since_s = 0.0
        self._logged_count = 0
        self._logged: Counter[str] = Counter()  # by client
        self._suppressed: Counter[str | None] = Counter()  # by client; None for those beyond ``MAX_CLIENTS``

    def admit(self, client_id: str, now_s: float) -> bool:
        """Return True if one more event about a client may be logged, and count it."""
        self.end_minute(now_s)
        client_share = max(1, self.per_minute // SHARES)
        with self._lock:
            if self._logged_count < self.per_minute and self._logged[client_id] < client_share:
                self._logged_count += 1
                self._logged[client_id] += 1
                return True
            has_room = client_id in self._suppressed or len(self._suppressed) < MAX_CLIENTS
            self._suppressed[client_id if has_room else None] += 1
            return False

    def end_minute(self, now_s: float) -> None:
        """Log what the last minute left out, if it is over. Infinity ends any minute."""
        with self._lock:
            if self._since_s <= now_s < self._since_s + MINUTE_S:
                return
            suppressed = self._suppressed
            self._since_s, self._logged_count, self._logged, self._suppressed = now_s, 0, Counter(), Counter()
        if suppressed:
            count = suppressed.total()
            del suppressed[None]
            by_client = {logged_name(str(client_id)): count for client_id, count in suppressed.most_common(MAX_NAMED)}
            log.warning(
                "denial_events_suppressed", suppressed_count=count, per_minute=self.per_minute, by_client=by_client
            )


class DenialEvents:
    """Logs a denial once per key and minute, within a budget; the next one says how many were left out.

    It takes no lock: a race may log one more event or miscount by one, which is harmless. Denials by the guard have a
    budget of their own, so that a flood of guesses does not hide denials of tokens. The recorder gets the first denial
    of each key and minute, logged or not.
    """

    def __init__(
        self, per_minute: int, *, trace_of: Callable[[], Trace] = Trace, recorder: DenialRecorder | None = None
    ) -> None:
        self._trace_of = trace_of
        self._recorder = recorder
        self._per_minute = per_minute
        self.reset()

    def reset(self) -> None:
        """Forget everything, such as what the parent logged before a fork."""
        self._budget, self._guard_budget = EventBudget(self._per_minute), EventBudget(self._per_minute)
        self._periods: dict[EventKey, SuppressionPeriod] = {}

    def reconfigure(self, per_minute: int) -> None:
        """End all suppression periods, because denials may have another reason now."""
        self._per_minute = self._budget.per_minute = self._guard_budget.per_minute = per_minute
        for period in list(self._periods.values()):
            period.until_s = period.denial.at_s

    def end_minute(self, now_s: float) -> None:
        self._budget.end_minute(now_s)
        self._guard_budget.end_minute(now_s)

    def report(
        self,
        client_id: str,
        username: str | None,
        *,
        scope: str | None,
        grant_type: str | None,
        decision: Decision,
        is_canary: bool,
        now_s: float,
    ) -> bool:
        """Log ``request_denied`` or ``request_would_be_denied``, unless it is suppressed or the budget is used up.

        Sets the ``decision_id`` of a denial, logged or not, unless its record would be lost. A denial by the guard has
        one only if it is logged.
        Returns True if the denial was only counted, because one of this key was reported before.
        """
        key = (client_id, username, scope, decision.allowed)
        period = self._periods.get(key)
        if period is not None and period.denial.at_s <= now_s < period.until_s:
            period.last_at_s = now_s
            period.suppressed_count += 1
            decision.decision_id = period.denial.decision_id
            return True
        unlogged_count = 0 if period is None else period.unlogged_before + period.suppressed_count
        is_guess = scope in FAILURE_SCOPES
        is_logged = (self._guard_budget if is_guess else self._budget).admit(client_id, now_s)
        has_id = not decision.allowed and (is_logged or not is_guess)  # else a stranger had any number of records
        if has_id and (self._recorder is None or self._recorder.has_room()):
            decision.decision_id = secrets.token_hex(8)  # `random` belongs to the application
        denial = Denial(
            decision_id=decision.decision_id,
            at_s=now_s,
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
            trace=self._trace_of() if is_logged or decision.decision_id else Trace(),
        )
        period = SuppressionPeriod(denial, now_s + REPEAT_S, unlogged_before=0 if is_logged else unlogged_count + 1)
        if len(self._periods) >= MAX_KEYS:
            self._periods.clear()
        self._periods[key] = period
        if is_logged:
            log.warning(
                "request_would_be_denied" if decision.allowed else "request_denied",
                **_logged(denial),
                suppressed_count=unlogged_count,
            )
        if self._recorder is not None and denial.decision_id is not None:
            self._recorder.put(period)
        return False


def _logged(denial: Denial) -> dict[str, Any]:
    """Return the keys of the event: the fields of the denial, with names that cannot forge a line of the log."""
    found = denial._asdict() | denial.trace._asdict()
    found["canary"] = found.pop("is_canary")
    # JSON has no infinity.
    found["retry_after_s"] = round(denial.retry_after_s, 1) if math.isfinite(denial.retry_after_s) else None
    for name in ("client_id", "username", "trace_id", "request_id"):
        found[name] = None if found[name] is None else logged_name(found[name])
    unset = {name for name in ("decision_id", "trace_id", "request_id") if found[name] is None}
    return {name: value for name, value in found.items() if name not in {"at_s", "trace", *unset}}
