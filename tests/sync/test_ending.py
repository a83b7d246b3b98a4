"""The time that a limiter takes to end, on a store that waits and a clock that the test moves."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.errors import StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.deadline import ENDING_S, Deadline
from oauth_ratelimit.store.base import Change, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, some_settings, stored_hits


class SlowStore(MemoryStore):
    """A store whose operations take time, and end with the time limit at the latest.

    Attributes:
        delay_s: Seconds that each operation takes.
        is_reached: False if an operation that is cut off was never sent.
        calls: Names of the operations.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.now = clock
        self.delay_s = 0.0
        self.is_reached = True
        self.calls: list[str] = []
        self._ends_s = [float("inf")]

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        self._ends_s.append(min(self._ends_s[-1], self.now() + seconds))
        yield
        self._ends_s.pop()

    def _wait(self, call: str) -> None:
        self.calls.append(call)
        left_s = self._ends_s[-1] - self.now()
        self.now.advance(min(self.delay_s, left_s))
        if self.delay_s > left_s:
            raise StoreUnavailable("no answer") if self.is_reached else StoreUnreachable("no server")

    def read(self, keys: Sequence[Any]) -> Any:
        self._wait("read")
        return super().read(keys)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        self._wait("write")
        return super().compare_and_set(writer, changes)

    def leave(self, writer: str, keys: Sequence[Any]) -> None:
        self._wait("leave")
        super().leave(writer, keys)


@pytest.fixture
def store(clock: Clock) -> SlowStore:
    """A store that is not slow yet."""
    return SlowStore(clock)


def end(limiter: Limiter, clock: Clock) -> tuple[float, list[tuple[str, dict[str, int]]]]:
    """Close a limiter, and return the seconds that it took, and the hits that it reported by event."""
    begun_s = clock()
    with capture_logs() as logs:
        limiter.close()
    reports = [(line["event"], line["by_client"]) for line in logs if line["event"].startswith("hits_")]
    return clock() - begun_s, reports


def a_busy_limiter(store: SlowStore, clock: Clock) -> Limiter:
    """Return a limiter that has flushed two hits and has three to send."""
    limiter = a_limiter(store, clock)
    limiter.check(CLIENT, cost=2)
    limiter.sync()
    limiter.check(CLIENT, cost=3)
    store.calls.clear()
    return limiter


@pytest.mark.parametrize("delay_s", [1.0, 2.0])
def test_slow_store_gets_the_last_hits(store: SlowStore, clock: Clock, delay_s: float) -> None:
    """The last flush only writes: it reads nothing, and asks for no time."""
    limiter = a_busy_limiter(store, clock)
    store.delay_s = delay_s
    took_s, reports = end(limiter, clock)
    assert (5, []) == (stored_hits(store), reports)
    assert ["write", "leave"] == store.calls[:2]
    assert took_s <= ENDING_S


@pytest.mark.parametrize(("is_reached", "event"), [(True, "hits_unconfirmed"), (False, "hits_undelivered")])
def test_store_that_never_answers_is_tried_again_until_the_time_is_up(
    store: SlowStore, clock: Clock, is_reached: bool, event: str
) -> None:
    """Hits of a write without an answer are not reported as undelivered: they may be stored."""
    limiter = a_busy_limiter(store, clock)
    store.delay_s, store.is_reached = 3600.0, is_reached
    took_s, reports = end(limiter, clock)
    assert [(event, {CLIENT: 3})] == reports
    assert ENDING_S == pytest.approx(took_s)
    assert 3 == len(store.calls)


def test_hits_after_a_write_of_unknown_outcome_are_undelivered(store: SlowStore, clock: Clock) -> None:
    """They were in no write, because the document must be read before the next one."""
    limiter = a_busy_limiter(store, clock)
    store.delay_s = 3600.0
    with store.time_limit(1.0):
        limiter.sync()
    limiter.check(CLIENT, cost=4)
    limiter.check("other", "kim")
    _, reports = end(limiter, clock)
    assert [("hits_undelivered", {CLIENT: 4, "other": 1}), ("hits_unconfirmed", {CLIENT: 3})] == reports


def test_request_of_a_user_with_a_total_is_reported_once(store: SlowStore, clock: Clock) -> None:
    """It is in the hits of the user and in those of all users together."""
    limiter = Limiter(some_settings(total=(a_policy(),)), store, clock=clock, monotonic=clock)
    store.delay_s, store.is_reached = 3600.0, False
    limiter.check(CLIENT, "kim")
    limiter.check(CLIENT, "lee")
    _, reports = end(limiter, clock)
    assert [("hits_undelivered", {CLIENT: 2})] == reports


def test_time_that_others_have_used_up_leaves_no_try(store: SlowStore, clock: Clock) -> None:
    """The parts of a process end by one deadline."""
    limiter = a_busy_limiter(store, clock)
    deadline = Deadline(monotonic=clock)
    clock.advance(ENDING_S)
    with capture_logs() as logs:
        limiter.close(deadline)
    assert [("hits_undelivered", {CLIENT: 3})] == [(line["event"], line["by_client"]) for line in logs]
    assert [] == store.calls


def test_cycle_that_hangs_leaves_its_hits_unconfirmed(store: SlowStore, clock: Clock) -> None:
    """The last flush cannot begin, and the write of the cycle may still arrive."""
    limiter = a_busy_limiter(store, clock)
    with limiter._cycle._lock, capture_logs() as logs:
        limiter.close(Deadline(0.0))
    assert [("hits_unconfirmed", {CLIENT: 3})] == [(line["event"], line["by_client"]) for line in logs]
    assert [] == store.calls


def test_marks_wait_for_no_answer_longer_than_half_of_the_time(store: SlowStore, clock: Clock) -> None:
    """Other parts of the process need some, too."""
    limiter = a_limiter(store, clock)
    limiter.check(CLIENT)
    limiter.sync()
    store.delay_s = 3600.0
    took_s, reports = end(limiter, clock)
    assert (ENDING_S / 2, []) == (pytest.approx(took_s), reports)
    assert 1 == len(MemoryStore.read(store, [KEY])[KEY].writers)
