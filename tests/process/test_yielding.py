"""Requests run while many keys are flushed."""

import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.store.base import Change, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.store.mongo.document import compose
from oauth_ratelimit.sync.flusher import MAX_BATCH
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_limiter


class ForgetfulStore(MemoryStore):
    """A store that composes updates as for MongoDB and keeps nothing."""

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Report success."""
        compose(writer, changes)
        return WriteResult()


@pytest.fixture
def limiter(clock: Clock) -> Iterator[Limiter]:
    """A limiter of users."""
    limiter = a_limiter(ForgetfulStore(), clock)
    yield limiter
    limiter.close()


@pytest.fixture
def full_collections() -> Iterator[list[dict[str, Any]]]:
    """The full collections of the garbage collector, in a process with few other objects."""
    seen = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(info)

    gc.collect()
    gc.freeze()
    gc.collect()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.unfreeze()


def hit(limiter: Limiter, key_count: int) -> None:
    """Count a request of each of some users."""
    for index in range(key_count):
        limiter.check(CLIENT, f"user.{index}")


@pytest.mark.no_cover
def test_flush_of_many_keys_causes_no_full_collection(limiter: Limiter, full_collections: list[dict[str, Any]]) -> None:
    hit(limiter, 20_000)
    limiter.sync()
    hit(limiter, 20_000)
    full_collections.clear()

    limiter.sync()

    assert 1 >= len(full_collections)


@pytest.mark.no_cover
def test_objects_of_a_flush_are_not_taken_for_old(limiter: Limiter) -> None:
    """Even if the requests since the last cycle have made the collector run nearly often enough."""
    seen_old: list[object] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 1:
            seen_old.extend(each for each in gc.get_objects(generation=2) if type(each) is Change)

    hit(limiter, MAX_BATCH)
    young, middle, _ = gc.get_threshold()
    for _ in range(young * middle):
        if gc.get_count()[1] == middle:
            break
        cycle: list[object] = []
        cycle.append(cycle)
    gc.callbacks.append(note)
    try:
        limiter.sync()
    finally:
        gc.callbacks.remove(note)

    assert [] == seen_old


def test_disabled_garbage_collector_stays_disabled(limiter: Limiter, full_collections: list[dict[str, Any]]) -> None:
    collections = []

    def note(phase: str, info: dict[str, Any]) -> None:
        collections.append((phase, info))

    hit(limiter, MAX_BATCH)
    gc.disable()
    gc.callbacks.append(note)
    try:
        limiter.sync()
    finally:
        gc.callbacks.remove(note)
        gc.enable()

    assert [] == collections


@pytest.mark.parametrize(("key_count", "pauses"), [(MAX_BATCH, True), (10, False)], ids=("many keys", "few keys"))
def test_only_a_large_batch_pauses_for_other_threads(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, *, key_count: int, pauses: bool
) -> None:
    """For less than a millisecond each time."""
    hit(limiter, key_count)
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)

    limiter.sync()

    assert pauses == bool(slept_s)
    assert all(0 < duration_s < 0.001 for duration_s in slept_s)
