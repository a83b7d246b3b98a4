"""Removal of old frames and marks from documents."""

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.pruning import (
    NOTHING_PRUNABLE,
    SLACK_S,
    UNDATED_SLACK_S,
    Prunable,
    prunable_of,
    recent_writer_count,
)
from oauth_ratelimit.store.base import MAX_HORIZON_S, Snapshot

SIX, MINUTE = Series(6), Series(60)
NOW_S = 1_800_000_000
HORIZON_S = 66
OVER_S = NOW_S - HORIZON_S - SLACK_S  # what was last of use before this is over


class StoreTime:
    """A store's clock that counts how often it is asked."""

    def __init__(self, time_s: float | None = float(NOW_S)) -> None:
        self.time_s = time_s
        self.asked_count = 0

    def __call__(self) -> float | None:
        self.asked_count += 1
        return self.time_s


def found(snapshot: Snapshot, store_time: StoreTime | None = None) -> Prunable:
    """Return what a document can lose."""
    return prunable_of(snapshot, writer="own", store_time_s=store_time or StoreTime())


def frames(*starts_s: int, horizon_s: int | None = HORIZON_S) -> Snapshot:
    """Return a document with one hit in each frame."""
    horizons = {} if horizon_s is None else {SIX: horizon_s}
    return Snapshot(1, {SIX: dict.fromkeys(starts_s, 1)}, {}, horizons=horizons)


def marks(seen: dict[str, float], undated: dict[str, int] | None = None) -> Snapshot:
    """Return a document with marks, and some that an earlier version has written."""
    writers = {**dict.fromkeys(seen, 1), **(undated or {})}
    return Snapshot(1, {}, writers, horizons={SIX: HORIZON_S}, seen=seen)


def test_frame_is_over_after_its_horizon_and_the_slack() -> None:
    assert ((SIX, OVER_S - 1),) == found(frames(OVER_S - 1, OVER_S, NOW_S)).frames


def test_store_is_not_asked_for_its_time_while_nothing_can_be_over() -> None:
    """All frames are near the newest one."""
    store_time = StoreTime()
    assert NOTHING_PRUNABLE is found(frames(NOW_S - HORIZON_S - SLACK_S, NOW_S), store_time)
    assert 0 == store_time.asked_count


def test_nothing_is_over_where_the_time_of_the_store_is_not_known() -> None:
    assert NOTHING_PRUNABLE is found(frames(0, NOW_S), StoreTime(None))


def test_frame_of_an_instance_whose_clock_is_ahead_removes_no_other() -> None:
    """The newest frame only raises the question."""
    store_time = StoreTime()
    assert NOTHING_PRUNABLE is found(frames(NOW_S, NOW_S + 86_400), store_time)
    assert 1 == store_time.asked_count


def test_frame_without_a_horizon_is_kept_for_the_longest_one() -> None:
    """An earlier version has written it, and nobody knows its window."""
    oldest_s = NOW_S - MAX_HORIZON_S - SLACK_S
    assert ((SIX, oldest_s - 1),) == found(frames(oldest_s - 1, oldest_s, NOW_S, horizon_s=None)).frames


def test_mark_is_over_after_the_longest_horizon_and_the_slack() -> None:
    """By the time at which the store has seen its writer, not by its number."""
    assert ("gone",) == found(marks({"gone": OVER_S - 1, "here": OVER_S, "new": NOW_S})).writers


def test_undated_mark_is_over_a_day_later() -> None:
    """Its number is a time in milliseconds by the clock of its writer."""
    oldest_ms = (NOW_S - HORIZON_S - UNDATED_SLACK_S) * 1000
    snapshot = marks({"new": NOW_S}, {"gone": oldest_ms - 1, "here": oldest_ms})
    assert ("gone",) == found(snapshot).writers


def test_own_mark_stays() -> None:
    """However old it is, dated or not."""
    assert () == found(marks({"own": 0.0, "new": NOW_S})).writers
    assert () == found(marks({"new": NOW_S}, {"own": 1})).writers


def test_writers_of_the_last_minute_are_recent() -> None:
    """Judged by the newest date, so no clock is needed."""
    assert 2 == recent_writer_count(marks({"old": 39.0, "here": 40.0, "new": 100.0}), horizon_s=HORIZON_S)


def test_undated_writers_of_the_last_horizon_are_recent() -> None:
    snapshot = Snapshot(1, {}, {"old": 33_999, "here": 34_000, "new": 100_000})
    assert 2 == recent_writer_count(snapshot, horizon_s=HORIZON_S)


def test_document_without_marks_has_no_recent_writer() -> None:
    assert 0 == recent_writer_count(Snapshot(1, {}, {}), horizon_s=HORIZON_S)
