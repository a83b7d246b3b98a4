"""Replay of the same rows with several algorithms."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from oauth_ratelimit.config import load_config
from oauth_ratelimit.traffic.formats import SECOND_US, Row
from testbed.comparison.accuracy import ContenderCounts, ErrorLog
from testbed.comparison.algorithms import COMMON, Admit
from testbed.counting_fleet import CountingFleet

EXACT_LOG, FIXED_WINDOW, TOKEN_BUCKET, GCRA = COMMON

BATCH_SIZE = 100_000

ClientUser = tuple[str, str | None]
"""Client and user, None for a request without a user."""

OnDecision = Callable[[int, ClientUser, int, bool], None]
"""Called with the index of a contender, a key, the time of a request and the decision about it."""


def in_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, BATCH_SIZE)):
        yield batch


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit to replay, in requests per window."""

    limit: int
    window_s: int

    @property
    def window_us(self) -> int:
        return self.window_s * SECOND_US


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Instances that share their counts at a sync interval. Each request goes to a random one."""

    instance_count: int
    interval_s: float


@dataclass(frozen=True, slots=True)
class Contender:
    """One of ``COMMON`` or of the estimators, and its settings."""

    algorithm: str
    frame_count: int = 0  # per window; 0 for algorithms without frames
    plan: FleetPlan | None = None  # None for a single instance that sees all requests

    @property
    def is_ours(self) -> bool:
        """True if the algorithm is an estimator of this package."""
        return self.algorithm not in COMMON


@dataclass(slots=True)
class Result:
    """A contender and its counts."""

    contender: Contender
    tally: ContenderCounts = field(default_factory=ContenderCounts)


class Replay:
    """Replay of rows with every contender. Our estimators are decided by limiters, the others key by key.

    A key is dropped once its last request has left every window.
    """

    def __init__(self, rate: Rate, contenders: Sequence[Contender], *, on_decision: OnDecision | None = None) -> None:
        self.results = [Result(contender) for contender in contenders]
        self._rate = rate
        self._fleets = [_fleet(contender, rate) if contender.is_ours else None for contender in contenders]
        self._on_decision = on_decision
        self._keys: dict[ClientUser, _Key] = {}

    def run(self, batches: Iterable[Sequence[Row]]) -> None:
        for batch in batches:
            for at_us, client, user, _ in batch:
                self._decide((client, user), at_us)
            reached_us = batch[-1].at_us - 2 * self._rate.window_us
            self._keys = {name: key for name, key in self._keys.items() if key.last_us >= reached_us}
        for result, fleet in zip(self.results, self._fleets, strict=True):
            if fleet is not None:
                fleet.close()
                result.tally.operations = fleet.store.operations

    def _decide(self, name: ClientUser, at_us: int) -> None:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key(list(self._deciders(name)))
        key.last_us = at_us
        for index, (admit, error_log) in enumerate(key.deciders):
            is_admitted = admit(at_us)
            error_log.add(at_us, is_admitted)
            if self._on_decision is not None:
                self._on_decision(index, name, at_us, is_admitted)

    def _deciders(self, name: ClientUser) -> Iterable[tuple[Admit, ErrorLog]]:
        limit, window_us = self._rate.limit, self._rate.window_us
        for result, fleet in zip(self.results, self._fleets, strict=True):
            error_log = ErrorLog(result.tally, limit=limit, window_us=window_us)
            if fleet is None:
                yield COMMON[result.contender.algorithm](limit, window_us), error_log
            else:
                yield partial(_admit, fleet, *name), error_log


@dataclass(slots=True)
class _Key:
    deciders: list[tuple[Admit, ErrorLog]]  # of each contender
    last_us: int = 0


def _admit(fleet: CountingFleet, client_id: str, username: str | None, at_us: int) -> bool:
    return fleet.check(client_id, username, at_s=at_us / SECOND_US).allowed


def _fleet(contender: Contender, rate: Rate) -> CountingFleet:
    limit = {
        "limit": rate.limit,
        "window": rate.window_s,
        "frames": contender.frame_count,
        "estimator": contender.algorithm,
    }
    plan = contender.plan
    sync = {"interval": plan.interval_s} if plan else {}
    settings = load_config({"mode": "enforce", "limits": {"user": [limit], "client": [limit]}, "sync": sync})
    return CountingFleet(settings, plan.instance_count if plan else 1, shares=plan is not None)
