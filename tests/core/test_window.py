"""Frames, estimators, retry and reset."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.window import (
    Estimator,
    Window,
    age,
    default_frame_count,
    estimate_hits,
    reset_after_s,
    retry_after_s,
)

SLIDING, PROPORTIONAL, STRICT = Estimator.SLIDING, Estimator.PROPORTIONAL, Estimator.STRICT
MILLISECONDS = 0.003  # a delay is rounded up by less than this


@dataclass(frozen=True)
class Content:
    """Content of a window at some moment."""

    window: Window
    estimator: Estimator
    current: int
    past: Sequence[int]
    left_s: float

    @property
    def estimate(self) -> float:
        """Estimated hits in the window."""
        full, edge = self.estimator.weigh(self.current, self.past, self.window.frame_count)
        return estimate_hits(full, edge, self.left_s, self.window.frame_s)

    def retry_after_s(self, room: int) -> float:
        """Return the delay until no more than ``room`` is left."""
        return retry_after_s(self.current, self.past, self.window, self.estimator, room=room, left_s=self.left_s)

    def later(self, duration_s: float) -> "Content":
        """Return the content after some time, if nothing else happens."""
        passed_s = self.window.frame_s - self.left_s + duration_s
        frames = int(passed_s // self.window.frame_s)
        current, past = age(self.current, self.past, frames, self.window.frame_count)
        left_s = (frames + 1) * self.window.frame_s - passed_s
        return Content(self.window, self.estimator, current, past, left_s)


@given(st.sampled_from(Estimator), st.integers(0, 300), st.integers(0, 300), st.lists(st.integers(0, 300), max_size=3))
def test_hit_adds_the_same_to_an_estimate_whatever_else_is_there(
    estimator: Estimator, current: int, cost: int, past: Sequence[int]
) -> None:
    """Buckets count a hit by adding to both numbers, which stay whole."""
    full, edge = estimator.weigh(current, past, 3)
    with_hits = estimator.weigh(current + cost, past, 3)
    assert (full + cost, edge + cost * estimator.edge_per_hit) == with_hits
    assert [int, int] == [type(number) for number in with_hits]


WINDOWS = st.sampled_from(
    [Window(length, count) for length in (1, 4, 12, 60) for count in (1, 2, 4) if length >= count]
)


@st.composite
def contents(draw: st.DrawFn) -> Content:
    """Draw the content of a window."""
    window = draw(WINDOWS)
    past = draw(st.lists(st.integers(0, 20), max_size=window.frame_count))
    left_s = draw(
        st.one_of(
            st.just(float(window.frame_s)),
            st.floats(0.001, window.frame_s),
            st.integers(1, 64 * window.frame_s).map(lambda parts: parts / 64),
        )
    )
    return Content(window, draw(st.sampled_from(Estimator)), draw(st.integers(0, 20)), past, left_s)


@pytest.mark.parametrize(("estimator", "expected"), ((SLIDING, 14.0), (PROPORTIONAL, 10.25), (STRICT, 17.0)))
def test_estimate_of_the_worked_example(estimator: Estimator, expected: float) -> None:
    """Previous frame 12, current 5, a quarter into the current one: 12 x 0.75 + 5, and 12 x 0.75 + 5 x 0.25."""
    assert expected == Content(Window(60, 1), estimator, 5, (12,), 45.0).estimate


@pytest.mark.parametrize(
    ("estimator", "past", "expected"),
    [
        (SLIDING, (2, 3, 4), 1 + 2 + 3 + 4 * 0.25),
        (PROPORTIONAL, (2, 3, 4), 1 * 0.75 + 2 + 3 + 4 * 0.25),
        (SLIDING, (2,), 1 + 2),
    ],
)
def test_frames_between_the_newest_and_the_oldest_count_in_full(
    estimator: Estimator, past: tuple[int, ...], expected: float
) -> None:
    """Frames that are not known are empty."""
    assert expected == Content(Window(60, 3), estimator, 1, past, 5.0).estimate


@pytest.mark.parametrize(
    ("window_s", "frame_count"), ((60, 10), (1, 1), (7, 7), (13, 1), (3600, 10), (10, 10), (12, 6), (86_400, 10))
)
def test_default_number_of_frames_is_the_largest_divisor_up_to_ten(window_s: int, frame_count: int) -> None:
    assert frame_count == default_frame_count(window_s) == Window.of(window_s).frame_count
    assert window_s == Window.of(window_s).frame_s * frame_count


@pytest.mark.parametrize(("window_s", "frame_count"), ((0, 1), (-60, 1), (60, 0), (60, -1), (60, 7), (1, 2)))
def test_frames_that_do_not_fill_the_window_are_rejected(window_s: int, frame_count: int) -> None:
    with pytest.raises(ValueError, match=f"{frame_count} frames of whole seconds do not fill a window of {window_s} s"):
        Window(window_s, frame_count)


@pytest.mark.parametrize(("now_s", "start_s"), ((120.0, 120), (125.999, 120), (126.0, 126), (119.999, 114), (0.0, 0)))
def test_frame_contains_its_first_instant(now_s: float, start_s: int) -> None:
    assert start_s == Window(60, 10).frame_start_s(now_s)


@given(
    window=WINDOWS,
    hits=st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50),
    now_s=st.floats(150, 200),
)
def test_sliding_estimate_differs_from_an_exact_log_by_at_most_the_oldest_frame(
    window: Window, hits: list[tuple[float, int]], now_s: float
) -> None:
    """The log holds the time of each hit."""
    hits = [(at_s, cost) for at_s, cost in hits if at_s <= now_s]
    frames: Counter[int] = Counter()
    for at_s, cost in hits:
        frames[window.frame_start_s(at_s)] += cost
    start_s = window.frame_start_s(now_s)
    past = [frames[start_s - back * window.frame_s] for back in range(1, window.frame_count + 1)]
    left_s = start_s + window.frame_s - now_s
    estimate = Content(window, SLIDING, frames[start_s], past, left_s).estimate
    exact = sum(cost for at_s, cost in hits if at_s > now_s - window.window_s)
    assert abs(estimate - exact) <= past[-1] + 1e-9


@given(contents())
def test_estimate_is_not_negative_and_not_above_all_hits(content: Content) -> None:
    assert -1e-9 <= content.estimate <= content.current + sum(content.past) + 1e-9


@given(contents(), st.integers(0, 70))
def test_aging_frame_by_frame_and_at_once_leaves_the_same(content: Content, frames: int) -> None:
    count = content.window.frame_count
    current, past = content.current, list(content.past)
    for _ in range(frames):
        aged, older = age(current, past, 1, count)
        current, past = aged, list(older)
    at_once, older_at_once = age(content.current, content.past, frames, count)
    assert (current, without_zeros(past)) == (at_once, without_zeros(older_at_once))
    assert len(past) <= count


def without_zeros(past: Sequence[int]) -> list[int]:
    """Return frames without the empty ones at the end."""
    counts = list(past)
    while counts and not counts[-1]:
        counts.pop()
    return counts


@pytest.mark.parametrize("hits", (1, 255, 256, 2**53), ids=("one", "a byte", "more than a byte", "the most"))
def test_aging_keeps_counts_of_any_size(hits: int) -> None:
    assert (0, [0, hits, hits]) == (age(hits, (hits,), 2, 10)[0], list(age(hits, (hits,), 2, 10)[1]))


@given(contents())
def test_hits_are_left_until_the_reset_and_none_after_it(content: Content) -> None:
    reset_s = reset_after_s(content.current, content.past, content.window, left_s=content.left_s)
    assert 0 <= reset_s <= content.window.window_s + content.window.frame_s
    assert content.later(reset_s + 1e-6).estimate < 1e-3
    if reset_s:
        assert content.later(reset_s - min(reset_s, 0.001)).estimate > 0


def test_reset_is_a_window_after_the_frame_of_the_newest_hits() -> None:
    window = Window(60, 10)
    assert 0.0 == reset_after_s(0, (), window, left_s=3.0)
    assert 63.0 == reset_after_s(1, (5, 5), window, left_s=3.0)
    assert 57.0 == reset_after_s(0, (5, 5), window, left_s=3.0)
    assert 3.0 == reset_after_s(0, (0,) * 9 + (1,), window, left_s=3.0)


@given(contents(), st.integers(0, 40))
def test_request_fits_after_the_delay_and_not_before(content: Content, room: int) -> None:
    """Three milliseconds and a second before, it is still denied."""
    delay_s = content.retry_after_s(room)
    assert 0 <= delay_s <= content.window.window_s + content.window.frame_s + MILLISECONDS
    if content.estimator is PROPORTIONAL:
        return  # the estimate may rise again between the moment and its rounding; see the next test
    assert content.later(delay_s).estimate <= room + 1e-6
    for earlier_s in (MILLISECONDS, 1.0):
        if delay_s > earlier_s:
            assert content.later(delay_s - earlier_s).estimate > room


@given(contents(), st.integers(0, 40))
def test_proportional_delay_is_the_first_moment_that_fits(content: Content, room: int) -> None:
    """It is rounded up by at most two milliseconds."""
    content = Content(content.window, PROPORTIONAL, content.current, content.past, content.left_s)
    delay_s = content.retry_after_s(room)
    just_before = [max(0.0, delay_s - back * 0.0001) for back in range(25)]
    assert min(content.later(moment_s).estimate for moment_s in just_before) <= room + 1e-6
    for sample in range(40):
        moment_s = (delay_s - MILLISECONDS) * sample / 40
        if moment_s >= 0 and delay_s > MILLISECONDS:
            assert content.later(moment_s).estimate > room - 1e-6


@given(contents())
def test_cost_above_the_limit_never_fits(content: Content) -> None:
    assert math.inf == content.retry_after_s(-1)


def test_delay_of_whole_seconds_is_exact() -> None:
    """Any other is rounded up by at most two milliseconds."""
    window = Window(60, 1)
    assert 105.0 == Content(window, SLIDING, 4, (), 60.0).retry_after_s(1)
    exact_s = 30.5 + 60 * (1 - 1 / 7)
    assert exact_s < Content(window, SLIDING, 7, (), 30.5).retry_after_s(1) <= exact_s + 0.002
