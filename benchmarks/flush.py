"""A sync cycle beside a bare ``bulk_write`` of the same changes, with conflicts, and the requests served meanwhile."""

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks import subjects
from benchmarks.fleet import CountingStore
from benchmarks.measuring import in_new_process, percentile, take_turns
from benchmarks.results import Result
from benchmarks.subjects import CLIENT_ID, Clock
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.store.mongo.document import compose
from oauth_ratelimit.sync.flusher import MAX_BATCH
from tests.support.mongod import Mongod
from tests.support.replica_set import ReplicaSet
from tests.support.stores import mongo_store

GOALS = {0: "<= 1.3", 10: "<= 1.7"}  # by percent of conflicts
CONFLICT_PERCENTS = {1_000: (1, 10, 50), 10_000: (1, 10, 50), 100_000: (10,)}  # by keys
STALL_KEY_COUNT = 100_000
STALL_STEP_S = 0.001  # between two requests
STALL_ROUND_COUNT = 2
IDLE_KEY_COUNT = 100_000
WINDOW_S = 60


def run(*, short: bool) -> Iterator[Result]:
    """Yield the time of a flush, the load of idle keys, and the latency of requests during a flush."""
    sizes = (1_000, 10_000) if short else (1_000, 10_000, 100_000)
    turns = {1_000: 5 if short else 25, 10_000: 3 if short else 9, 100_000: 3}
    with Mongod() as mongod:
        for key_count in sizes:
            name = f"{key_count:,} keys"
            yield from _against_bulk(mongod.uri, name, key_count=key_count, turn_count=turns[key_count])
            yield from _conflicts(mongod.uri, name, key_count=key_count, turn_count=min(7, turns[key_count]))
        yield from in_new_process(_stall, mongod.uri)
        yield from in_new_process(_bare_stall, mongod.uri)
    yield from in_new_process(_idle)
    if not short:
        with ReplicaSet() as replica_set:
            for key_count in sizes[:2]:
                name = f"replica set, {key_count:,} keys"
                yield from _against_bulk(replica_set.uri, name, key_count=key_count, turn_count=9)
            yield from _conflicts(replica_set.uri, "replica set, 10,000 keys", key_count=10_000, turn_count=3)


class _Ours:
    """A limiter whose keys have each counted a hit since its last cycle."""

    def __init__(self, uri: str, users: Sequence[str], *, collection: str) -> None:
        self._limiter = subjects.limiter(store=mongo_store(uri, collection=collection))
        self._users = users

    def hit(self, users: Sequence[str] | None = None) -> None:
        """Count a hit of each user, or of some."""
        for user in users or self._users:
            self._limiter.check(CLIENT_ID, user)

    def flush(self) -> int:
        """Run one cycle, which must write every key."""
        report = self._limiter.sync()
        if report.error is not None or report.flushed_count != len(self._users):
            raise RuntimeError(f"not a flush of {len(self._users)} keys: {report}")
        return report.flushed_count

    def sync(self) -> None:
        """Run one cycle."""
        self._limiter.sync()

    def close(self) -> None:
        """Release the connection."""
        self._limiter.close()


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
        self._operations = self._compose(self._users, self._next_version())

    def flush(self) -> int:
        """Write them."""
        for start in range(0, len(self._operations), self._batch):
            self._collection.bulk_write(self._operations[start : start + self._batch], ordered=False)
        return len(self._operations)

    def build_and_flush(self) -> None:
        """Build and write one batch after the other."""
        version = self._next_version()
        for start in range(0, len(self._users), self._batch):
            operations = self._compose(self._users[start : start + self._batch], version)
            self._collection.bulk_write(operations, ordered=False)

    def close(self) -> None:
        """Release the connection."""
        self._client.close()

    def _next_version(self) -> int | None:
        version, self._version = self._version or None, self._version + 1
        return version

    def _compose(self, users: Sequence[str], version: int | None) -> list[Any]:
        now_s = int(time.time())
        hits = {Series(6): {now_s // 6 * 6: 1}}
        return compose(
            "0123456789ab",
            [Change(Key(CLIENT_ID, user), version, self._version, now_s * 1000, hits, now_s + 126.0) for user in users],
        )


def _against_bulk(uri: str, name: str, *, key_count: int, turn_count: int) -> Iterator[Result]:
    users = subjects.user_names(key_count)
    ours = _Ours(uri, users, collection=f"ours_{key_count}")
    bare = _Bare(uri, users, collection=f"bare_{key_count}")
    batched = _Bare(uri, users, collection=f"batched_{key_count}", batch=MAX_BATCH)
    times = take_turns(
        {"ours": ours.flush, "bare": bare.flush, "batched": batched.flush},
        turn_count=turn_count,
        before={"ours": ours.hit, "bare": bare.prepare, "batched": batched.prepare},
    )
    for subject in (ours, bare, batched):
        subject.close()
    batches = f"bulk_writes of {MAX_BATCH}"
    for key, label in {"ours": "sync()", "bare": "one bulk_write", "batched": batches}.items():
        timing = times[key]
        yield Result(f"flush/{name}/{label}", timing.median_ns / 1000, "us per key", spread=timing.spread_ns / 1000)
    ratio = times["ours"].median_ns / times["bare"].median_ns
    yield Result(f"flush/{name}/against one bulk_write", ratio, "x", GOALS[0])
    ratio = times["ours"].median_ns / times["batched"].median_ns
    yield Result(f"flush/{name}/against {batches}", ratio, "x")


def _conflicts(uri: str, name: str, *, key_count: int, turn_count: int) -> Iterator[Result]:
    """Another instance has written some of the documents since ours did."""
    users = subjects.user_names(key_count)
    bare = _Bare(uri, users, collection=f"bare_beside_{key_count}")
    contested = {str(percent): _Contested(uri, users, percent=percent) for percent in CONFLICT_PERCENTS[key_count]}
    times = take_turns(
        {"bare": bare.flush, **{percent: one.ours.flush for percent, one in contested.items()}},
        turn_count=turn_count,
        before={"bare": bare.prepare, **{percent: one.prepare for percent, one in contested.items()}},
    )
    bare.close()
    for percent, one in contested.items():
        one.ours.close()
        one.rival.close()
        timing, prefix = times[percent], f"flush/{name}, {percent} % conflicts"
        yield Result(f"{prefix}/sync()", timing.median_ns / 1000, "us per key", spread=timing.spread_ns / 1000)
        ratio = timing.median_ns / times["bare"].median_ns
        yield Result(f"{prefix}/against one bulk_write", ratio, "x", GOALS.get(int(percent)))


class _Contested:
    """A limiter, and a rival that writes some of its documents first."""

    def __init__(self, uri: str, users: Sequence[str], *, percent: int) -> None:
        collection = f"contested_{len(users)}_{percent}"
        self.ours = _Ours(uri, users, collection=collection)
        self.rival = _Ours(uri, users, collection=collection)
        self._users = list(users)
        self._count = len(users) * percent // 100
        self._source = random.Random(percent)

    def prepare(self) -> None:
        """Count a hit of each key, and have the rival write some."""
        self.rival.hit(self._source.sample(self._users, self._count))
        self.rival.sync()
        self.ours.hit()


def _idle() -> list[Result]:
    """Keys that were used once, over three windows of simulated time."""
    clock, store = Clock(), CountingStore()
    limiter = subjects.limiter(store=store, clock=clock)
    for user in subjects.user_names(IDLE_KEY_COUNT):
        limiter.check(CLIENT_ID, user)
    limiter.sync()
    written_count, read_counts = store.written, [store.read_count]
    for window_count in (2, 1):
        for _ in range(window_count * WINDOW_S):
            clock.now_s += 1
            limiter.sync()
        read_counts.append(store.read_count)
    limiter.close()
    first, second, last = read_counts
    name = f"flush/idle/{IDLE_KEY_COUNT:,} keys that nobody uses"
    return [
        Result(f"{name}: documents written", store.written - written_count, "documents", "<= 0"),
        Result(f"{name}: documents read in two windows", (second - first) / IDLE_KEY_COUNT, "per key", "<= 2"),
        Result(f"{name}: documents read later", last - second, "documents", "<= 0"),
    ]


def _stall(uri: str) -> list[Result]:
    """Requests that are limited while the limiter flushes."""
    limiter = subjects.limiter(store=mongo_store(uri, collection="stall"))
    users = subjects.user_names(STALL_KEY_COUNT)

    def hit() -> None:
        for user in users:
            limiter.check(CLIENT_ID, user)

    def serve(user: str) -> None:
        _answer(remaining=limiter.check(CLIENT_ID, user).remaining)

    results = _stall_results(f"batches of {MAX_BATCH}", limiter.sync, serve=serve, before=hit, goal="<= 10")
    limiter.close()
    return results


def _bare_stall(uri: str) -> list[Result]:
    """The lower bound: bulk writes of the same documents, in a process without a limiter."""
    bare = _Bare(uri, subjects.user_names(STALL_KEY_COUNT), collection="stall_bare", batch=MAX_BATCH)
    results = _stall_results(
        f"bare bulk_write of {MAX_BATCH}",
        bare.build_and_flush,
        serve=lambda user: _answer(remaining=0),
        before=lambda: None,
    )
    bare.close()
    return results


def _stall_results(
    label: str,
    work: Callable[[], object],
    *,
    serve: Callable[[str], None],
    before: Callable[[], None],
    goal: str | None = None,
) -> list[Result]:
    """Serve requests while this thread works. The first round, which inserts, does not count."""
    works_s: list[float] = []
    latencies_ms: list[float] = []
    for index in range(STALL_ROUND_COUNT + 1):
        before()
        requests = _Requests(serve)
        requests.start()
        started_s = time.perf_counter()
        work()
        work_s = time.perf_counter() - started_s
        requests.stop()
        if index:
            works_s.append(work_s)
            latencies_ms += requests.latencies_ms
    name = f"flush/stall, {label}"
    p99_9 = percentile(latencies_ms, 99.9)
    return [
        Result(f"{name}/flush", statistics.median(works_s) / STALL_KEY_COUNT * 1e6, "us per key"),
        Result(f"{name}/p50", percentile(latencies_ms, 50), "ms"),
        Result(f"{name}/p99", percentile(latencies_ms, 99), "ms"),
        Result(f"{name}/p99.9", p99_9, "ms", goal),
        Result(f"{name}/longest", max(latencies_ms), "ms"),
    ]


class _Requests(threading.Thread):
    """A thread of a WSGI server without the network: waits for a request and serves it."""

    def __init__(self, serve: Callable[[str], None]) -> None:
        super().__init__(name="requests")
        self._serve = serve
        self._done = threading.Event()
        self.latencies_ms: list[float] = []

    def run(self) -> None:
        """Serve until stopped. A latency counts from the time at which the request was due."""
        count = 0
        while not self._done.is_set():
            due_s = time.perf_counter() + STALL_STEP_S
            time.sleep(STALL_STEP_S)
            count += 1
            self._serve(f"user.{count % 500}")
            self.latencies_ms.append((time.perf_counter() - due_s) * 1000)

    def stop(self) -> None:
        """Stop and wait for the end."""
        self._done.set()
        self.join()


def _answer(*, remaining: int) -> bytes:
    """Do the work of a small answer."""
    headers = [("Content-Type", "application/json"), ("X-RateLimit-Remaining", str(remaining))]
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers for _ in range(20))
