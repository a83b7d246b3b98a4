"""Chart of the busiest part of a recording, drawn with matplotlib.

The background is white with a border, for light and dark pages. The colours are those of Okabe and Ito, which
colour-blind readers can tell apart; the strokes differ in print.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from oauth_ratelimit.core.window import Estimator, Window, estimate_hits
from oauth_ratelimit.traffic.formats import SECOND_US, Row
from testbed.comparison.run import FIXED_WINDOW, TOKEN_BUCKET, ClientUser, Contender, Rate, Replay

SEGMENT_WINDOWS = 12  # length of a segment
POINTS_PER_WINDOW = 60
SHOWN_COMMON = (FIXED_WINDOW, TOKEN_BUCKET)  # GCRA draws the line of the token bucket, the exact log that of the limit
INK, PAPER, GRID = "#1a1a1a", "#ffffff", "#d9d9d9"
LIMIT_COLOUR = "#D55E00"
STROKES = (  # of at most six lines: more are hard to tell apart
    ("#0072B2", "-"),
    ("#E69F00", (0, (5, 1.5))),
    ("#009E73", (0, (1.5, 1.2))),
    ("#CC79A7", (0, (6, 1.5, 1.5, 1.5))),
    ("#56B4E9", (0, (3, 1))),
    ("#7A5C00", (0, (8, 2))),
)
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, accessible
    "svg.hashsalt": "oauth_ratelimit",  # fixed, so that the same data gives the same file
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify_threshold": 0.5,
}


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a recording: the requests of one key between two times, in microseconds since the epoch."""

    key: ClientUser
    since_us: int
    until_us: int


class BusiestSegment:
    """Search for the segment with the most denials by the exact log, or else the most requests.

    Pass it to ``Replay`` as ``on_decision``, with the exact log as the first contender.
    """

    def __init__(self, rate: Rate) -> None:
        self._length_us = SEGMENT_WINDOWS * rate.window_us
        self._counts: dict[tuple[ClientUser, int], tuple[int, int]] = {}  # by segment: denied and all requests

    def __call__(self, index: int, key: ClientUser, at_us: int, is_admitted: bool) -> None:
        if not index:
            segment = (key, at_us // self._length_us)
            denied, count = self._counts.get(segment, (0, 0))
            self._counts[segment] = (denied + (not is_admitted), count + 1)

    def found(self) -> Segment | None:
        """Return the segment; None without requests."""
        if not self._counts:
            return None
        key, number = max(self._counts, key=self._counts.__getitem__)
        return Segment(key, number * self._length_us, (number + 1) * self._length_us)


@dataclass(frozen=True, slots=True)
class ChartData:
    """Lines of a chart: a value for each time, by the text in the legend."""

    rate: Rate
    times_us: Sequence[int]
    exact: Sequence[float]  # requests in the window that ends at the time
    estimates: Mapping[str, Sequence[float]]  # of the same number
    admitted: Mapping[str, Sequence[float]]  # requests in the window that each algorithm admitted


def chart_data(
    batches: Iterable[Sequence[Row]], segment: Segment, rate: Rate, *, contenders: Sequence[Contender]
) -> ChartData:
    """Return the chart of a segment, with the first six of the algorithms."""
    shown = [one for one in contenders if one.is_ours or one.algorithm in SHOWN_COMMON]
    shown = sorted(shown, key=lambda one: one.algorithm == TOKEN_BUCKET)[: len(STROKES)]
    all_us: list[int] = []
    admitted_us: list[list[int]] = [[] for _ in shown]
    since_us = segment.since_us - 2 * rate.window_us  # the estimates depend on the two windows before

    def note(index: int, key: ClientUser, at_us: int, is_admitted: bool) -> None:
        if at_us >= since_us:
            all_us.extend([at_us] * (not index))
            admitted_us[index].extend([at_us] * is_admitted)

    def in_window(requests_us: Sequence[int]) -> list[float]:
        return [bisect_right(requests_us, at) - bisect_right(requests_us, at - rate.window_us) for at in times_us]

    Replay(rate, shown, on_decision=note).run(_rows_of(segment, batches))
    times_us = _chart_times_us(all_us, segment, rate)
    return ChartData(
        rate,
        times_us,
        exact=in_window(all_us),
        estimates={
            _label(one): _estimates(all_us, times_us, one, rate) for one in shown if one.is_ours and one.plan is None
        },
        admitted={_label(one): in_window(requests_us) for one, requests_us in zip(shown, admitted_us, strict=True)},
    )


def _label(contender: Contender) -> str:
    words = [contender.algorithm.replace("-", " ")]
    if contender.frame_count:
        words.append(f"k = {contender.frame_count}")
    if contender.plan:
        words.append(f"{contender.plan.instance_count} instances")
    return ", ".join(words)


def _rows_of(segment: Segment, batches: Iterable[Sequence[Row]]) -> Iterable[Sequence[Row]]:
    for batch in batches:
        if batch[0].at_us > segment.until_us:
            return
        rows = [row for row in batch if (row.client, row.user) == segment.key and row.at_us <= segment.until_us]
        if rows:
            yield rows


def _chart_times_us(all_us: Sequence[int], segment: Segment, rate: Rate) -> list[int]:
    """Return the times of all values: evenly spaced, and just before and at each request."""
    since_us = max(segment.since_us, all_us[0] - rate.window_us)
    until_us = min(segment.until_us, all_us[-1] + 2 * rate.window_us)
    times = set(range(since_us, until_us + 1, rate.window_us // POINTS_PER_WINDOW))
    times.update(at_us for at_us in all_us if since_us <= at_us <= until_us)
    times.update(at_us - 1 for at_us in all_us if since_us < at_us <= until_us)
    return sorted(times)


def _estimates(all_us: Sequence[int], times_us: Sequence[int], contender: Contender, rate: Rate) -> list[float]:
    window, estimator = Window(rate.window_s, contender.frame_count), Estimator(contender.algorithm)
    frame_us = window.frame_s * SECOND_US
    values = []
    for at_us in times_us:
        start_us = at_us // frame_us * frame_us
        ends = [start_us - age * frame_us - 1 for age in range(window.frame_count + 1)]
        counts = [bisect_right(all_us, end_us) for end_us in (at_us, *ends)]
        current, *past = (newer - older for newer, older in pairwise(counts))
        full, edge = estimator.weigh(current, past, window.frame_count)
        values.append(estimate_hits(full, edge, (start_us + frame_us - at_us) / SECOND_US, window.frame_s))
    return values


def draw(data: ChartData, path: Path) -> None:
    """Write an SVG with estimates and the exact count above, and admitted requests below."""
    from matplotlib import rc_context  # takes seconds
    from matplotlib.figure import Figure

    unit_s, unit = _unit(data.rate.window_s)
    began_us = data.times_us[0]
    times = [(at_us - began_us) / SECOND_US / unit_s for at_us in data.times_us]
    strokes = dict(zip(data.admitted, STROKES, strict=False))
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 6.4), layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        above, below = figure.subplots(2, 1, sharex=True)
        bent, values = _bends(times, data.exact)
        above.fill_between(bent, values, step="post", color="#e4e4e4", linewidth=0)
        above.plot(bent, values, label="exact", color="#777777", linewidth=1, drawstyle="steps-post")
        for axes, lines, drawstyle, title in (
            (above, data.estimates, "default", "Requests in the window: exact count and estimates"),
            (below, data.admitted, "steps-post", "Admitted requests in the window"),
        ):
            for label, line in lines.items():
                colour, dashes = strokes[label]
                bent, values = _bends(times, line)
                style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.6, "drawstyle": drawstyle}
                axes.plot(bent, values, label=label, **style)
            _finish(axes, data.rate, title=title)
        below.set_xlabel(f"{unit} since {datetime.fromtimestamp(began_us / SECOND_US, UTC):%Y-%m-%d %H:%M:%S} UTC")
        below.set_xlim(times[0], times[-1])
        # Without a date, so that the same data gives the same file.
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _bends(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return both ends and the changes of a line, because constant values in between only make the file larger."""
    last = len(values) - 1
    indexes = [
        index
        for index, value in enumerate(values)
        if index in (0, last) or value != values[index - 1] or value != values[index + 1]
    ]
    return [times[index] for index in indexes], [values[index] for index in indexes]


def _finish(axes: Any, rate: Rate, *, title: str) -> None:
    axes.axhline(rate.limit, color=LIMIT_COLOUR, linewidth=1.5, label=f"limit {rate.limit}")
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.set_ylabel(f"requests per {rate.window_s} s")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _unit(window_s: int) -> tuple[int, str]:
    if window_s < 10:
        return 1, "seconds"
    if window_s < 1800:
        return 60, "minutes"
    return (3600, "hours") if window_s < 86_400 else (86_400, "days")
