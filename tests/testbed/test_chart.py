"""Chart of recorded traffic."""

from collections.abc import Sequence

from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.traffic.formats import Row
from testbed.comparison.algorithms import COMMON
from testbed.comparison.chart import SEGMENT_WINDOWS, ChartData, Segment, chart_data
from testbed.comparison.run import Contender, Rate

SECOND = 1_000_000
RATE = Rate(10, 60)
SEGMENT_S = SEGMENT_WINDOWS * 60
BEGIN_S = 1_700_000_000 // SEGMENT_S * SEGMENT_S
OURS = ((Estimator.SLIDING, 1), (Estimator.SLIDING, 10), (Estimator.PROPORTIONAL, 1), (Estimator.STRICT, 1))
CONTENDERS = [Contender(name) for name in COMMON] + [Contender(one.value, k) for one, k in OURS]


# Twelve in the last quarter of a minute, five in the first quarter of the next: the worked example.
EXAMPLE = [Row(round((BEGIN_S + at_s) * SECOND), "a") for at_s in (*range(105, 117), *range(120, 135, 3))]


def value(data: ChartData, line: Sequence[float], second: float) -> float:
    return line[data.times_us.index(round((BEGIN_S + second) * SECOND))]


def test_lines_of_the_worked_example() -> None:
    segment = Segment(("a", None), BEGIN_S * SECOND, (BEGIN_S + SEGMENT_S) * SECOND)
    data = chart_data([EXAMPLE], segment, RATE, contenders=CONTENDERS)
    for second, line, expected in (
        (135, data.estimates["sliding, k = 1"], 14.0),
        (135, data.estimates["proportional, k = 1"], 10.25),
        (135, data.estimates["strict, k = 1"], 17.0),
        (135, data.exact, 17),
        (192, data.exact, 0),
        (192, data.estimates["sliding, k = 1"], 4.0),  # a coarse estimate counts what has left the window
        (198, data.estimates["sliding, k = 10"], 0),
        (132, data.admitted["fixed window"], 15),  # its limit on both sides of an edge
        (132, data.admitted["sliding, k = 10"], 10),
    ):
        assert expected == value(data, line, second)
    assert ["sliding, k = 1", "sliding, k = 10", "proportional, k = 1", "strict, k = 1"] == list(data.estimates)
