"""Data of charts."""

from collections.abc import Sequence

from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.replay.chart_data import SEGMENT_WINDOWS, BusiestSegment, ChartData, Segment, chart_data
from oauth_ratelimit.replay.formats import Row
from oauth_ratelimit.replay.run import COMMON, Contender, Rate, Replay

SECOND = 1_000_000
RATE = Rate(10, 60)
SEGMENT_S = SEGMENT_WINDOWS * 60
BEGIN_S = 1_700_000_000 // SEGMENT_S * SEGMENT_S
OURS = ((Estimator.SLIDING, 1), (Estimator.SLIDING, 10), (Estimator.PROPORTIONAL, 1), (Estimator.STRICT, 1))
CONTENDERS = [Contender(name) for name in COMMON] + [Contender(one.value, k) for one, k in OURS]


def rows_of(client: str, *times_s: float) -> list[Row]:
    """Return a client's rows, at seconds since the beginning."""
    return [Row(round((BEGIN_S + at_s) * SECOND), client) for at_s in times_s]


# Twelve in the last quarter of a minute, five in the first quarter of the next: the worked example.
EXAMPLE = rows_of("a", *(105 + n for n in range(12)), *(120 + 3 * n for n in range(5)))


def example_data(rows: Sequence[Row] = EXAMPLE, contenders: Sequence[Contender] = CONTENDERS) -> ChartData:
    """Return the data of the client a."""
    segment = Segment(("a", None), BEGIN_S * SECOND, (BEGIN_S + SEGMENT_S) * SECOND)
    return chart_data([rows], segment, RATE, contenders=contenders)


def at(data: ChartData, label: str, second: float, *, lines: str = "estimates") -> float:
    """Return the value of a line at a second since the beginning."""
    index = data.times_us.index(round((BEGIN_S + second) * SECOND))
    return next(line.values[index] for line in getattr(data, lines) if line.label == label)


def test_estimates_of_the_worked_example() -> None:
    data = example_data()
    assert 14.0 == at(data, "sliding, k = 1", 135)
    assert 10.25 == at(data, "proportional, k = 1", 135)
    assert 17.0 == at(data, "strict, k = 1", 135)
    assert 17 == data.exact.values[data.times_us.index((BEGIN_S + 135) * SECOND)]


def test_coarse_estimate_counts_requests_that_have_left_the_window() -> None:
    data = example_data()
    assert 0 == data.exact.values[data.times_us.index((BEGIN_S + 192) * SECOND)]
    assert at(data, "sliding, k = 1", 192) > 0
    assert 0 == at(data, "sliding, k = 10", 198)


def test_fixed_window_admits_its_limit_on_both_sides_of_an_edge() -> None:
    data = example_data()
    assert 15 == at(data, "fixed window", 132, lines="admitted")
    assert 10 == at(data, "sliding, k = 10", 132, lines="admitted")
    assert ["sliding, k = 1", "sliding, k = 10", "proportional, k = 1", "strict, k = 1"] == [
        line.label for line in data.estimates
    ]


def test_busiest_segment_has_the_most_denials() -> None:
    many = rows_of("many", *(7 * n for n in range(500)))
    burst = rows_of("burst", *(10_000 + n / 10 for n in range(30)))
    busiest = BusiestSegment(RATE)
    Replay(RATE, [Contender("exact-log")], on_decisions=busiest).run([many, burst])
    found = busiest.found()
    assert found is not None
    assert ("burst", None) == found.key
    assert found.since_us <= burst[0].at_us < found.until_us


def test_without_denials_the_busiest_segment_has_the_most_requests() -> None:
    busiest = BusiestSegment(RATE)
    Replay(RATE, [Contender("exact-log")], on_decisions=busiest).run([rows_of("a", 1), rows_of("b", 2, 3)])
    found = busiest.found()
    assert found is not None
    assert ("b", None) == found.key
    assert BusiestSegment(RATE).found() is None
