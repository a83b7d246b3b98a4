"""Recorded traffic in the background, so that a demo server has something to show."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from types import TracebackType
from typing import Self

from demo.cast import Call, assign, schedule
from demo.instance import Instance
from demo.records import Client, User
from demo.replay import TokenClient, UnexpectedAnswer
from demo.tally import Tally
from demo.trace import stretch

FIRST_HIT, HIT_COUNT = 6000, 20_000  # from half past seven until one in the afternoon
HOST_COUNT = 80  # the busiest ones: about fifteen requests a second, a few of them over a limit
SPEED = 100.0
PAUSE_S = 1.0  # after an answer that is none, while a server is being reconfigured for example


class Traffic:
    """The busiest hosts of the trace, who ask one server for tokens over and over, until the end of ``with``.

    Args:
        without: Clients whose part is left out: those that somebody wants to try for himself.
    """

    def __init__(self, *, without: Sequence[Client] = ()) -> None:
        hits = stretch(FIRST_HIT, HIT_COUNT)
        cast = assign(hits)
        busiest = {host for host, _ in Counter(hit.host for hit in hits).most_common(HOST_COUNT)}
        left_out = {client.client_id for client in without}
        chosen = [hit for hit in hits if hit.host in busiest and cast[hit.host].client_id not in left_out]
        self._calls = schedule(chosen, cast, speed=SPEED)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def clients(self) -> set[Client]:
        """Who has to be registered."""
        return {call.caller.client for call in self._calls}

    @property
    def users(self) -> set[User]:
        """On whose behalf they ask."""
        return {call.caller.user for call in self._calls if call.caller.user}

    def start(self, instance: Instance) -> Self:
        """Have them begin."""
        self._thread = threading.Thread(target=self._send, args=(instance,), name="traffic", daemon=True)
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _send(self, instance: Instance) -> None:
        calls = self._due()
        while not self._stopped.is_set():
            try:
                with TokenClient(Tally()) as client:
                    for call in calls:
                        client.ask(instance, call.caller)
            except UnexpectedAnswer:
                calls = self._due()
                self._stopped.wait(PAUSE_S)

    def _due(self) -> Iterator[Call]:
        """Yield each call when it is due, for ever; none any more when it is over."""
        for _ in count():
            started_s = time.monotonic()
            for call in self._calls:
                if self._stopped.wait(max(0.0, started_s + call.due_s - time.monotonic())):
                    return
                yield call
