"""Requests run while many keys are flushed."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.sync.cycle import MAX_BATCH
from oauth_ratelimit.sync.replica import Replica
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, a_limiter

KINDS = Change, Replica  # objects of a flush


@pytest.fixture
def limiter(clock: Clock) -> Iterator[Limiter]:
    limiter = a_limiter(MemoryStore(), clock)
    yield limiter
    limiter.close()


def hit(limiter: Limiter, key_count: int) -> None:
    for index in range(key_count):
        limiter.check(CLIENT, f"user.{index}")


@pytest.mark.no_cover
def test_objects_of_a_flush_are_not_taken_for_old(limiter: Limiter) -> None:
    """However often the requests since the last cycle have made the collector run."""
    seen_old: list[object] = []
    others = [each for each in gc.get_objects() if type(each) in KINDS]  # of other tests; held, so no id comes twice
    known = set(map(id, others))

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 1:
            seen_old.extend(
                each for each in gc.get_objects(generation=2) if type(each) in KINDS and id(each) not in known
            )

    young, middle, _ = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        for run_count in range(middle + 1):
            hit(limiter, 2 * MAX_BATCH)
            for _ in range(2 * young * middle):
                if gc.get_count()[1] == run_count:
                    break
                cycle: list[object] = []
                cycle.append(cycle)
            limiter.sync()
    finally:
        gc.callbacks.remove(note)

    assert [] == seen_old


def test_disabled_garbage_collector_stays_disabled(limiter: Limiter) -> None:
    hit(limiter, MAX_BATCH)
    gc.disable()
    before = gc.get_stats()
    try:
        limiter.sync()
        assert before == gc.get_stats()
    finally:
        gc.enable()


@pytest.mark.parametrize(("key_count", "pauses"), [(MAX_BATCH, True), (10, False)], ids=("many keys", "few keys"))
def test_only_a_large_batch_pauses_for_other_threads(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, *, key_count: int, pauses: bool
) -> None:
    """For less than a millisecond each time."""
    hit(limiter, key_count)
    slept_s: list[float] = []
    sleep, this_thread = time.sleep, threading.get_ident()
    monkeypatch.setattr(time, "sleep", lambda s: (slept_s.append if threading.get_ident() == this_thread else sleep)(s))

    limiter.sync()

    assert pauses == bool(slept_s)
    assert all(0 < duration_s < 0.001 for duration_s in slept_s)
