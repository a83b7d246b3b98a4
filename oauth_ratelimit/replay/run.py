"""Replay of the same rows with several algorithms."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.replay.accuracy import ErrorLog, Tally
from oauth_ratelimit.replay.algorithms import Counter, ExactLog, FixedWindow, Gcra, SlidingWindowCounter, TokenBucket
from oauth_ratelimit.replay.fleet import Fleet, FleetKey, FleetPlan
from oauth_ratelimit.replay.formats import SECOND_US, Row

EXACT_LOG, FIXED_WINDOW, TOKEN_BUCKET, GCRA = "exact-log", "fixed-window", "token-bucket", "gcra"
COMMON = (EXACT_LOG, FIXED_WINDOW, TOKEN_BUCKET, GCRA)
ALGORITHMS = (*COMMON, *(estimator.value for estimator in Estimator))

MAX_PENDING = 1000  # requests of a key that are kept without a decision

ClientUser = tuple[str, str | None]
"""Client and user, None for a request without a user."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit to replay.

    Args:
        limit: Requests per window.
        window_s: Length of the window in whole seconds.
        burst: Size of a token bucket; None for the limit.
    """

    limit: int
    window_s: int
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """Algorithm with its settings in a replay.

    Args:
        algorithm: One of ``ALGORITHMS``.
        frame_count: Frames per window; 0 for an algorithm without frames.
        plan: Fleet that runs the algorithm; None for a single counter that sees all requests.
        asks_database: True if that counter is in the database, so that each request waits for it.
    """

    algorithm: str
    frame_count: int = 0
    plan: FleetPlan | None = None
    asks_database: bool = False

    @property
    def is_ours(self) -> bool:
        """True if this package enforces limits with the algorithm."""
        return self.algorithm not in COMMON


@dataclass(slots=True)
class Entry:
    """Contender and its counts."""

    contender: Contender
    tally: Tally = field(default_factory=Tally)


class Replay:
    """Replay of rows with every contender, key by key.

    Keys are dropped once their last requests have left every window.

    Args:
        rate: Limit to replay.
        contenders: Algorithms to compare. All get the same rows.
        watch: Called with the index of a contender, a key, and the times and decisions of its requests in a batch.

    Attributes:
        entries: The contenders with their counts.
        denied: Requests of each key that the first contender denied. Keys without denials are missing.
    """

    def __init__(
        self,
        rate: Rate,
        contenders: Sequence[Contender],
        *,
        watch: Callable[[int, ClientUser, Sequence[int], Sequence[bool]], None] | None = None,
    ) -> None:
        self.entries = [Entry(contender) for contender in contenders]
        self._factories = [_factory(entry.contender, rate, entry.tally) for entry in self.entries]
        self._limit = rate.limit
        self._window_us = rate.window_s * SECOND_US
        refill = max(1.0, (rate.burst or rate.limit) / rate.limit)
        slowest_s = max((entry.contender.plan.interval_s for entry in self.entries if entry.contender.plan), default=0)
        self._memory_us = int(2 * refill * self._window_us + 2 * slowest_s * SECOND_US)
        self._watch = watch
        # Fleets and ``watch`` need each request at once.
        needs_all = watch is not None or any(entry.contender.plan for entry in self.entries)
        self._pending_count = 0 if needs_all else min(rate.limit, rate.burst or rate.limit, MAX_PENDING)
        self._states: dict[ClientUser, _KeyState] = {}
        self.denied: dict[ClientUser, int] = {}

    def run(self, batches: Iterable[Sequence[Row]]) -> None:
        """Replay batches of rows, in the order of time."""
        for batch in batches:
            groups: dict[ClientUser, list[int]] = {}
            for at_us, client, user in batch:
                key = (client, user)
                times = groups.get(key)
                if times is None:
                    groups[key] = [at_us]
                else:
                    times.append(at_us)
            for key, times in groups.items():
                state = self._states.get(key)
                if state is None:
                    state = self._states[key] = _KeyState()
                self._add(key, state, times)
            self._drop_before(batch[-1].at_us - self._memory_us)
        self._drop_before(None)
        for entry in self.entries:
            if entry.contender.asks_database:
                entry.tally.operations = entry.tally.waits = entry.tally.requests

    def _add(self, key: ClientUser, state: "_KeyState", times: list[int]) -> None:
        state.last_us = times[-1]
        if state.counters is None:
            times = state.pending + times
            if len(times) <= self._pending_count:
                state.pending = times
                return
            state.pending = []
            state.counters = [
                (create(), ErrorLog(entry.tally, limit=self._limit, window_us=self._window_us))
                for create, entry in zip(self._factories, self.entries, strict=True)
            ]
        for index, (counter, error_log) in enumerate(state.counters):
            decisions = counter.decide(times)
            error_log.add(times, decisions)
            if not index and (count := decisions.count(False)):
                self.denied[key] = self.denied.get(key, 0) + count
            if self._watch is not None:
                self._watch(index, key, times, decisions)

    def _drop_before(self, before_us: int | None) -> None:
        """Drop the keys whose last request came before a time; None drops all."""
        dropped = [key for key, state in self._states.items() if before_us is None or state.last_us < before_us]
        for key in dropped:
            state = self._states.pop(key)
            for counter, _ in state.counters or ():
                counter.finish()
            if state.counters is None:
                for entry in self.entries:
                    error_log = ErrorLog(entry.tally, limit=self._limit, window_us=self._window_us)
                    error_log.add(state.pending, [True] * len(state.pending))


@dataclass(slots=True)
class _KeyState:
    """State of one key during a replay.

    Attributes:
        last_us: Time of the last request.
        pending: Requests without a decision, so few that every algorithm would admit them all.
        counters: Counter and error log of each contender; None while requests are pending.
    """

    last_us: int = 0
    pending: list[int] = field(default_factory=list)
    counters: list[tuple[Counter, ErrorLog]] | None = None


def _factory(contender: Contender, rate: Rate, tally: Tally) -> Callable[[], Counter]:
    limit, window_us, burst = rate.limit, rate.window_s * SECOND_US, rate.burst or rate.limit
    match contender.algorithm:
        case "fixed-window":
            return lambda: FixedWindow(limit, window_us)
        case "exact-log":
            return lambda: ExactLog(limit, window_us)
        case "token-bucket":
            return lambda: TokenBucket(limit, window_us, burst=burst)
        case "gcra":
            return lambda: Gcra(limit, window_us, burst=burst)
    estimator, window = Estimator(contender.algorithm), Window(rate.window_s, contender.frame_count)
    if contender.plan is None:
        return lambda: SlidingWindowCounter(limit, window, estimator)
    fleet = Fleet(contender.plan, tally, limit=limit, window=window, estimator=estimator)
    return lambda: FleetKey(fleet)
