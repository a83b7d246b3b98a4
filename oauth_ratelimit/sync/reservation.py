"""Reservations: the last requests of a quota wait for the store (``near_limit: reserve``).

The keys of such a request are synchronised before it is decided, and again after it is counted, so the next request
finds its hit. Both end at a deadline. A thread of its own runs the cycle, because a request can only give up waiting
for another thread. It serves all requests that wait at the same time in one cycle.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.sync.cycle import SyncCycle


class Reservations:
    """Synchronises the keys of requests that wait.

    Args:
        cycle: The sync cycle.
        deadline_s: Maximum seconds that a request waits.
    """

    def __init__(self, cycle: SyncCycle, *, deadline_s: float) -> None:
        self._cycle = cycle
        self._deadline_s = deadline_s
        self._waiting: deque[tuple[tuple[KeyState, ...], threading.Event]] = deque()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="oauth_ratelimit-reserve")

    def decide(self, states: tuple[KeyState, ...], decide: Callable[[], Decision]) -> Decision:
        """Decide about a request between two synchronisations of its keys. No lock may be held.

        Args:
            states: The keys of the request.
            decide: Decides and counts. It looks the keys up again, because they may be evicted meanwhile.
        """
        deadline_s = time.monotonic() + self._deadline_s
        self._synchronise(states, deadline_s)
        decision = decide()
        if decision.allowed:
            self._synchronise(states, deadline_s)
        return decision

    def _synchronise(self, states: tuple[KeyState, ...], deadline_s: float) -> None:
        done = threading.Event()
        self._waiting.append((states, done))
        self._executor.submit(self._work)
        done.wait(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if waiting:
            try:
                self._cycle.run_for([state for states, _ in waiting for state in states])
            finally:
                for _, done in waiting:
                    done.set()

    def close(self) -> None:
        """Accept no further request, and wait for those that have come."""
        self._executor.shutdown()
