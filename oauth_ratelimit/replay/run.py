"""The same rows through every contender."""

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

MAX_QUIET = 1000  # requests of a key that are remembered undecided

Who = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Rate:
    """What is allowed.

    Args:
        limit: Requests per window.
        window_s: Its length in whole seconds.
        burst: What a token bucket holds; None makes it the limit.
    """

    limit: int
    window_s: int
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """An algorithm as it is replayed.

    Args:
        algorithm: One of ``ALGORITHMS``.
        frame_count: Frames per window; 0 where there are none.
        plan: The fleet that runs it; None decides in one place that knows everything at once.
        asks_database: Whether that place is the database, so that each request waits for it.
    """

    algorithm: str
    frame_count: int = 0
    plan: FleetPlan | None = None
    asks_database: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is one that this package enforces limits with."""
        return self.algorithm not in COMMON


@dataclass(slots=True)
class Entry:
    """A contender, and what it did."""

    contender: Contender
    tally: Tally = field(default_factory=Tally)


class Replay:
    """Sends rows through contenders, each key on its own.

    Keys that have been quiet for so long that nothing of them matters any more are forgotten.

    Args:
        rate: What is allowed.
        contenders: What is compared. All get the same rows.
        watch: Is told what each contender, named by its index, decided about a key's requests of a batch.

    Attributes:
        denied: How many requests of each key the first contender has denied, of those of which it denied any.
    """

    def __init__(
        self,
        rate: Rate,
        contenders: Sequence[Contender],
        *,
        watch: Callable[[int, Who, Sequence[int], Sequence[bool]], None] | None = None,
    ) -> None:
        self.entries = [Entry(contender) for contender in contenders]
        self._makers = [_maker(entry.contender, rate, entry.tally) for entry in self.entries]
        self._limit = rate.limit
        self._window_us = rate.window_s * SECOND_US
        refill = max(1.0, (rate.burst or rate.limit) / rate.limit)
        slowest_s = max((entry.contender.plan.interval_s for entry in self.entries if entry.contender.plan), default=0)
        self._memory_us = int(2 * refill * self._window_us + 2 * slowest_s * SECOND_US)
        self._watch = watch
        # A fleet has something to do for each request, and somebody who watches wants to see each.
        is_all_wanted = watch is not None or any(entry.contender.plan for entry in self.entries)
        self._quiet_count = 0 if is_all_wanted else min(rate.limit, rate.burst or rate.limit, MAX_QUIET)
        self._keys: dict[Who, _Key] = {}
        self.denied: dict[Who, int] = {}

    def run(self, batches: Iterable[Sequence[Row]]) -> None:
        """Replay batches of rows, in the order of time."""
        for batch in batches:
            groups: dict[Who, list[int]] = {}
            for at_us, client, user in batch:
                who = (client, user)
                times = groups.get(who)
                if times is None:
                    groups[who] = [at_us]
                else:
                    times.append(at_us)
            for who, times in groups.items():
                key = self._keys.get(who)
                if key is None:
                    key = self._keys[who] = _Key()
                self._add(who, key, times)
            self._forget_before(batch[-1].at_us - self._memory_us)
        self._forget_before(None)
        for entry in self.entries:
            if entry.contender.asks_database:
                entry.tally.operations = entry.tally.waits = entry.tally.requests

    def _add(self, who: Who, key: "_Key", times: list[int]) -> None:
        key.last_us = times[-1]
        if key.pairs is None:
            times = key.quiet + times
            if len(times) <= self._quiet_count:
                key.quiet = times
                return
            key.quiet = []
            key.pairs = [
                (make(), ErrorLog(entry.tally, limit=self._limit, window_us=self._window_us))
                for make, entry in zip(self._makers, self.entries, strict=True)
            ]
        for index, (counter, decide_request) in enumerate(key.pairs):
            decisions = counter.decide(times)
            decide_request.add(times, decisions)
            if not index and (count := decisions.count(False)):
                self.denied[who] = self.denied.get(who, 0) + count
            if self._watch is not None:
                self._watch(index, who, times, decisions)

    def _forget_before(self, before_us: int | None) -> None:
        """Forget keys whose last request came before a moment; None forgets all."""
        gone = [who for who, key in self._keys.items() if before_us is None or key.last_us < before_us]
        for who in gone:
            key = self._keys.pop(who)
            for counter, _ in key.pairs or ():
                counter.finish()
            if key.pairs is None:
                for entry in self.entries:
                    decide_request = ErrorLog(entry.tally, limit=self._limit, window_us=self._window_us)
                    decide_request.add(key.quiet, [True] * len(key.quiet))


@dataclass(slots=True)
class _Key:
    """What is known of a key.

    Attributes:
        last_us: When it last came.
        quiet: Its requests, as long as they are so few that every algorithm admits them all, whenever they come.
        pairs: For each contender what decides and what judges; None while the key is quiet.
    """

    last_us: int = 0
    quiet: list[int] = field(default_factory=list)
    pairs: list[tuple[Counter, ErrorLog]] | None = None


def _maker(contender: Contender, rate: Rate, tally: Tally) -> Callable[[], Counter]:
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
