"""
Asking the store before the last requests of a quota: ``near_limit: reserve``.

A request whose key is that close waits for its key to be synchronised, but not past a deadline, and is then decided on
what is known. A thread does it, for all requests that wait at the same time in one cycle, because only another thread
can be given up on.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from oauth_ratelimit.sync.cycle import SyncCycle
from oauth_ratelimit.sync.keys import KeyState


class Reservations:
    """
    Synchronises keys for requests that wait.

    Args:
        cycle: Does the work.

        clock: Returns the time in seconds since the epoch.

        deadline_s: How long a request waits at most.
    """

    def __init__(self, cycle: SyncCycle, *, clock: Callable[[], float], deadline_s: float) -> None:
        self._cycle = cycle
        self._clock = clock
        self._deadline_s = deadline_s
        self._waiting: deque[tuple[tuple[KeyState, ...], threading.Event]] = deque()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="oauth_ratelimit-reserve")

    def ask(self, states: Iterable[KeyState]) -> bool:
        """
        Synchronise keys and wait for it.

        Returns:
            Whether it was done by the deadline.
        """
        deadline_s = time.monotonic() + self._deadline_s
        return self.send(states).wait(deadline_s - time.monotonic())

    def send(self, states: Iterable[KeyState]) -> threading.Event:
        """
        Synchronise keys as soon as possible, without waiting. The event is set when it is done.
        """
        done = threading.Event()
        self._waiting.append((tuple(states), done))
        self._executor.submit(self._work)
        return done

    def _work(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if waiting:
            try:
                self._cycle.run_for([state for states, _ in waiting for state in states], self._clock())
            finally:
                for _, done in waiting:
                    done.set()

    def close(self) -> None:
        """
        Let no further request ask, and wait for the ones that have.
        """
        self._executor.shutdown()
