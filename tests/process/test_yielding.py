"""Requests go on while many keys are being flushed."""

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
    """A store that makes of a change what MongoDB's driver makes of it, and keeps nothing."""

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Say that all were written."""
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
    """What the garbage collector says of each look at everything, in a process that holds little besides."""
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
def test_garbage_collector_during_a_flush(limiter: Limiter, full_collections: list[dict[str, Any]]) -> None:
    """A flush of many keys is no reason for the garbage collector to look at everything, again and again."""
    hit(limiter, 20_000)
    limiter.sync()
    hit(limiter, 20_000)
    full_collections.clear()

    limiter.sync()

    assert 1 >= len(full_collections)


def test_garbage_collector_that_is_off(limiter: Limiter, full_collections: list[dict[str, Any]]) -> None:
    """Whoever has switched the collector off does not get it back."""
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
def test_pauses(limiter: Limiter, monkeypatch: pytest.MonkeyPatch, *, key_count: int, pauses: bool) -> None:
    """Between two steps of a large batch other threads get the interpreter; what is small does not wait for anybody."""
    hit(limiter, key_count)
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)

    limiter.sync()

    assert pauses == bool(slept_s)
    assert all(0 < duration_s < 0.001 for duration_s in slept_s)
