"""What a sync cycle costs, beside a bare ``bulk_write`` of the same changes; and what it does to requests meanwhile."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks import subjects
from benchmarks.commands import Commands
from benchmarks.processes import in_new_process
from benchmarks.results import Result
from benchmarks.stall import answer, decide_and_answer, stall_of
from benchmarks.timing import take_turns
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.store.mongo.document import compose
from oauth_ratelimit.sync import flusher
from tests.support.mongod import Mongod
from tests.support.replica_set import ReplicaSet
from tests.support.stores import mongo_store

GOALS = {0: "<= 1.3", 10: "<= 1.7"}  # by percent of conflicts
CONFLICT_PERCENTS = {1_000: (1, 10, 50), 10_000: (1, 10, 50), 100_000: (10,)}  # by keys
STALL_KEY_COUNT = 100_000
STALL_BATCHES = (100, 500, 1000)
IDLE_KEY_COUNT = 100_000
WINDOW_S = 60


def run(*, short: bool) -> Iterator[Result]:
    """Yield the cost of a flush, of idle keys, and the latency of requests during a flush."""
    with Mongod() as mongod:
        sizes = (1_000, 10_000) if short else (1_000, 10_000, 100_000)
        turns = {1_000: 5 if short else 25, 10_000: 3 if short else 9, 100_000: 3}
        cpu_us = {}
        for key_count in sizes:
            results = _against_bulk(mongod.uri, f"{key_count:,} keys", key_count=key_count, turn_count=turns[key_count])
            cpu_us[key_count] = results.pop().value
            yield from results
        for key_count, value in cpu_us.items():
            yield Result(f"flush/client CPU/{key_count:,} keys", value, "us per key")
        yield Result("flush/client CPU/most keys against fewest", cpu_us[sizes[-1]] / cpu_us[sizes[0]], "x", "<= 1.2")
        for key_count in sizes:
            name = f"{key_count:,} keys"
            yield from _conflicts(mongod.uri, name, key_count=key_count, turn_count=min(7, turns[key_count]))
        yield from in_new_process(_idle, mongod.uri)
        for max_batch in STALL_BATCHES[1:2] if short else STALL_BATCHES:
            yield from in_new_process(_stall, mongod.uri, max_batch)
        yield from in_new_process(_bare_stall, mongod.uri)
    if not short:
        with ReplicaSet() as replica_set:
            for key_count in sizes[:2]:
                name = f"replica set, {key_count:,} keys"
                yield from _against_bulk(replica_set.uri, name, key_count=key_count, turn_count=9)[:-1]
            yield from _conflicts(replica_set.uri, "replica set, 10,000 keys", key_count=10_000, turn_count=3)


class _Ours:
    """A limiter whose keys have each counted a hit since its last cycle."""

    def __init__(self, uri: str, users: Sequence[str], *, collection: str) -> None:
        self._limiter = Limiter(load_config(subjects.settings_of()), mongo_store(uri, collection=collection))
        self._users = users
        self.cpu_s: list[float] = []

    def hit(self, users: Sequence[str] | None = None) -> None:
        """Count a hit of each user, or of some."""
        for user in users or self._users:
            self._limiter.check(subjects.CLIENT_ID, user)

    def flush(self) -> int:
        """Run one cycle."""
        started_s = time.process_time()
        report = self._limiter.sync()
        self.cpu_s.append(time.process_time() - started_s)
        if report.error is not None or report.flushed_count != len(self._users):
            raise RuntimeError(f"not a flush of {len(self._users)} keys: {report}")
        return report.flushed_count

    def send(self) -> None:
        """Run one cycle, whatever it finds."""
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
        version, self._version = self._version or None, self._version + 1
        self._operations = self._composed(self._users, version)

    def _composed(self, users: Sequence[str], version: int | None) -> list[Any]:
        now_s = int(time.time())
        hits = {Series(6): {now_s // 6 * 6: 1}}
        return compose(
            "0123456789ab",
            [
                Change(Key(subjects.CLIENT_ID, user), version, self._version, now_s * 1000, hits, now_s + 126.0)
                for user in users
            ],
        )

    def build_and_flush(self) -> None:
        """Build a batch, write it, and build the next one."""
        version, self._version = self._version or None, self._version + 1
        for start in range(0, len(self._users), self._batch):
            operations = self._composed(self._users[start : start + self._batch], version)
            self._collection.bulk_write(operations, ordered=False)

    def flush(self) -> int:
        """Write them."""
        for start in range(0, len(self._operations), self._batch):
            self._collection.bulk_write(self._operations[start : start + self._batch], ordered=False)
        return len(self._operations)

    def close(self) -> None:
        """Release the connection."""
        self._client.close()


def _against_bulk(uri: str, name: str, *, key_count: int, turn_count: int) -> list[Result]:
    """Return results, the last of them the client's CPU time."""
    users = subjects.user_names(key_count)
    ours = _Ours(uri, users, collection=f"ours_{key_count}")
    bare = _Bare(uri, users, collection=f"bare_{key_count}")
    batched = _Bare(uri, users, collection=f"batched_{key_count}", batch=flusher.MAX_BATCH)
    times = take_turns(
        {"ours": ours.flush, "bare": bare.flush, "batched": batched.flush},
        turn_count=turn_count,
        before={"ours": ours.hit, "bare": bare.prepare, "batched": batched.prepare},
    )
    for subject in (ours, bare, batched):
        subject.close()
    labels = {"ours": "sync()", "bare": "one bulk_write", "batched": f"bulk_writes of {flusher.MAX_BATCH}"}
    results = [
        Result(f"flush/{name}/{label}", times[key].median_ns / 1000, "us per key", spread=times[key].spread_ns / 1000)
        for key, label in labels.items()
    ]
    ratio = times["ours"].median_ns / times["bare"].median_ns
    results.append(Result(f"flush/{name}/against one bulk_write", ratio, "x", GOALS[0]))
    ratio = times["ours"].median_ns / times["batched"].median_ns
    results.append(Result(f"flush/{name}/against bulk_writes of {flusher.MAX_BATCH}", ratio, "x"))
    results.append(Result("cpu", statistics.median(ours.cpu_s[1:]) / key_count * 1e6, "us per key"))
    return results


def _conflicts(uri: str, name: str, *, key_count: int, turn_count: int) -> Iterator[Result]:
    """Another instance has written some of the documents since ours did."""
    users = subjects.user_names(key_count)
    bare = _Bare(uri, users, collection=f"bare_beside_{key_count}")
    runs: dict[str, Callable[[], int]] = {"bare": bare.flush}
    before: dict[str, Callable[[], object]] = {"bare": bare.prepare}
    subjects_: list[_Ours | _Bare] = [bare]
    percents = CONFLICT_PERCENTS[key_count]
    for percent in percents:
        contested = _Contested(uri, users, percent=percent)
        runs[str(percent)], before[str(percent)] = contested.ours.flush, contested.prepare
        subjects_ += [contested.ours, contested.rival]
    times = take_turns(runs, turn_count=turn_count, before=before)
    for subject in subjects_:
        subject.close()
    for percent in percents:
        timing, topic = times[str(percent)], f"flush/{name}, {percent} % conflicts"
        yield Result(f"{topic}/sync()", timing.median_ns / 1000, "us per key", spread=timing.spread_ns / 1000)
        ratio = timing.median_ns / times["bare"].median_ns
        yield Result(f"{topic}/against one bulk_write", ratio, "x", GOALS.get(percent))


class _Contested:
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
        self.rival.send()
        self.ours.hit()


def _idle(uri: str) -> list[Result]:
    """Keys that were used once and then never again, over three windows of simulated time."""
    commands = Commands()
    clock = _Clock()
    limiter = Limiter(load_config(subjects.settings_of()), mongo_store(uri, collection="idle"), clock=clock)
    for user in subjects.user_names(IDLE_KEY_COUNT):
        limiter.check(subjects.CLIENT_ID, user)
    limiter.sync()
    written, read = commands.by_name["update"], commands.documents_read
    for _ in range(2 * WINDOW_S):
        clock.now_s += 1
        limiter.sync()
    read_count = commands.documents_read - read
    read = commands.documents_read
    for _ in range(WINDOW_S):
        clock.now_s += 1
        limiter.sync()
    name = f"flush/idle/{IDLE_KEY_COUNT:,} keys that nobody uses"
    results = [
        Result(f"{name}: writes", commands.by_name["update"] - written, "commands", "<= 0"),
        Result(f"{name}: documents read in two windows", read_count / IDLE_KEY_COUNT, "per key", "<= 2"),
        Result(f"{name}: documents read later", commands.documents_read - read, "documents", "<= 0"),
    ]
    limiter.close()
    return results


@dataclass(slots=True)
class _Clock:
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.now_s = self.now_s or time.time()

    def __call__(self) -> float:
        return self.now_s


def _stall(uri: str, max_batch: int) -> list[Result]:
    """A thread serves a request each millisecond while another one flushes."""
    is_default = max_batch == flusher.MAX_BATCH
    flusher.MAX_BATCH = max_batch
    limiter = Limiter(load_config(subjects.settings_of()), mongo_store(uri, collection=f"stall_{max_batch}"))
    users = subjects.user_names(STALL_KEY_COUNT)

    def hit() -> None:
        for user in users:
            limiter.check(subjects.CLIENT_ID, user)

    stall = stall_of(limiter.sync, answer=partial(decide_and_answer, limiter), before=hit)
    limiter.close()
    return stall.results(f"batches of {max_batch}", key_count=STALL_KEY_COUNT, goal="<= 10" if is_default else None)


def _bare_stall(uri: str) -> list[Result]:
    """The same beside bulk writes of the same documents in a process that knows no limiter: the lower bound."""
    bare = _Bare(uri, subjects.user_names(STALL_KEY_COUNT), collection="stall_bare", batch=flusher.MAX_BATCH)
    stall = stall_of(bare.build_and_flush, answer=answer)
    bare.close()
    return stall.results(f"bare bulk_write of {flusher.MAX_BATCH}", key_count=STALL_KEY_COUNT)
