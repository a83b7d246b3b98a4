"""Log events about denials, few enough to be read while a client floods, and records that explain each later."""

import math
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oauth_ratelimit.core.decision import Decision, whole_seconds
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.core.failed_auth import FAILURE_SCOPES
from oauth_ratelimit.core.key import logged_name, storable_name
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import LostRecords, get_logger
from oauth_ratelimit.store.mongo.denials import DenialStore

log = get_logger("oauth_ratelimit")

SHARES = 4  # a single client gets one of them, so that its flood does not hide the others
MAX_CLIENTS = 1000  # clients whose suppressed events are counted by name
MAX_NAMED = 5  # of them in the log

REPEAT_S = 60.0  # seconds between two events of one key
ANSWER_S = 0.05  # after a denial its client hardly has the answer: what comes until then was sent at the same time
MAX_KEYS = 10_000  # keys whose last event is remembered

MAX_WAITING = 10_000  # records that are not written yet, some MB
MAX_ENTRIES = 15_000
NO_ROOM = "the queue was full; the answers had no decision_id"
WRITE_EVERY_S = 10.0
BATCH = 500  # records; one bulk must not keep the interpreter busy for long

EventKey = tuple[str, str | None, str | None, bool]
"""Client id, username and scope of a denial, and if it was admitted: a dry run has events of its own."""


@dataclass(slots=True, eq=False)
class SuppressionPeriod:
    """Time after a denial in which further ones of its key are counted and not logged; all have its id."""

    denial: Denial
    until_s: float  # earliest time of the next event
    unlogged_before: int = 0  # denials before it that no event has counted yet
    suppressed_count: int = 0  # denials since then
    last_at_s: float = 0.0  # time of the last of them, 0.0 if there is none
    written_count: int = -1  # of those, in the record; -1 without one
    asked_s: tuple[float, float] = (0.0, 0.0)  # from here to there the client has an answer that asks it to wait

    @property
    def is_new(self) -> bool:
        return self.written_count < 0

    @property
    def is_due(self) -> bool:
        return self.written_count != self.suppressed_count

    def ask_to_wait(self, decision: Decision, now_s: float) -> bool:
        """Note the ``Retry-After`` of a denial. Return True if it came before the last one was over, once answered."""
        from_s, until_s = self.asked_s
        is_over, wait_s = now_s >= until_s, whole_seconds(decision.retry_after_s, 1)
        self.asked_s = now_s + ANSWER_S if is_over else from_s, now_s + wait_s
        return not decision.allowed and from_s <= now_s < until_s

    def record(self, instance: str) -> DenialRecord:
        last_at_s = max(self.denial.at_s, self.last_at_s)
        return DenialRecord(self.denial, instance, last_at_s, self.suppressed_count)


class DenialRecorder:
    """Writer of one record per key and minute with denials, updated while more of them are suppressed.

    Requests fill its queue without a lock; the rest is a task of the background thread. Memory is bounded;
    ``denials_unrecorded`` says how many records are lost.
    """

    def __init__(
        self,
        store: DenialStore,
        *,
        instance: Callable[[], str],
        keep_s: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._instance = instance
        self._keep_s = keep_s
        self._clock = clock
        self._queue: deque[SuppressionPeriod] = deque()  # filled by requests
        self._entries: list[SuppressionPeriod] = []
        self._due: list[SuppressionPeriod] = []
        self._unwritten_count = 0  # of the entries, when they were collected
        self._next_s = 0.0
        self._lost = LostRecords("denials_unrecorded")

    def has_room(self) -> bool:
        """Return True if one more denial can be queued, else count it as lost, unless none is kept."""
        has_room = len(self._queue) + self._unwritten_count < MAX_WAITING
        if not has_room and self._keep_s():
            self._lost.add(1, reason=NO_ROOM)
        return has_room

    def put(self, period: SuppressionPeriod) -> None:
        """Add the first denial of a key in a minute."""
        self._queue.append(period)

    def run(self) -> None:
        """Write one bulk at most, because the next sync cycle waits for it."""
        now_s = self._clock()
        if not self._next_s - WRITE_EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + WRITE_EVERY_S
            self._collect_due(now_s)
        if self._due and not self._write_batch():
            self._due = []  # the next round tries again
        self._lost.log()

    def close(self, deadline: Deadline) -> None:
        self._collect_due(self._clock())
        while self._due and not deadline.is_over and self._write_batch():
            pass
        self._lost.add(sum(entry.is_new for entry in self._due), reason="the process has ended")
        self._lost.log(is_final=True)

    def _collect_due(self, now_s: float) -> None:
        """Collect the records to write, new ones first, and drop finished ones."""
        entries = [entry for entry in self._entries if entry.is_due or now_s < entry.until_s]
        entries += [self._queue.popleft() for _ in range(len(self._queue))]
        entries.sort(key=lambda entry: not entry.is_new)
        # Those beyond the maximum are written, without their last count.
        self._entries = entries[:MAX_ENTRIES] if self._keep_s() else []
        self._due = [entry for entry in self._entries if entry.is_due]
        self._unwritten_count = sum(entry.is_new for entry in self._entries)

    def _write_batch(self) -> bool:
        """Write the first due records. Return True if the store answered."""
        batch = self._due[:BATCH]
        records = [entry.record(self._instance()) for entry in batch]
        try:
            self._store.put(records, keep_s=self._keep_s())
        except StoreUnavailable:
            return False
        except Exception as exc:  # noqa: BLE001  # a record that cannot be written must not block later ones
            self._lost.add(len(batch), reason=str(exc) if isinstance(exc, StoreRejected) else repr(exc))
            rejected = set(batch)
            self._entries = [entry for entry in self._entries if entry not in rejected]
        for entry, record in zip(batch, records, strict=True):
            entry.written_count = record.suppressed_count
        del self._due[:BATCH]
        return True


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
    """Log events about denials: one per key and minute, within a budget; the next one has the number left out.

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
        Returns True if it came before the time in the ``Retry-After`` of an earlier one of this key was over.
        """
        key = (client_id, username, scope, decision.allowed)
        period = self._periods.get(key)
        if period is not None and period.denial.at_s <= now_s < period.until_s:
            period.last_at_s = now_s
            period.suppressed_count += 1
            decision.decision_id = period.denial.decision_id
            return period.ask_to_wait(decision, now_s)
        unlogged_count = 0 if period is None else period.unlogged_before + period.suppressed_count
        asked_s = (0.0, 0.0) if period is None else period.asked_s
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
        unlogged_before = 0 if is_logged else unlogged_count + 1
        period = SuppressionPeriod(denial, now_s + REPEAT_S, unlogged_before=unlogged_before, asked_s=asked_s)
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
        return period.ask_to_wait(decision, now_s)


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
