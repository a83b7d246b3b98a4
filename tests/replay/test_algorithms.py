"""Each algorithm beside its plain definition."""

from collections import Counter as Counts
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.window import Estimator, Window, estimate_hits
from oauth_ratelimit.replay.algorithms import ExactLog, FixedWindow, Gcra, SlidingWindowCounter, TokenBucket

BEGIN_US = 1_700_000_000_000_000
LIMITS = st.integers(1, 8)
# Gaps of half seconds often meet edges and ties, others hardly ever.
GAPS_US = st.lists(st.one_of(st.integers(0, 30).map(lambda n: n * 500_000), st.integers(0, 9_000_000)), max_size=60)


def times_with(gaps_us: Sequence[int]) -> list[int]:
    """Return times with these gaps between them."""
    times, at_us = [], BEGIN_US
    for gap_us in gaps_us:
        at_us += gap_us
        times.append(at_us)
    return times


@given(LIMITS, st.integers(1, 20), GAPS_US)
def test_fixed_window_admits_the_first_requests_of_each_window(
    limit: int, window_s: int, gaps_us: Sequence[int]
) -> None:
    times, counts = times_with(gaps_us), Counts[int]()
    expected = []
    for at_us in times:
        counts[at_us // (window_s * 10**6)] += 1
        expected.append(counts[at_us // (window_s * 10**6)] <= limit)
    assert expected == FixedWindow(limit, window_s * 10**6).decide(times)


@given(LIMITS, st.integers(1, 20), GAPS_US)
def test_exact_log_admits_what_fits_into_the_window(limit: int, window_s: int, gaps_us: Sequence[int]) -> None:
    times, admitted = times_with(gaps_us), list[int]()
    expected = []
    for at_us in times:
        expected.append(sum(at_us - window_s * 10**6 < other for other in admitted) < limit)
        admitted += [at_us] * expected[-1]
    assert expected == ExactLog(limit, window_s * 10**6).decide(times)


def test_request_leaves_the_log_exactly_a_window_later() -> None:
    assert [True, True] == ExactLog(1, 10**7).decide([BEGIN_US, BEGIN_US + 10**7])
    assert [True, False] == ExactLog(1, 10**7).decide([BEGIN_US, BEGIN_US + 10**7 - 1])


@given(LIMITS, st.integers(1, 20), st.integers(1, 8), GAPS_US)
def test_token_bucket_admits_while_it_holds_a_whole_token(
    limit: int, window_s: int, burst: int, gaps_us: Sequence[int]
) -> None:
    times, tokens, seen_us = times_with(gaps_us), Fraction(burst), 0
    expected = []
    for at_us in times:
        tokens = min(Fraction(burst), tokens + Fraction((at_us - seen_us) * limit, window_s * 10**6))
        seen_us = at_us
        expected.append(tokens >= 1)
        tokens -= expected[-1]
    assert expected == TokenBucket(limit, window_s * 10**6, burst=burst).decide(times)


@given(LIMITS, st.integers(1, 20), st.integers(1, 8), GAPS_US)
def test_gcra_decides_as_a_token_bucket(limit: int, window_s: int, burst: int, gaps_us: Sequence[int]) -> None:
    times = times_with(gaps_us)
    expected = TokenBucket(limit, window_s * 10**6, burst=burst).decide(times)
    assert expected == Gcra(limit, window_s * 10**6, burst=burst).decide(times)


@given(LIMITS, st.sampled_from([1, 2, 5, 6, 10]), st.sampled_from([30, 60]), st.sampled_from(Estimator), GAPS_US)
def test_sliding_window_counter_admits_while_the_estimate_has_room(
    limit: int, frame_count: int, window_s: int, estimator: Estimator, gaps_us: Sequence[int]
) -> None:
    window, times, hits = Window(window_s, frame_count), times_with(gaps_us), Counts[int]()
    expected = []
    for at_us in times:
        frame = at_us // (window.frame_s * 10**6)
        past = [hits[frame - age] for age in range(1, frame_count + 1)]
        full, edge = estimator.weigh(hits[frame], past, frame_count)
        left_s = Fraction((frame + 1) * window.frame_s * 10**6 - at_us, 10**6)
        expected.append(bool(estimate_hits(full, edge, left_s, window.frame_s) + 1 <= limit))  # type: ignore[arg-type]
        hits[frame] += expected[-1]
    assert expected == SlidingWindowCounter(limit, window, estimator).decide(times)


@pytest.mark.parametrize(
    "make",
    (
        lambda: FixedWindow(3, 10**7),
        lambda: ExactLog(3, 10**7),
        lambda: TokenBucket(3, 10**7, burst=3),
        lambda: Gcra(3, 10**7, burst=3),
        *(partial(SlidingWindowCounter, 3, Window(10, 5), estimator) for estimator in Estimator),
    ),
    ids=("fixed window", "exact log", "token bucket", "GCRA", *Estimator),
)
@given(gaps_us=GAPS_US, cut=st.integers(0, 60))
def test_batches_make_no_difference(make: object, gaps_us: Sequence[int], cut: int) -> None:
    times = times_with(gaps_us)
    whole, parts = make(), make()  # type: ignore[operator]
    assert whole.decide(times) == [*parts.decide(times[:cut]), *parts.decide(times[cut:])]


@pytest.mark.parametrize(
    ("estimator", "expected"), ((Estimator.SLIDING, 21), (Estimator.PROPORTIONAL, 81), (Estimator.STRICT, 18))
)
def test_sliding_window_counter_admits_as_in_the_worked_example(estimator: Estimator, expected: int) -> None:
    frame_us = 60 * 10**6
    times = [5 * frame_us] * 12 + [6 * frame_us + frame_us // 4] * 100
    assert 12 + expected == sum(SlidingWindowCounter(30, Window(60, 1), estimator).decide(times))
