"""Cooperation of threads: background work lets requests run meanwhile, and few requests wait for others."""

import gc
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

STEP = 16  # items between two looks at the clock
MAX_RUN_S = 0.001  # without a pause; the interpreter by itself switches threads only every 5 ms
PAUSE_S = 5e-5  # a pause of 0 s would end before a waiting thread has woken up
WAITING_PART = 4  # one of so many threads may wait, at least one; for the same key half of those
MAX_THREADS = 1000  # that are remembered; with gevent each request has one of its own
MIN_COLLECTED = 100  # items whose objects make the collector run several times

_thread = threading.local()


def yield_between(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, and pause between them whenever this thread has run for a millisecond.

    The time that the caller spends on an item counts, also across several calls. Up to ``STEP`` items are never
    interrupted.
    """
    rest = iter(items)
    yield from islice(rest, STEP)
    for item in rest:
        if time.perf_counter() - getattr(_thread, "paused_at_s", 0.0) > MAX_RUN_S:
            pause()
        yield item
        yield from islice(rest, STEP - 1)


def pause() -> None:
    """Let other threads run, before a step that cannot be divided."""
    time.sleep(PAUSE_S)
    _thread.paused_at_s = time.perf_counter()


def collect_young_garbage(items: Sized) -> None:
    """Collect the young generations before a step of work on many items.

    The collector takes objects that it has seen a few times for old. After many old ones it scans the whole process,
    which delays requests by 50 ms and more. With this, the step's own objects are garbage before they are old.
    """
    if len(items) > MIN_COLLECTED and gc.isenabled():
        gc.collect(1)


class Waiters(threading.Condition):
    """A condition on which a share of the server's threads may wait, each for a key. It is held during each call.

    The others serve other requests. ``waiting`` counts those that wait, by key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Counter[Hashable] = Counter()
        self._threads: set[int] = set()  # that have asked: the server's

    def note_thread(self) -> None:
        if len(self._threads) < MAX_THREADS:
            self._threads.add(threading.get_ident())

    def has_place_for(self, key: Hashable) -> bool:
        place_count = max(1, len(self._threads) // WAITING_PART)
        return self.waiting.total() < place_count and self.waiting[key] < max(1, place_count // 2)

    def wait_for_key(self, key: Hashable, timeout_s: float) -> None:
        self.waiting += Counter((key,))
        try:
            self.wait(timeout_s)
        finally:
            self.waiting -= Counter((key,))  # drops zeros
