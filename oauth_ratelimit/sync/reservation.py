"""Asking the store before the last requests of a quota: ``near_limit: reserve``.

A request whose key is that close waits for its key to be synchronised, is decided on what is known then, and waits
until its own hit is sent, so that the next one finds it, but not past a deadline. A thread does it, for all requests
that wait at the same time in one cycle, because only another thread can be given up on.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.sync.cycle import SyncCycle


class Reservations:
    """Synchronises keys for requests that wait.

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

    def decide(self, client: ClientState, state: KeyState, now_s: float, cost: int) -> Decision:
        """Decide with what the store knows, and tell it of the outcome, but return by the deadline.

        The lock of the place is held by the caller, before and after, not while this waits.
        """
        deadline_s = time.monotonic() + self._deadline_s
        states = (state,) if client.total is None else (state, client.total)
        self._synchronise(client, states, deadline_s)
        decision = client.decide(state, now_s, cost)
        if decision.allowed:
            self._synchronise(client, states, deadline_s)
        return decision

    def _synchronise(self, client: ClientState, states: tuple[KeyState, ...], deadline_s: float) -> None:
        done = threading.Event()
        self._waiting.append((states, done))
        self._executor.submit(self._work)
        client.lock.release()
        try:
            done.wait(max(0.0, deadline_s - time.monotonic()))
        finally:
            client.lock.acquire()

    def _work(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if waiting:
            try:
                self._cycle.run_for([state for states, _ in waiting for state in states], self._clock())
            finally:
                for _, done in waiting:
                    done.set()

    def close(self) -> None:
        """Let no further request ask, and wait for the ones that have."""
        self._executor.shutdown()
