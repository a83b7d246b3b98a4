"""Frames, estimators, retry and reset."""

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


@dataclass(frozen=True)
class Content:
    window: Window
    estimator: Estimator
    current: int
    past: Sequence[int]
    left_s: float

    @property
    def estimate(self) -> float:
        full, edge = self.estimator.weigh(self.current, self.past, self.window.frame_count)
        return estimate_hits(full, edge, self.left_s, self.window.frame_s)

    def later(self, duration_s: float) -> "Content":
        passed_s = self.window.frame_s - self.left_s + duration_s
        frames = int(passed_s // self.window.frame_s)
        current, past = age(self.current, self.past, frames, self.window.frame_count)
        left_s = (frames + 1) * self.window.frame_s - passed_s
        return Content(self.window, self.estimator, current, past, left_s)


@given(st.sampled_from(Estimator), st.integers(0, 300), st.integers(0, 300), st.lists(st.integers(0, 300), max_size=3))
def test_hit_adds_the_same_to_an_estimate_whatever_else_is_there(
    estimator: Estimator, current: int, cost: int, past: Sequence[int]
) -> None:
    """``OpenWindow`` counts a hit by adding to both numbers, which stay whole."""
    full, edge = estimator.weigh(current, past, 3)
    with_hits = estimator.weigh(current + cost, past, 3)
    assert (full + cost, edge + cost * estimator.edge_per_hit) == with_hits
    assert [int, int] == [type(number) for number in with_hits]


WINDOWS = st.sampled_from(
    [Window(length, count) for length in (1, 4, 12, 60) for count in (1, 2, 4) if length >= count]
)


@st.composite
def contents(draw: st.DrawFn) -> Content:
    window = draw(WINDOWS)
    past = draw(st.lists(st.integers(0, 20), max_size=window.frame_count))
    left_s = draw(st.floats(0.001, window.frame_s) | st.integers(1, 64 * window.frame_s).map(lambda parts: parts / 64))
    return Content(window, draw(st.sampled_from(Estimator)), draw(st.integers(0, 20)), past, left_s)


@pytest.mark.parametrize(
    ("estimator", "of_two_frames", "of_four_frames"),
    ((SLIDING, 14.0, 1 + 2 + 3 + 4 * 0.25), (PROPORTIONAL, 10.25, 1 * 0.75 + 2 + 3 + 4 * 0.25), (STRICT, 17.0, 10.0)),
)
def test_estimate_of_the_worked_examples(estimator: Estimator, of_two_frames: float, of_four_frames: float) -> None:
    """Previous frame 12, current 5, a quarter into the current one: 12 x 0.75 + 5, and 12 x 0.75 + 5 x 0.25."""
    assert of_two_frames == Content(Window(60, 1), estimator, 5, (12,), 45.0).estimate
    assert of_four_frames == Content(Window(60, 3), estimator, 1, (2, 3, 4), 5.0).estimate


@pytest.mark.parametrize(
    ("window_s", "frame_count"), ((60, 10), (1, 1), (7, 7), (13, 1), (3600, 10), (10, 10), (12, 6), (86_400, 10))
)
def test_default_number_of_frames_is_the_largest_divisor_up_to_ten(window_s: int, frame_count: int) -> None:
    assert frame_count == default_frame_count(window_s) == Window.of(window_s).frame_count


@pytest.mark.parametrize(("window_s", "frame_count"), ((0, 1), (-60, 1), (60, 0), (60, -1), (60, 7), (1, 2)))
def test_frames_that_do_not_fill_the_window_are_rejected(window_s: int, frame_count: int) -> None:
    with pytest.raises(ValueError, match=f"{frame_count} frames of whole seconds do not fill a window of {window_s} s"):
        Window(window_s, frame_count)


@given(
    window=WINDOWS,
    hits=st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50),
    now_s=st.floats(150, 200),
)
def test_sliding_estimate_differs_from_an_exact_log_by_at_most_the_oldest_frame(
    window: Window, hits: list[tuple[float, int]], now_s: float
) -> None:
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


def test_delay_of_whole_seconds_is_exact() -> None:
    """``tests/limiter/test_reference.py`` tests all other delays."""
    assert 105.0 == retry_after_s(4, (), Window(60, 1), SLIDING, room=1, left_s=60.0)
