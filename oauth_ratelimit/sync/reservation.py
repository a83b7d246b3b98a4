"""Reservations: the last requests of a quota wait for the store (``near_limit: reserve``).

The keys of such a request are synchronised before it is decided, and again after it is counted, so the next request
finds its hit. Both end at a deadline. A thread of its own runs the cycle, because a request can only give up waiting
for another thread. It serves all requests that wait at the same time in one cycle.
"""

import threading
from collections.abc import Callable

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.process.deadline import Deadline
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
        self._changed = threading.Condition()  # guards the attributes below
        self._waiting: list[tuple[tuple[KeyState, ...], threading.Event]] = []
        self._is_closed = False
        self._thread: threading.Thread | None = None  # started by the first request

    def reserve(self, states: tuple[KeyState, ...], decide: Callable[[], Decision]) -> Decision:
        """Decide about a request between two synchronisations of its keys. No lock may be held.

        Args:
            states: The keys of the request.
            decide: Decides and counts. It looks the keys up again, because they may be evicted meanwhile.
        """
        deadline = Deadline(self._deadline_s)
        self._synchronise(states, deadline)
        decision = decide()
        if decision.allowed:
            self._synchronise(states, deadline)
        return decision

    def _synchronise(self, states: tuple[KeyState, ...], deadline: Deadline) -> None:
        done = threading.Event()
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append((states, done))
            if self._thread is None or not self._thread.is_alive():
                # The exit of the process would wait for a thread that is no daemon, as those of an executor.
                self._thread = threading.Thread(target=self._run, daemon=True, name="oauth_ratelimit-reserve")
                self._thread.start()
            self._changed.notify()
        done.wait(deadline.remaining_s)

    def _run(self) -> None:
        while waiting := self._take():
            try:
                self._cycle.run_for([state for states, _ in waiting for state in states])
            finally:
                for _, done in waiting:
                    done.set()

    def _take(self) -> list[tuple[tuple[KeyState, ...], threading.Event]]:
        """Wait for requests and take them. None are left after ``close``."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            waiting, self._waiting = self._waiting, []
            return waiting

    def close(self) -> None:
        """Accept no further request. The last flush sends the hits of those that have come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
