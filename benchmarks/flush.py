"""A sync cycle beside a bare ``bulk_write`` of the same changes, conflicts, requests served meanwhile, and new keys."""

import gc
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, pairwise, takewhile
from typing import Any

from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks import subjects
from benchmarks.measuring import in_new_process, take_turns, timed
from benchmarks.results import Result, median_of
from benchmarks.subjects import CLIENT_ID
from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change, WriteResult
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.document import compose
from oauth_ratelimit.sync import loop
from oauth_ratelimit.sync.cycle import MAX_BATCH
from testbed.mongod import Mongod
from testbed.replica_set import ReplicaSet

GOAL, GOAL_OF_CONFLICTS = "<= 1.5", "<= 1.8"
GOAL_IN_BATCHES = "<= 1.3"  # on a replica set, where each batch waits for a majority
ONE_BULK = "one bulk_write"
CONFLICT_PERCENT = 10
STALL_KEY_COUNT = 100_000
STALL_STEP_S = 0.001  # between two requests
STALL_ROUND_COUNT = 2
RUN_KEY_COUNT, RUN_ROUND_COUNT = 10_000, 9
LOOK_STEP_S = 1e-4  # between two looks at the CPU time of a cycle
STORM_RATES = (500, 5_000)  # new keys per second
STORM_STEP_S = 0.002  # between two requests, or several
STORM_WARM_UP_S, STORM_S = 2.0, 5.0  # the short gaps that are allowed in a row last for one second


def run(*, short: bool) -> Iterator[Result]:
    """Yield the time of a flush, its longest run without a pause, and the latency of requests during a flush."""
    sizes = (1_000, 10_000) if short else (1_000, 10_000, 100_000)
    turns = {1_000: 5 if short else 25, 10_000: 3 if short else 9, 100_000: 3}
    with Mongod() as mongod:
        for key_count in sizes:
            name = f"{key_count:,} keys"
            yield from _against_bulk(mongod.uri, name, key_count=key_count, turn_count=turns[key_count])
            yield from _conflicts(mongod.uri, name, key_count=key_count, turn_count=min(7, turns[key_count]))
        yield from in_new_process(_stall, mongod.uri)
        yield in_new_process(_longest_run, mongod.uri)
        for keys_per_s in STORM_RATES:
            yield from _storms(mongod.uri, keys_per_s, turn_count=1 if short else 5)
    if not short:
        with ReplicaSet() as replica_set:
            for key_count in sizes[:2]:
                name = f"replica set, {key_count:,} keys"
                yield from _against_bulk(replica_set.uri, name, key_count=key_count, turn_count=9)
            yield from _conflicts(replica_set.uri, "replica set, 10,000 keys", key_count=10_000, turn_count=3)


class _Ours:
    """A limiter whose keys have each counted a hit since its last cycle."""

    def __init__(self, uri: str, users: Sequence[str], *, collection: str) -> None:
        store = MongoStore(Connection(uri), collection=collection, closes_connection=True)
        self.limiter = subjects.limiter(store=store)
        self._users = users

    def hit(self, users: Sequence[str] | None = None) -> None:
        """Count a hit of each user, or of some."""
        for user in users or self._users:
            self.limiter.check(CLIENT_ID, user)

    def flush(self) -> int:
        """Run one cycle, which must write every key."""
        report = self.limiter.sync()
        if report.error is not None or report.flushed_count != len(self._users):
            raise RuntimeError(f"not a flush of {len(self._users)} keys: {report}")
        return report.flushed_count


class _Bare:
    """The same changes as prebuilt operations."""

    def __init__(self, uri: str, users: Sequence[str], *, collection: str, batch: int | None = None) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._collection = self._client["oauth_ratelimit"][collection].with_options(
            read_concern=ReadConcern("majority"), write_concern=WriteConcern(w="majority", j=True)
        )
        self._collection.create_index("expire", expireAfterSeconds=0)
        self._users = users
        self._batch = batch or len(users)
        self._version = 0
        self._operations: list[Any] = []

    def prepare(self) -> None:
        """Build the operations."""
        version, self._version = self._version or None, self._version + 1
        now_s = int(time.time())
        hits = {Series(6): {now_s // 6 * 6: 1}}
        expire_at_s = now_s + 126.0
        self._operations = compose(
            "0123456789ab",
            [
                Change(Key(CLIENT_ID, user), version, self._version, now_s * 1000, hits, expire_at_s)
                for user in self._users
            ],
        )

    def flush(self) -> int:
        """Write them."""
        for start in range(0, len(self._operations), self._batch):
            self._collection.bulk_write(self._operations[start : start + self._batch], ordered=False)
        return len(self._operations)

    def close(self) -> None:
        """Release the connection."""
        self._client.close()


def _against_bulk(uri: str, name: str, *, key_count: int, turn_count: int) -> Iterator[Result]:
    users = subjects.user_names(key_count)
    ours = _Ours(uri, users, collection=f"ours_{key_count}")
    bare = _Bare(uri, users, collection=f"bare_{key_count}")
    batched = _Bare(uri, users, collection=f"batched_{key_count}", batch=MAX_BATCH)
    batches = f"bulk_writes of {MAX_BATCH}"
    measures = {
        "sync()": timed(ours.flush, before=ours.hit),
        ONE_BULK: timed(bare.flush, before=bare.prepare),
        batches: timed(batched.flush, before=batched.prepare),
    }
    with closing(ours.limiter), closing(bare), closing(batched):
        goals = {ONE_BULK: GOAL, batches: GOAL_IN_BATCHES if "replica set" in name else None}
        yield from _compared(f"flush/{name}", measures, goals, turn_count=turn_count)


def _conflicts(uri: str, name: str, *, key_count: int, turn_count: int) -> Iterator[Result]:
    """Another instance has written some of the documents since ours did."""
    users, draw = subjects.user_names(key_count), random.Random(CONFLICT_PERCENT)
    bare = _Bare(uri, users, collection=f"bare_beside_{key_count}")
    ours, rival = (_Ours(uri, users, collection=f"contested_{key_count}") for _ in range(2))

    def prepare() -> None:
        rival.hit(draw.sample(users, key_count * CONFLICT_PERCENT // 100))
        rival.limiter.sync()
        ours.hit()

    measures = {
        "sync()": timed(ours.flush, before=prepare),
        ONE_BULK: timed(bare.flush, before=bare.prepare),
    }
    name = f"flush/{name}, {CONFLICT_PERCENT} % conflicts"
    with closing(ours.limiter), closing(rival.limiter), closing(bare):
        yield from _compared(name, measures, {ONE_BULK: GOAL_OF_CONFLICTS}, turn_count=turn_count)


def _compared(
    name: str, measures: Mapping[str, Callable[[], float]], goals: Mapping[str, str | None], *, turn_count: int
) -> Iterator[Result]:
    """Yield the time of each subject per key, and the ratios of ours to the others."""
    results = {
        subject: median_of(f"{name}/{subject}", [time_ns / 1000 for time_ns in times_ns], "us per key")
        for subject, times_ns in take_turns(measures, turn_count=turn_count).items()
    }
    yield from results.values()
    for other, goal in goals.items():
        yield Result(f"{name}/against {other}", results["sync()"].value / results[other].value, "x", goal)


def _stall(uri: str) -> list[Result]:
    """Requests that are limited while the limiter flushes. The first round, which inserts, does not count."""
    ours = _Ours(uri, subjects.user_names(STALL_KEY_COUNT), collection="stall")
    latencies_ms: list[float] = []
    for index in range(STALL_ROUND_COUNT + 1):
        ours.hit()
        with _beside(_requests(ours.limiter)) as served_ms:
            ours.limiter.sync()
        if index:
            latencies_ms += served_ms
    ours.limiter.close()
    latencies_ms.sort()
    name = f"flush/stall, batches of {MAX_BATCH}"
    return [
        *(
            Result(f"{name}/{percentile}", latencies_ms[int(len(latencies_ms) * ratio)], "ms", goal)
            for percentile, ratio, goal in (("p50", 0.5, None), ("p99", 0.99, None), ("p99.9", 0.999, "<= 10"))
        ),
        Result(f"{name}/longest", latencies_ms[-1], "ms"),
    ]


def _longest_run(uri: str) -> Result:
    """The CPU time that a cycle takes at most before another thread can run, as a median over cycles."""
    ours = _Ours(uri, subjects.user_names(RUN_KEY_COUNT), collection="run")
    clock_id, longest_ms = time.pthread_getcpuclockid(threading.get_ident()), []
    sys.setswitchinterval(10)  # so that other threads run only where the cycle lets them
    for _ in range(RUN_ROUND_COUNT + 1):
        ours.hit()
        gc.collect()
        with _beside(_looks(clock_id)) as looks_s:
            ours.flush()
        longest_ms.append(1000 * max(after_s - before_s for before_s, after_s in pairwise(looks_s)))
    ours.limiter.close()
    name = f"flush/{RUN_KEY_COUNT:,} keys/longest run without a pause"
    return median_of(name, longest_ms[1:], "ms of CPU", "<= 5")  # the first cycle inserts


def _looks(clock_id: int) -> Iterator[float]:
    while True:
        time.sleep(LOOK_STEP_S)
        yield time.clock_gettime(clock_id)


def _requests(limiter: Limiter) -> Iterator[float]:
    """Serve a request each millisecond, as a WSGI server without the network, and yield the latencies in ms.

    A latency counts from the time at which the request was due.
    """
    for number in count():
        due_s = time.perf_counter() + STALL_STEP_S
        time.sleep(STALL_STEP_S)
        remaining = limiter.check(CLIENT_ID, f"user.{number % 500}").remaining
        b"".join(f"X-RateLimit-Remaining: {remaining}\r\n".encode() for _ in range(40))  # as a small answer
        yield (time.perf_counter() - due_s) * 1000


@contextmanager
def _beside(values: Iterator[float]) -> Iterator[list[float]]:
    """Take values in a thread, and yield those taken so far."""
    done = threading.Event()
    taken: list[float] = []
    thread = threading.Thread(target=lambda: taken.extend(takewhile(lambda _: not done.is_set(), values)))
    thread.start()
    try:
        yield taken
    finally:
        done.set()
        thread.join()


def _storms(uri: str, keys_per_s: int, *, turn_count: int) -> Iterator[Result]:
    """New keys without end, with the rest that the urgent loop takes after each batch, and without it."""
    measures = {
        name: partial(in_new_process, _storm, uri, keys_per_s, factor)
        for name, factor in (("with rest", loop.REST_FACTOR), ("without", 0))
    }
    for way, values in take_turns(measures, turn_count=turn_count).items():
        costs_us, delays_ms = zip(*values, strict=True)
        name = f"flush/{keys_per_s:,} new keys per second, batches {way}"
        yield median_of(f"{name}/process", costs_us, "us of CPU per key")
        yield median_of(f"{name}/stored after", delays_ms, "ms")


class _DatingStore(MongoStore):
    """A store that notes when each user was stored first."""

    def __init__(self, uri: str) -> None:
        super().__init__(Connection(uri), collection=f"storm_{os.getpid()}", closes_connection=True)
        self.stored_s: dict[str | None, float] = {}

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """See ``CounterStore.compare_and_set``."""
        result = super().compare_and_set(writer, changes)
        now_s = time.perf_counter()
        for change in changes:
            self.stored_s.setdefault(change.key.username, now_s)
        return result


def _storm(uri: str, keys_per_s: int, rest_factor: int) -> tuple[float, float]:
    """Return the process's CPU time per key in us, and the median time until a key is stored, in ms."""
    loop.REST_FACTOR = rest_factor
    store = _DatingStore(uri)
    limiter = subjects.limiter(subjects.settings_of(10), store)
    cycles = loop.SyncLoop(limiter, interval_s=1.0)
    cycles.start()
    _ask_for_new_keys(limiter, "warm-up", keys_per_s=keys_per_s, seconds=STORM_WARM_UP_S)
    started_ns = time.process_time_ns()
    asked_s = _ask_for_new_keys(limiter, "user", keys_per_s=keys_per_s, seconds=STORM_S)
    cost_us = (time.process_time_ns() - started_ns) / 1000 / len(asked_s)
    cycles.stop()
    limiter.close()
    return cost_us, 1000 * statistics.median(store.stored_s[user] - at_s for user, at_s in asked_s.items())


def _ask_for_new_keys(limiter: Limiter, name: str, *, keys_per_s: int, seconds: float) -> dict[str, float]:
    """Ask once for each of ever new users, evenly, and return the time of each request."""
    asked_s: dict[str, float] = {}
    started_s = time.perf_counter()
    while (now_s := time.perf_counter()) < started_s + seconds:
        while len(asked_s) < (now_s - started_s) * keys_per_s:
            user = f"{name}-{len(asked_s)}"
            asked_s[user] = time.perf_counter()
            limiter.check(CLIENT_ID, user)
        time.sleep(STORM_STEP_S)
    return asked_s
