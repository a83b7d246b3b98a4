"""Events about denials, few enough to be read while a client floods."""

import heapq
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from oauth_ratelimit.core.decision import FullDecision, SuppressionPeriod
from oauth_ratelimit.core.denial_record import Denial, Trace
from oauth_ratelimit.core.failed_auth import FailureKind
from oauth_ratelimit.core.key import storable_name, visible_name

MINUTE_S = 60.0
SHARES = 4  # a single client gets one of them, so that its flood does not hide the others
MAX_CLIENTS = 1000  # whose suppressed events are told apart
MAX_NAMED = 5  # of them in the log


@dataclass(slots=True)
class _Minute:
    """What one minute has seen."""

    since_s: float
    logged_count: int = 0
    logged: dict[str, int] = field(default_factory=dict)  # by client
    suppressed_count: int = 0
    suppressed: dict[str, int] = field(default_factory=dict)  # by client


class EventBudget:
    """So many events in a minute, a quarter of them for one client. Those left out are counted, and told afterwards.

    Counts without a lock: an event more or less does no harm.

    Args:
        per_minute: How many events.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._minute = _Minute(0.0)
        self._turning = threading.Lock()  # so that a minute is told once

    def take(self, client_id: str, now_s: float) -> bool:
        """Return whether there is room for one more event about a client."""
        self.turn(now_s)
        minute = self._minute
        of_client = minute.logged.get(client_id, 0)
        if minute.logged_count < self.per_minute and of_client < max(1, self.per_minute // SHARES):
            minute.logged_count += 1
            minute.logged[client_id] = of_client + 1
            return True
        minute.suppressed_count += 1
        if client_id in minute.suppressed or len(minute.suppressed) < MAX_CLIENTS:
            minute.suppressed[client_id] = minute.suppressed.get(client_id, 0) + 1
        return False

    def turn(self, now_s: float) -> None:
        """Begin another minute if the last one is over, and say what was left out in that.

        Args:
            now_s: The time, seconds since the epoch; infinity at the end.
        """
        minute = self._minute
        if minute.since_s <= now_s < minute.since_s + MINUTE_S:
            return
        with self._turning:
            if self._minute is not minute:
                return
            self._minute = _Minute(now_s)
        if minute.suppressed_count:
            suppressed = list(minute.suppressed.items())  # one step, because late threads still add to it
            most = heapq.nlargest(MAX_NAMED, suppressed, key=lambda item: item[1])
            log.warning(
                "denial_events_suppressed",
                suppressed_count=minute.suppressed_count,
                per_minute=self.per_minute,
                by_client={visible_name(client_id): count for client_id, count in most},
            )


log = structlog.get_logger("oauth_ratelimit")

REPEAT_S = 60.0  # one event per key and this long
MAX_KEYS = 10_000  # keys that are remembered for it
MAX_WAITING = 5000  # denials that wait to be recorded, a few MB
ALARMS = frozenset(kind.scope for kind in FailureKind)

Whose = tuple[str, str | None, str | None]
"""A client, a user and a scope, as they came."""


class Logged(NamedTuple):
    """A denial to be recorded, and the count of those that follow it unlogged.

    Attributes:
        denial: The first.
        silence: Counts.
        before_count: How many of them it had counted before: all up to the first, if that was not logged itself.
    """

    denial: Denial
    suppression: SuppressionPeriod
    before_count: int


class DenialEvents:
    """Says once per key and minute that it is being denied, or would be; the next event tells how many were left out.

    Takes no lock: when two threads meet, one more event or a count off by one costs less than waiting.

    Args:
        per_minute: Maximum number of events in a minute, over all keys.
        trace_of: Returns the trace of the current request; called for each event, not for each denial.
        keeps_records: Keep one denial per key and minute for ``take``, logged or not.

    Attributes:
        budget: What bounds the events over all keys.
        alarms: The same of the guard's, so that a flood of guesses leaves the denials of tokens their room.
        dropped_count: For how many there was no room, because nobody took them in time. They have no id.
    """

    def __init__(self, per_minute: int, *, trace_of: Callable[[], Trace] = Trace, keeps_records: bool = False) -> None:
        self._trace_of = trace_of
        self._keeps_records = keeps_records
        self.begin_anew(per_minute)

    def begin_anew(self, per_minute: int) -> None:
        """Forget everything: after a fork, what the parent has said."""
        self.budget, self.alarms = EventBudget(per_minute), EventBudget(per_minute)
        self.dropped_count = 0
        self._said: dict[Whose, SuppressionPeriod] = {}
        self._ended: dict[
            Whose, SuppressionPeriod
        ] = {}  # by a change of the configuration; their counts are still to be told
        self._waiting: deque[Logged] = deque()

    def reconfigure(self, per_minute: int) -> None:
        """Say everything again, because it may be for another reason."""
        self.budget.per_minute = self.alarms.per_minute = per_minute
        said, self._said = self._said, {}
        self._ended.update(said)
        if len(self._ended) > MAX_KEYS:
            self._ended = said

    def turn(self, now_s: float) -> None:
        """Say what the last minute has left out, if it is over; infinity at the end."""
        self.budget.turn(now_s)
        self.alarms.turn(now_s)

    def take(self, most: int) -> list[Logged]:
        """
        Return what is to be recorded, the oldest first. To be called by one thread; nobody else takes anything away.
        """
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

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
        """Log ``request_denied`` or ``request_would_be_denied``, unless that was done a moment ago, or too often.

        Every denial gets its ``decision_id``, those that are not logged included, unless it could not be found by it.

        Args:
            client_id: Who asked.
            username: For whom, None for grants without a user.
            scope: Where it is counted, None for the plain token counter.
            grant_type: How, None if that is not known.
            decision: What was decided.
            is_canary: Whether the client is in the share that a canary enforces.
            now_s: The time, seconds since the epoch.

        Returns:
            How long nothing more is to be said of this key; until then the caller may just count.
        """
        key = (client_id, username, scope)
        last = self._said.get(key)
        if last is not None and last.since_s <= now_s < last.until_s:
            last.suppressed_count += 1
            _name(decision, last)
            return last
        last = last or self._ended.pop(key, None)
        left_out_count = last.suppressed_count if last else 0
        is_said = (self.alarms if scope in ALARMS else self.budget).take(client_id, now_s)
        is_record = self._keeps_records and not decision.allowed
        is_lost = is_record and len(self._waiting) >= MAX_WAITING
        self.dropped_count += is_lost
        # This generator starts anew after a fork. 63 bits leave room to count on from there.
        number = random.getrandbits(63)
        suppression = self._fall_silent(
            key, now_s, number=None if is_lost else number, before_count=0 if is_said else left_out_count + 1
        )
        _name(decision, suppression)
        if is_said or (is_record and not is_lost):
            denial = _denial(
                number, key, decision, grant_type=grant_type, is_canary=is_canary, at_s=now_s, trace=self._trace_of()
            )
            if is_said:
                _say(denial, decision, suppressed_count=left_out_count)
            if is_record and not is_lost:
                self._waiting.append(Logged(denial, suppression, suppression.suppressed_count))
        return suppression

    def _fall_silent(self, key: Whose, now_s: float, *, number: int | None, before_count: int) -> SuppressionPeriod:
        """Say nothing more of a key for a while.

        Args:
            key: Whose denials.
            now_s: The time, seconds since the epoch.
            number: What the denial at hand is found by; None if it cannot be.
            before_count: How many came before it and are still to be told of, itself included if nothing was said.
        """
        if len(self._said) >= MAX_KEYS:
            self._said.clear()
        first_id = None if number is None else number - before_count
        suppression = self._said[key] = SuppressionPeriod(now_s, now_s + REPEAT_S, first_id, before_count)
        return suppression


def _denial(
    number: int,
    key: Whose,
    decision: FullDecision,
    *,
    grant_type: str | None,
    is_canary: bool,
    at_s: float,
    trace: Trace,
) -> Denial:
    client_id, username, scope = key
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


def _name(decision: FullDecision, suppression: SuppressionPeriod) -> None:
    if not decision.allowed:
        decision.decision_id = suppression.decision_id(suppression.suppressed_count)


def _say(denial: Denial, decision: FullDecision, *, suppressed_count: int) -> None:
    optional: dict[str, Any] = {"decision_id": decision.decision_id, **denial.trace._asdict()}
    log.warning(
        "request_would_be_denied" if decision.allowed else "request_denied",
        client_id=visible_name(denial.client_id),
        username=None if denial.username is None else visible_name(denial.username),
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
