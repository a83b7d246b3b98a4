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

MAX_UNDECIDED = 1000  # requests of a key that are held before the contenders decide about them

ClientUser = tuple[str, str | None]
"""Client and user, None for a request without a user."""

OnDecisions = Callable[[int, ClientUser, Sequence[int], Sequence[bool]], None]
"""Called with the index of a contender, a key, the times of its requests and the decisions about them."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit to replay.

    Args:
        limit: Requests per window.
        window_s: Length of the window in whole seconds.
        burst: Capacity of a token bucket; None for the limit.
    """

    limit: int
    window_s: int
    burst: int | None = None

    @property
    def window_us(self) -> int:
        """Length of the window in microseconds."""
        return self.window_s * SECOND_US


@dataclass(frozen=True, slots=True)
class Contender:
    """Algorithm and its settings.

    Args:
        algorithm: One of ``ALGORITHMS``.
        frame_count: Frames per window; 0 for algorithms without frames.
        plan: Fleet that runs the algorithm; None for a single counter that sees all requests.
        asks_database: True if that counter is in the database, so that each request waits for it.
    """

    algorithm: str
    frame_count: int = 0
    plan: FleetPlan | None = None
    asks_database: bool = False

    @property
    def is_ours(self) -> bool:
        """True if the algorithm is an estimator of this package."""
        return self.algorithm not in COMMON


@dataclass(slots=True)
class Result:
    """A contender and its counts."""

    contender: Contender
    tally: Tally = field(default_factory=Tally)


class Replay:
    """Replay of rows with every contender, key by key.

    A key is dropped once its last request has left every window.

    Args:
        rate: Limit to replay.
        contenders: Algorithms to compare. All get the same rows.
        on_decisions: Called for each key and contender in a batch.

    Attributes:
        results: The contenders and their counts.
        denied: Number of requests that the first contender denied, by key.
    """

    def __init__(self, rate: Rate, contenders: Sequence[Contender], *, on_decisions: OnDecisions | None = None) -> None:
        self.results = [Result(contender) for contender in contenders]
        self.denied: dict[ClientUser, int] = {}
        self._rate = rate
        self._makers = [_maker(result, rate) for result in self.results]
        plans = [contender.plan for contender in contenders if contender.plan]
        refill = max(1.0, (rate.burst or rate.limit) / rate.limit)
        slowest_s = max((plan.interval_s for plan in plans), default=0)
        self._memory_us = int(2 * refill * rate.window_us + 2 * slowest_s * SECOND_US)
        self._on_decisions = on_decisions
        # Fleets and ``on_decisions`` need each request at once.
        decides_all = on_decisions is not None or bool(plans)
        self._max_undecided = 0 if decides_all else min(rate.limit, rate.burst or rate.limit, MAX_UNDECIDED)
        self._keys: dict[ClientUser, _KeyState] = {}

    def run(self, batches: Iterable[Sequence[Row]]) -> None:
        """Replay batches of rows, in the order of time."""
        for batch in batches:
            groups: dict[ClientUser, list[int]] = {}
            for at_us, client, user, _ in batch:
                key = (client, user)
                times = groups.get(key)
                if times is None:
                    groups[key] = [at_us]
                else:
                    times.append(at_us)
            for key, times in groups.items():
                state = self._keys.get(key)
                if state is None:
                    state = self._keys[key] = _KeyState()
                self._add(key, state, times)
            self._drop_before(batch[-1].at_us - self._memory_us)
        self._drop_before(None)
        for result in self.results:
            if result.contender.asks_database:
                result.tally.operations = result.tally.waits = result.tally.requests

    def _add(self, key: ClientUser, state: "_KeyState", times: list[int]) -> None:
        state.last_us = times[-1]
        if state.counters is None:
            times = state.undecided + times
            if len(times) <= self._max_undecided:
                state.undecided = times
                return
            state.undecided = []
            state.counters = [
                (make(), self._error_log(result)) for make, result in zip(self._makers, self.results, strict=True)
            ]
        for index, (counter, error_log) in enumerate(state.counters):
            decisions = counter.decide(times)
            error_log.add(times, decisions)
            if not index and (count := decisions.count(False)):
                self.denied[key] = self.denied.get(key, 0) + count
            if self._on_decisions is not None:
                self._on_decisions(index, key, times, decisions)

    def _drop_before(self, before_us: int | None) -> None:
        """Drop the keys whose last request came before a time; None drops all."""
        dropped = [key for key, state in self._keys.items() if before_us is None or state.last_us < before_us]
        for key in dropped:
            state = self._keys.pop(key)
            for counter, _ in state.counters or ():
                counter.finish()
            if state.counters is None:
                for result in self.results:
                    self._error_log(result).add(state.undecided, [True] * len(state.undecided))

    def _error_log(self, result: Result) -> ErrorLog:
        return ErrorLog(result.tally, limit=self._rate.limit, window_us=self._rate.window_us)


@dataclass(slots=True)
class _KeyState:
    """State of one key during a replay.

    Attributes:
        last_us: Time of the last request.
        undecided: Requests without a decision, so few that every algorithm would admit them all.
        counters: Counter and error log of each contender; None while requests are undecided.
    """

    last_us: int = 0
    undecided: list[int] = field(default_factory=list)
    counters: list[tuple[Counter, ErrorLog]] | None = None


def _maker(result: Result, rate: Rate) -> Callable[[], Counter]:
    """Return a function that creates the counter of a key."""
    contender, limit, window_us, burst = result.contender, rate.limit, rate.window_us, rate.burst or rate.limit
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
    fleet = Fleet(contender.plan, result.tally, limit=limit, window=window, estimator=estimator)
    return lambda: FleetKey(fleet)
