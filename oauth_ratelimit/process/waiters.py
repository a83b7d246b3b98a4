"""Limit on the number of a server's threads that wait for each other."""

import threading
from collections import Counter
from collections.abc import Hashable

WAITING_PART = 4  # one of so many threads may wait, at least one; for the same key half of those
MAX_THREADS = 1000  # that are remembered; with gevent each request has one of its own


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
