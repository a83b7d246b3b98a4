"""Removal of old frames and marks from documents."""

from collections.abc import Callable

import pytest

from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import MAX_HORIZON_S, Snapshot
from oauth_ratelimit.sync.pruning import MAX_KEPT, NOTHING_PRUNABLE, SLACK_S, Prunable, count_writers, prunable_of
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy

SIX = Series(6)
NOW_S = 1_800_000_000
HORIZON_S = 66
OVER_S = NOW_S - HORIZON_S - SLACK_S  # what was last of use before this is over


def found(snapshot: Snapshot, store_time_s: Callable[[], float | None] = lambda: NOW_S) -> Prunable:
    return prunable_of(snapshot, writer="own", store_time_s=store_time_s)


def frames(*starts_s: int, horizon_s: int | None = HORIZON_S) -> Snapshot:
    """Return a document with one hit in each frame."""
    horizons = {} if horizon_s is None else {SIX: horizon_s}
    return Snapshot(1, {SIX: dict.fromkeys(starts_s, 1)}, {}, horizons=horizons)


def marks(seen: dict[str, float]) -> Snapshot:
    return Snapshot(1, {}, dict.fromkeys(seen, 1), horizons={SIX: HORIZON_S}, seen=seen)


def test_frame_is_over_after_its_horizon_and_the_slack() -> None:
    assert ((SIX, OVER_S - 1),) == found(frames(OVER_S - 1, OVER_S, NOW_S)).frames
    assert MAX_KEPT == len(found(frames(*range(MAX_KEPT + 1), NOW_S)).frames)


@pytest.mark.parametrize(
    ("snapshot", "time_s"),
    [(frames(0, NOW_S), None), (frames(NOW_S, NOW_S + 86_400), NOW_S)],
    ids=["time of the store not known", "one of a clock that is ahead"],
)
def test_frames_stay_unless_the_time_of_the_store_shows_that_they_are_over(
    snapshot: Snapshot, time_s: float | None
) -> None:
    """The newest frame only raises the question."""
    assert NOTHING_PRUNABLE is found(snapshot, lambda: time_s)


def test_store_is_not_asked_for_its_time_while_all_frames_are_near_the_newest() -> None:
    assert NOTHING_PRUNABLE is found(frames(OVER_S, NOW_S), lambda: pytest.fail("asked"))


def test_frame_without_a_horizon_is_kept_for_the_longest_one() -> None:
    """An earlier version has written it, and nobody knows its window."""
    oldest_s = NOW_S - MAX_HORIZON_S - SLACK_S
    assert ((SIX, oldest_s - 1),) == found(frames(oldest_s - 1, oldest_s, NOW_S, horizon_s=None)).frames


def test_mark_of_another_writer_is_over_after_the_longest_horizon_and_the_slack() -> None:
    """By the time at which the store has seen its writer, not by its number."""
    assert ("gone",) == found(marks({"gone": OVER_S - 1, "here": OVER_S, "new": NOW_S, "own": 0.0})).writers


def test_writers_of_the_last_minute_are_recent() -> None:
    """Judged by the newest date, so no clock is needed."""
    found = marks({"old": 39.0, "here": 40.0, "new": 100.0})
    assert [3, 2, 3] == [count_writers(found, writer=writer) for writer in ("another", "new", "old")]
    assert 1 == count_writers(Snapshot(1, {}, {}), writer="own")


@pytest.mark.parametrize("others", [(), (a_policy(window_s=86_400, frames=10, name="daily"),)], ids=("alone", "daily"))
@pytest.mark.parametrize(("window_s", "most"), ((600, 1200), (60, 60 + 3 * SLACK_S + 4)))
def test_series_of_a_lone_writer_stays_small(
    clock: Clock, window_s: int, most: int, others: tuple[Policy, ...]
) -> None:
    """Nobody else's write makes it read the document, and only a read shows what is over."""
    store = MemoryStore(clock)
    limiter = a_limiter(store, clock, a_policy(window_s=window_s, frames=window_s), *others)
    for _ in range(3 * window_s):
        clock.advance(1)
        limiter.check(CLIENT)
        limiter.sync(is_scheduled=True)
        assert len(store.read([KEY])[KEY].hits[Series(1)]) <= most
