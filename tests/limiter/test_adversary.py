"""Most hits that a client gets into a window if it knows the frames, on one instance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator, Window
from testbed.clock import Clock
from tests.support.limiters import CLIENT, a_limiter

JUST_BEFORE_S = 1 / 1024
WINDOW_S, FRAME_COUNTS = 60, (1, 2, 3, 10, 60)


class Adversary:
    """Client that knows where frames begin and end, and when its next request fits."""

    def __init__(self, estimator: Estimator, limit: int, frame_count: int) -> None:
        self.window = Window(WINDOW_S, frame_count)
        self.clock = Clock()
        self.limiter = a_limiter(None, self.clock, Policy("client", limit, self.window, estimator))
        self.admitted_at_s: list[float] = []

    @property
    def frame_end_s(self) -> float:
        return self.window.frame_start_s(self.clock.now_s) + self.window.frame_s

    @property
    def most_in_a_window(self) -> int:
        """Most admitted requests in any half-open window."""
        times = self.admitted_at_s
        return max((sum(at_s - WINDOW_S < other_s <= at_s for other_s in times) for at_s in set(times)), default=0)

    def send(self, count: int) -> float:
        """Send requests, and return the delay that the last answer asks for."""
        for _ in range(count):
            decision = self.limiter.check(CLIENT)
            if decision.allowed:
                self.admitted_at_s.append(self.clock.now_s)
        return decision.retry_after_s

    def pause(self, duration_s: float) -> None:
        self.clock.advance(duration_s)

    def wait_for_the_end(self, count: int) -> None:
        self.clock.now_s = max(self.clock.now_s, self.frame_end_s - JUST_BEFORE_S)
        self.send(count)

    def wait_for_the_start(self, count: int) -> None:
        self.clock.now_s = self.frame_end_s
        self.send(count)

    def come_back(self) -> None:
        """Send a request, and if it is denied, another one exactly at its ``retry_after_s``, which is tight."""
        delay_s = self.send(1)
        if not delay_s:
            return
        fits_at_s = self.clock.now_s + delay_s
        if delay_s >= 1.0:
            self.clock.now_s = fits_at_s - 1.0
            assert not self.limiter.peek(CLIENT).allowed
        self.clock.now_s = fits_at_s
        assert not self.send(1)


BURSTS = st.integers(1, 12)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("send"), BURSTS),
        st.tuples(st.just("wait_for_the_end"), BURSTS),
        st.tuples(st.just("wait_for_the_start"), BURSTS),
        st.tuples(st.just("pause"), st.integers(1, 16 * WINDOW_S).map(lambda eighths: eighths / 8)),
        st.tuples(st.just("come_back")),
    ),
    max_size=40,
)


@given(moves=MOVES, limit=st.integers(1, 10), frame_count=st.sampled_from(FRAME_COUNTS))
@pytest.mark.parametrize(
    ("estimator", "bound"), ((Estimator.STRICT, lambda limit: limit), (Estimator.SLIDING, lambda limit: 2 * limit - 1))
)
def test_no_window_holds_more_than_the_bound_of_the_estimator(
    estimator: Estimator, bound: object, moves: list[tuple[str, ...]], limit: int, frame_count: int
) -> None:
    adversary = Adversary(estimator, limit, frame_count)
    for name, *arguments in moves:
        getattr(adversary, name)(*arguments)
    assert adversary.most_in_a_window <= bound(limit)  # type: ignore[operator]


@pytest.mark.parametrize("frame_count", FRAME_COUNTS)
@pytest.mark.parametrize(("estimator", "expected"), ((Estimator.STRICT, 100), (Estimator.SLIDING, 199)))
def test_quota_at_the_end_of_a_frame_and_again_as_it_fades(
    estimator: Estimator, expected: int, frame_count: int
) -> None:
    """A limit of 100 admits 1.99 times as many if the oldest frame fades, whatever the number of frames."""
    adversary = Adversary(estimator, 100, frame_count)
    adversary.wait_for_the_end(101)
    until_s = adversary.clock.now_s + WINDOW_S
    while adversary.clock.now_s < until_s:
        adversary.come_back()
    assert expected == adversary.most_in_a_window


@pytest.mark.parametrize("frame_count", FRAME_COUNTS)
def test_proportional_admits_any_burst_at_the_first_instant_of_a_frame(frame_count: int) -> None:
    """Hits of a frame that has just begun weigh nothing."""
    adversary = Adversary(Estimator.PROPORTIONAL, 10, frame_count)
    adversary.wait_for_the_start(1000)
    assert 1000 == adversary.most_in_a_window
