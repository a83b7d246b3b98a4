"""The sliding window counter, as arithmetic."""

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

SLIDING, PROPORTIONAL = Estimator.SLIDING, Estimator.PROPORTIONAL
MILLISECONDS = 0.003  # what a delay may be too long, and a little


@dataclass(frozen=True)
class Held:
    """What a window holds at some moment."""

    window: Window
    estimator: Estimator
    current: int
    past: Sequence[int]
    left_s: float

    @property
    def estimate(self) -> float:
        """The hits in the window."""
        full, edge = self.estimator.weigh(self.current, self.past, self.window.frame_count)
        return estimate_hits(full, edge, self.left_s, self.window.frame_s)

    def retry_after_s(self, room: int) -> float:
        """The delay until no more than ``room`` is left."""
        return retry_after_s(self.current, self.past, self.window, self.estimator, room=room, left_s=self.left_s)

    def later(self, duration_s: float) -> "Held":
        """What the window holds then, if nothing else happens."""
        passed_s = self.window.frame_s - self.left_s + duration_s
        frames = int(passed_s // self.window.frame_s)
        current, past = age(self.current, self.past, frames, self.window.frame_count)
        left_s = (frames + 1) * self.window.frame_s - passed_s
        return Held(self.window, self.estimator, current, past, left_s)


WINDOWS = st.sampled_from(
    [Window(length, count) for length in (1, 4, 12, 60) for count in (1, 2, 4) if length >= count]
)


@st.composite
def held(draw: st.DrawFn) -> Held:
    """Draw what a window can hold."""
    window = draw(WINDOWS)
    past = draw(st.lists(st.integers(0, 20), max_size=window.frame_count))
    left_s = draw(
        st.one_of(
            st.just(float(window.frame_s)),
            st.floats(0.001, window.frame_s),
            st.integers(1, 64 * window.frame_s).map(lambda parts: parts / 64),
        )
    )
    return Held(window, draw(st.sampled_from(Estimator)), draw(st.integers(0, 20)), past, left_s)


@pytest.mark.parametrize(("estimator", "expected"), ((SLIDING, 14.0), (PROPORTIONAL, 10.25)))
def test_worked_example(estimator: Estimator, expected: float) -> None:
    """Previous frame 12, current 5, a quarter into the current one: 12 x 0.75 + 5, and 12 x 0.75 + 5 x 0.25."""
    assert expected == Held(Window(60, 1), estimator, 5, (12,), 45.0).estimate


def test_several_frames() -> None:
    """Frames wholly inside the window count in full, the oldest by what is left of it."""
    window = Window(60, 3)
    assert 1 + 2 + 3 + 4 * 0.25 == Held(window, SLIDING, 1, (2, 3, 4), 5.0).estimate
    assert 1 * 0.75 + 2 + 3 + 4 * 0.25 == Held(window, PROPORTIONAL, 1, (2, 3, 4), 5.0).estimate
    assert 1 + 2 == Held(window, SLIDING, 1, (2,), 5.0).estimate


@pytest.mark.parametrize(
    ("window_s", "frame_count"), ((60, 10), (1, 1), (7, 7), (13, 1), (3600, 10), (10, 10), (12, 6), (86_400, 10))
)
def test_default_frames(window_s: int, frame_count: int) -> None:
    """The largest divisor of the window up to 10."""
    assert frame_count == default_frame_count(window_s) == Window.of(window_s).frame_count
    assert window_s == Window.of(window_s).frame_s * frame_count


@pytest.mark.parametrize(("window_s", "frame_count"), ((0, 1), (-60, 1), (60, 0), (60, -1), (60, 7), (1, 2)))
def test_frames_that_do_not_fit(window_s: int, frame_count: int) -> None:
    """Frames are whole seconds long and fill the window."""
    with pytest.raises(ValueError, match=f"{frame_count} frames of whole seconds do not fill a window of {window_s} s"):
        Window(window_s, frame_count)


@pytest.mark.parametrize(("now_s", "start_s"), ((120.0, 120), (125.999, 120), (126.0, 126), (119.999, 114), (0.0, 0)))
def test_frame_edges(now_s: float, start_s: int) -> None:
    """The first instant of a frame belongs to that frame."""
    assert start_s == Window(60, 10).frame_start_s(now_s)


@given(
    window=WINDOWS,
    hits=st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50),
    now_s=st.floats(150, 200),
)
def test_against_an_exact_log(window: Window, hits: list[tuple[float, int]], now_s: float) -> None:
    """
    The sliding estimate differs from the number of hits in the exact window by no more than the oldest frame holds.
    """
    hits = [(at_s, cost) for at_s, cost in hits if at_s <= now_s]
    frames: Counter[int] = Counter()
    for at_s, cost in hits:
        frames[window.frame_start_s(at_s)] += cost
    start_s = window.frame_start_s(now_s)
    past = [frames[start_s - back * window.frame_s] for back in range(1, window.frame_count + 1)]
    left_s = start_s + window.frame_s - now_s
    estimate = Held(window, SLIDING, frames[start_s], past, left_s).estimate
    exact = sum(cost for at_s, cost in hits if at_s > now_s - window.window_s)
    assert abs(estimate - exact) <= past[-1] + 1e-9


@given(held())
def test_bounds(held: Held) -> None:
    """An estimate is never negative, nor more than all hits known."""
    assert -1e-9 <= held.estimate <= held.current + sum(held.past) + 1e-9


@given(held(), st.integers(0, 70))
def test_aging_in_steps(held: Held, frames: int) -> None:
    """Frame by frame or all at once, the same is left, and nothing of it is older than the window."""
    count = held.window.frame_count
    current, past = held.current, list(held.past)
    for _ in range(frames):
        aged, older = age(current, past, 1, count)
        current, past = aged, list(older)
    at_once, older_at_once = age(held.current, held.past, frames, count)
    assert (current, without_zeros(past)) == (at_once, without_zeros(older_at_once))
    assert len(past) <= count


def without_zeros(past: Sequence[int]) -> list[int]:
    """Return frames without the empty ones at the far end, which are as good as none."""
    counts = list(past)
    while counts and not counts[-1]:
        counts.pop()
    return counts


@pytest.mark.parametrize("hits", (1, 255, 256, 2**53), ids=("one", "a byte", "more than a byte", "the most"))
def test_aging_any_number(hits: int) -> None:
    """Counts of any size are kept as they are."""
    assert (0, [0, hits, hits]) == (age(hits, (hits,), 2, 10)[0], list(age(hits, (hits,), 2, 10)[1]))


@given(held())
def test_fading_out(held: Held) -> None:
    """Nothing is left when the reset has come, and something is until then."""
    reset_s = reset_after_s(held.current, held.past, held.window, left_s=held.left_s)
    assert 0 <= reset_s <= held.window.window_s + held.window.frame_s
    assert held.later(reset_s + 1e-6).estimate < 1e-3
    if reset_s:
        assert held.later(reset_s - min(reset_s, 0.001)).estimate > 0


def test_reset() -> None:
    """The newest hits decide: they leave the window a whole window after their frame."""
    window = Window(60, 10)
    assert 0.0 == reset_after_s(0, (), window, left_s=3.0)
    assert 63.0 == reset_after_s(1, (5, 5), window, left_s=3.0)
    assert 57.0 == reset_after_s(0, (5, 5), window, left_s=3.0)
    assert 3.0 == reset_after_s(0, (0,) * 9 + (1,), window, left_s=3.0)


@given(held(), st.integers(0, 40))
def test_delay_is_tight(held: Held, room: int) -> None:
    """A request fits when the delay is over; three milliseconds and a second before, it does not."""
    delay_s = held.retry_after_s(room)
    assert 0 <= delay_s <= held.window.window_s + held.window.frame_s + MILLISECONDS
    if held.estimator is PROPORTIONAL:
        return  # the estimate may rise again between the moment and its rounding; see the next test
    assert held.later(delay_s).estimate <= room + 1e-6
    for earlier_s in (MILLISECONDS, 1.0):
        if delay_s > earlier_s:
            assert held.later(delay_s - earlier_s).estimate > room


@given(held(), st.integers(0, 40))
def test_delay_of_a_proportional_estimate(held: Held, room: int) -> None:
    """It is the first moment, to two milliseconds, at which the request fits; at no moment sampled before it does."""
    held = Held(held.window, PROPORTIONAL, held.current, held.past, held.left_s)
    delay_s = held.retry_after_s(room)
    just_before = [max(0.0, delay_s - back * 0.0001) for back in range(25)]
    assert min(held.later(moment_s).estimate for moment_s in just_before) <= room + 1e-6
    for sample in range(40):
        moment_s = (delay_s - MILLISECONDS) * sample / 40
        if moment_s >= 0 and delay_s > MILLISECONDS:
            assert held.later(moment_s).estimate > room - 1e-6


@given(held())
def test_delay_that_never_ends(held: Held) -> None:
    """What costs more than the limit never fits."""
    assert math.inf == held.retry_after_s(-1)


def test_delays_in_whole_seconds() -> None:
    """A delay that is a whole second is exactly one, another is rounded up by no more than two milliseconds."""
    window = Window(60, 1)
    assert 105.0 == Held(window, SLIDING, 4, (), 60.0).retry_after_s(1)
    exact_s = 30.5 + 60 * (1 - 1 / 7)
    assert exact_s < Held(window, SLIDING, 7, (), 30.5).retry_after_s(1) <= exact_s + 0.002
