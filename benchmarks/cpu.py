"""The CPU time that documents cost: MongoDB's servers, as the kernel counts it, and the instance that asks.

That is not the time a flush takes, which waits for the journal and for a majority, too. Of several turns the cheapest
counts: a busy machine makes the same work dearer, up to twice.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import subjects
from benchmarks.accuracy import Clock
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.sync.flusher import MAX_BATCH
from tests.support.mongod import Mongod
from tests.support.replica_set import ReplicaSet
from tests.support.stores import mongo_store

DOCUMENTS = 2_000
FRAME_S, FRAME_COUNT = 6, 11  # as a window of 60 s has them
FEW, MANY = 10, 100  # documents to a round trip; what the difference costs is what round trips cost
TURNS = 7
IDLE_S = 3.0
KEPT_S = 3600.0  # longer than a run


@dataclass(frozen=True, slots=True)
class Price:
    """CPU time in microseconds.

    Attributes:
        document_us: For each document.
        trip_us: For each round trip besides, however many documents it is for.
    """

    document_us: float
    trip_us: float


@dataclass(frozen=True, slots=True)
class Prices:
    """What those spend who are asked, all servers together."""

    write: Price
    read: Price


def of_one_server() -> Prices:
    """Return what a standalone server spends."""
    with Mongod() as mongod:
        return _prices([mongod], mongod.uri)


def of_replica_set() -> Prices:
    """Return what the three members of a replica set spend."""
    with ReplicaSet() as replica_set:
        return _prices(replica_set.members, replica_set.uri)


def of_instance() -> tuple[float, float]:
    """Return what an instance spends on a document written and on one read, in us, in full batches."""
    clock = Clock(time.time())  # the present, or the server would remove the documents
    users = subjects.user_names(DOCUMENTS)
    written_us: list[float] = []
    read_us: list[float] = []
    with Mongod() as mongod:
        limiter = subjects.limiter(store=mongo_store(mongod.uri), clock=clock)
        for turn in range(FRAME_COUNT + TURNS):
            for user in users:
                limiter.check(subjects.CLIENT_ID, user)
            for times_us in (written_us, read_us):  # a key that was written is read with the next cycle
                started_s = time.process_time()
                report = limiter.sync()
                if turn >= FRAME_COUNT:
                    times_us.append((time.process_time() - started_s) / DOCUMENTS * 1e6)
                clock.now_s += FRAME_S / 2
            if report.error is not None or report.flushed_count or report.pulled_count != DOCUMENTS:
                raise RuntimeError(f"not {DOCUMENTS} documents read: {report}")
        limiter.close()
    return min(written_us), min(read_us)


class _Documents:
    """Documents of a full window, to be written and read so many at a time."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        self._keys = [Key(subjects.CLIENT_ID, user) for user in subjects.user_names(DOCUMENTS)]
        self._version = 0
        for _ in range(FRAME_COUNT):
            self.write(MAX_BATCH)

    def write(self, batch: int) -> None:
        """Add a hit to each."""
        version, self._version = self._version, self._version + 1
        start_s = int(subjects.STANDING_S) // FRAME_S * FRAME_S + version % FRAME_COUNT * FRAME_S
        hits, flush_id = {Series(FRAME_S): {start_s: 1}}, time.time_ns() // 1_000_000
        for first in range(0, DOCUMENTS, batch):
            changes = [
                Change(key, version or None, version + 1, flush_id, hits, time.time() + KEPT_S)
                for key in self._keys[first : first + batch]
            ]
            if self._store.compare_and_set("0123456789ab", changes).lost:
                raise RuntimeError("somebody else writes")

    def read(self, batch: int) -> None:
        """Read each."""
        for first in range(0, DOCUMENTS, batch):
            self._store.read(self._keys[first : first + batch])


def _prices(servers: Sequence[Mongod], uri: str) -> Prices:
    store = mongo_store(uri)
    documents = _Documents(store)
    idle_ratio = _spent_s(servers, partial(time.sleep, IDLE_S)) / IDLE_S
    prices = [_price(servers, step, idle_ratio) for step in (documents.write, documents.read)]
    store.close()
    return Prices(*prices)


def _price(servers: Sequence[Mongod], step: Callable[[int], None], idle_ratio: float) -> Price:
    """Return what a step costs beyond what servers spend when nobody asks them."""
    each_us: dict[int, list[float]] = {FEW: [], MANY: []}
    for _ in range(TURNS):
        for batch, times_us in each_us.items():
            started_s = time.monotonic()
            spent_s = _spent_s(servers, partial(step, batch))
            spent_s -= idle_ratio * (time.monotonic() - started_s)
            times_us.append(spent_s / DOCUMENTS * 1e6)
    few_us, many_us = min(each_us[FEW]), min(each_us[MANY])
    trip_us = (few_us - many_us) / (1 / FEW - 1 / MANY)
    return Price(many_us - trip_us / MANY, trip_us)


def _spent_s(servers: Sequence[Mongod], step: Callable[[], object]) -> float:
    """Return the CPU time that servers spend while something is done."""
    before_s = _cpu_s(servers)
    step()
    return _cpu_s(servers) - before_s


def _cpu_s(servers: Sequence[Mongod]) -> float:
    """Return the CPU time of all threads of servers. Linux only."""
    paths = (path for server in servers for path in Path(f"/proc/{server.pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in paths) / 1e9
