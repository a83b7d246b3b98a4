"""
Four ways to hear of what other instances have counted: asking for the keys that matter, asking for those of them that
are not at a known version, by an index on the time of the last change, and by a change stream.

An instance tracks 10,000 keys, of which it cares about some (they were touched here, or are near their limit) while
others write. Per round the others write a number of keys, and the instance brings itself up to date.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from bson.int64 import Int64
from pymongo import MongoClient, UpdateOne
from pymongo.collection import Collection
from pymongo.write_concern import WriteConcern

from benchmarks.results import Result
from benchmarks.timing import Timing, take_turns
from oauth_ratelimit.sync.flusher import MAX_BATCH
from tests.support.replica_set import ReplicaSet

KEY_COUNT = 10_000
FRAME_S, FRAME_COUNT = 6, 11
CARED_COUNT = 500  # keys that this instance was asked for in the interval, or that are near their limit
WRITTEN = (0, 500, 5_000)  # keys that others write in an interval
PROJECTION = {"version": 1, "requestCounters": 1}
Documents = Collection[dict[str, Any]]


def run(*, short: bool) -> Iterator[Result]:
    """Yield what a round costs the instance, and what each way costs those who write."""
    client: MongoClient[dict[str, Any]]
    with ReplicaSet(1) as replica_set, MongoClient(replica_set.uri) as client:
        collections = client["pull"]
        plain, indexed = collections["plain"], collections["indexed"]
        for documents in (plain, indexed):
            documents.insert_many([_document(number) for number in range(KEY_COUNT)])
        indexed.create_index("updatedAt")
        turn_count = 5 if short else 15
        yield from _writes(plain, indexed, turn_count=turn_count)
        for written_count in WRITTEN:
            yield from _rounds(plain, indexed, written_count=written_count, turn_count=turn_count)


def _document(number: int) -> dict[str, Any]:
    start_s = 2_000_000_000
    frames = {str(start_s + FRAME_S * index): index + 1 for index in range(FRAME_COUNT)}
    version = Int64(number << 32)  # no two documents come to the same one
    return {"_id": _key(number), "version": version, "updatedAt": 0, "requestCounters": {str(FRAME_S): frames}}


def _key(number: int) -> dict[str, str]:
    return {"clientId": f"partner-app-{number % 25}", "username": f"user-{number:06d}@example.com"}


def _write(documents: Documents, numbers: Sequence[int], tick: int) -> int:
    for start in range(0, len(numbers), MAX_BATCH):
        documents.with_options(write_concern=WriteConcern(w="majority", j=True)).bulk_write(
            [
                UpdateOne(
                    {"_id": _key(number)},
                    {"$inc": {"version": 1, f"requestCounters.{FRAME_S}.2000000060": 1}, "$set": {"updatedAt": tick}},
                )
                for number in numbers[start : start + MAX_BATCH]
            ],
            ordered=False,
        )
    return len(numbers)


def _writes(plain: Documents, indexed: Documents, *, turn_count: int) -> Iterator[Result]:
    rng, ticks = random.Random(1), count(1)
    timings = take_turns(
        {
            name: lambda documents=documents: _write(documents, rng.sample(range(KEY_COUNT), 2000), next(ticks))  # type: ignore[misc]
            for name, documents in (("plain", plain), ("indexed", indexed))
        },
        turn_count=turn_count,
    )
    ratio = timings["indexed"].median_ns / timings["plain"].median_ns
    yield Result("pull/a write with an index on the time of change, against without", ratio, "x")


def _rounds(plain: Documents, indexed: Documents, *, written_count: int, turn_count: int) -> Iterator[Result]:
    rng, ticks = random.Random(2), count(1_000_000)
    cared = [_key(number) for number in rng.sample(range(KEY_COUNT), CARED_COUNT)]
    name = f"pull/{written_count:,} of {KEY_COUNT:,} keys written, {CARED_COUNT} matter"
    with plain.watch(max_await_time_ms=1, batch_size=MAX_BATCH) as stream:
        last_tick = next(ticks)

        def others_write() -> None:
            nonlocal last_tick
            last_tick = next(ticks)
            numbers = rng.sample(range(KEY_COUNT), written_count)
            for documents in (plain, indexed):
                _write(documents, numbers, last_tick)

        def follow() -> int:
            seen = 0
            while seen < written_count:
                seen += stream.try_next() is not None
            if not written_count:
                stream.try_next()
            return 1

        ways: dict[str, Callable[[], int]] = {
            "asking for those that matter": partial(_ask, plain, cared),
            "asking for those of them that changed": partial(_ask_sparingly, plain, cared, {}),
            "index on the time of change": lambda: _poll(indexed, last_tick),
            "change stream": follow,
        }
        # Each way hears of a write of its own: a stream must not be behind when its turn comes.
        before = {way: others_write for way in ways if way != "change stream"}
        before["change stream"] = lambda: (_drain(stream), others_write())  # type: ignore[assignment, func-returns-value]
        for clock_name, clock_ns in (("", time.perf_counter_ns), (", client CPU", time.process_time_ns)):
            timings = take_turns(ways, turn_count=turn_count, before=before, clock_ns=clock_ns)
            for way, timing in timings.items():
                yield _result(f"{name}/{way}{clock_name}", timing)


def _ask(documents: Documents, keys: Sequence[dict[str, str]]) -> int:
    for start in range(0, len(keys), MAX_BATCH):
        list(documents.find({"_id": {"$in": keys[start : start + MAX_BATCH]}}, PROJECTION))
    return 1


def _ask_sparingly(documents: Documents, keys: Sequence[dict[str, str]], known: dict[str, int]) -> int:
    for start in range(0, len(keys), MAX_BATCH):
        batch = keys[start : start + MAX_BATCH]
        versions = [Int64(known[key["username"]]) for key in batch if key["username"] in known]
        for document in documents.find({"_id": {"$in": batch}, "version": {"$nin": versions}}, PROJECTION):
            known[document["_id"]["username"]] = document["version"]
    return 1


def _poll(documents: Documents, tick: int) -> int:
    list(documents.find({"updatedAt": {"$gte": tick}}, PROJECTION))
    return 1


def _drain(stream: Any) -> None:
    for _ in iter(stream.try_next, None):
        pass


def _result(name: str, timing: Timing) -> Result:
    return Result(name, timing.median_ns / 1e6, "ms per round", spread=timing.spread_ns / 1e6)
