"""When a key is read: worked examples of the arithmetic."""

from math import inf

import pytest

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import Content, Tier
from oauth_ratelimit.sync import reading
from tests.support.limiters import a_policy

Filling = tuple[Tier, Content]


def a_filling(*past: int, current: int = 0, limit: int = 10, left_s: float = 6.0) -> Filling:
    """Return ten frames of 6 s, the newest first."""
    return Tier(a_policy(limit, frames=10), Mode.ENFORCE), Content(current + sum(past), current, past, left_s)


def gap_s(
    filling: Filling, *, quiet_s: float = 20.0, writers: int = 2, instances: int = 2, found: float = 0.0
) -> float:
    return reading.read_gap_s(
        *filling,
        quiet_s=quiet_s,
        found_rate=found,
        writer_count=writers,
        instance_count=instances,
        interval_s=1.0,
    )


def test_key_that_nobody_else_writes_is_read_once_after_its_requests() -> None:
    assert 1.0 == gap_s(a_filling(1, 2), quiet_s=0.0, writers=1)
    assert inf == gap_s(a_filling(1, 2), writers=1)


@pytest.mark.parametrize(("used", "expected_s"), [(1, inf), (2, 1.0)])
def test_key_is_read_once_more_from_a_fifth_of_its_limit_on(used: int, expected_s: float) -> None:
    assert expected_s == gap_s(a_filling(0, used), quiet_s=0.0)


@pytest.mark.parametrize(("used", "is_read"), [(2, False), (3, True)])
def test_key_that_others_write_is_read_from_a_quarter_of_its_limit_on(used: int, is_read: bool) -> None:
    assert is_read is (gap_s(a_filling(0, used)) < inf)


def test_rate_is_the_mean_of_the_window_where_hits_come_alone() -> None:
    assert pytest.approx(6 / 60) == reading.hit_rate(*a_filling(1, 0, 1, 1, 0, 1, 1, 1))


def test_rate_is_twice_that_around_a_hit_in_a_burst() -> None:
    """Each of four hits has three others within 6 s."""
    assert pytest.approx(2 * 3 / 6) == reading.hit_rate(*a_filling(4))
    assert pytest.approx(2 * 3 / 0.5) == reading.hit_rate(*a_filling(current=4))
    assert pytest.approx(2 * 3 / 2) == reading.hit_rate(*a_filling(current=4, left_s=4.0))


@pytest.mark.parametrize(("hits", "passed_s", "expected"), [(0, 2.0, 0.0), (1, 2.0, 0.5), (5, 2.0, 4.5), (5, 0.0, 0.0)])
def test_rate_that_a_read_has_found(hits: int, passed_s: float, expected: float) -> None:
    assert expected == reading.found_rate(hits, passed_s)


def test_key_is_read_when_others_have_probably_used_up_a_part_of_the_room() -> None:
    assert pytest.approx(3.2) == reading.filled_after_s(*a_filling(6), 1.0)


def test_hits_that_leave_the_window_make_room() -> None:
    """Of the six hits of the oldest frame one leaves each second, for six seconds: 1 * t = 0.8 * (4 + 6)."""
    filling = a_filling(*[0] * 9, 6)
    assert pytest.approx(8.0) == reading.filled_after_s(*filling, 1.0)
    assert inf == reading.filled_after_s(*filling, 0.05)


def test_key_that_denies_is_not_read_before_it_has_room_again() -> None:
    """One hit of ten leaves each 0.6 s; the others begin to use up the room when there is some:
    2 * (t - 0.6) = 0.8 * t / 0.6.
    """
    filling = a_filling(*[0] * 9, 10)
    assert pytest.approx(1.8, abs=1e-4) == reading.filled_after_s(*filling, 2.0)
    assert 0.6 <= reading.filled_after_s(*filling, 100.0) < 0.61


def test_all_instances_together_read_at_most_ten_times_for_a_hit() -> None:
    filling = a_filling(9)
    rate = reading.hit_rate(*filling)
    assert pytest.approx(1 / rate) == gap_s(filling, writers=10)
    assert pytest.approx(10 / rate) == gap_s(filling, writers=100)


def test_rate_that_was_found_brings_the_next_read_forward() -> None:
    assert pytest.approx(0.032) == gap_s(a_filling(6), found=100.0)


@pytest.mark.parametrize(("empty_count", "expected_s"), [(0, 0.0), (20, 0.0), (21, 4.0), (1000, 4.0)])
def test_reads_that_find_nothing_for_long_become_rarer(empty_count: int, expected_s: float) -> None:
    assert expected_s == reading.back_off_s(empty_count, 2.0)


def test_burst_that_may_have_begun_is_looked_for_once_and_again_while_reads_find_hits() -> None:
    filling = a_filling(current=1, limit=3)
    assert pytest.approx(0.0128) == gap_s(filling, quiet_s=0.0, writers=1)
    assert pytest.approx(0.32) == gap_s(filling, quiet_s=0.1, writers=1, found=1.0)
    assert inf == gap_s(filling, quiet_s=0.1, writers=1)
    assert inf == gap_s(filling, writers=1, instances=1)


@pytest.mark.parametrize(("is_far", "expected_s"), [(False, 60), (True, 120)])
def test_document_is_read_now_and_then_whoever_writes_it(is_far: bool, expected_s: int) -> None:
    overdue = [
        reading.is_overdue(float(passed_s), shortest_window_s=60, horizon_s=66, is_far=lambda: is_far)
        for passed_s in (expected_s, expected_s + 1)
    ]
    assert [False, True] == overdue
