"""Charts drawn with matplotlib, which the extra ``charts`` installs.

The background is white with a border, for light and dark pages. The colours are those of Okabe and Ito, which
colour-blind readers can tell apart; the strokes differ in print.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.errors import RateLimitError
from oauth_ratelimit.replay.chart_data import ChartData, Line
from oauth_ratelimit.replay.formats import SECOND_US

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png")
INK, PAPER, GRID = "#1a1a1a", "#ffffff", "#d9d9d9"
LIMIT_COLOUR = "#D55E00"
STROKES = (
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


class NoCharts(RateLimitError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("pictures need matplotlib: pip install 'oauth_ratelimit[charts]'")


def require_charts() -> None:
    """Check that charts can be drawn.

    Raises:
        NoCharts: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise NoCharts from None


def draw(data: ChartData, path: Path) -> None:
    """Write a chart with estimates and the exact count above, and admitted requests of each algorithm below.

    Args:
        data: Content of the chart.
        path: File to write, ``.svg`` or ``.png``.

    Raises:
        NoCharts: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    require_charts()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    unit_s, unit = _unit(data.rate.window_s)
    began_us = data.times_us[0]
    times = [(at_us - began_us) / SECOND_US / unit_s for at_us in data.times_us]
    strokes = dict(zip((line.label for line in data.admitted), STROKES, strict=False))
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, 6.4), layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        above, below = figure.subplots(2, 1, sharex=True)
        _plot_exact(above, times, data.exact)
        for line in data.estimates:
            _plot(above, times, line, strokes[line.label])
        _finish(above, data, title="Requests in the window: exact count and estimates")
        for line in data.admitted:
            _plot(below, times, line, strokes[line.label], drawstyle="steps-post")
        _finish(below, data, title="Admitted requests in the window")
        below.set_xlabel(f"{unit} since {_utc(began_us)}")
        below.set_xlim(times[0], times[-1])
        save(figure, path)


def _plot_exact(axes: "Axes", times: Sequence[float], line: Line) -> None:
    indexes = _bends(line.values)
    times, values = [times[index] for index in indexes], [line.values[index] for index in indexes]
    axes.fill_between(times, values, step="post", color="#e4e4e4", linewidth=0)
    axes.plot(times, values, label=line.label, color="#777777", linewidth=1, drawstyle="steps-post")


def _plot(axes: "Axes", times: Sequence[float], line: Line, stroke: tuple[str, Any], **options: Any) -> None:
    colour, dashes = stroke
    indexes = _bends(line.values)
    axes.plot(
        [times[index] for index in indexes],
        [line.values[index] for index in indexes],
        label=line.label,
        color=colour,
        linestyle=dashes,
        linewidth=1.6,
        **options,
    )


def _bends(values: Sequence[float]) -> list[int]:
    """Return the indexes of both ends and of changes, because constant values in between only make the file larger."""
    last = len(values) - 1
    return [
        index
        for index, value in enumerate(values)
        if index in (0, last) or value != values[index - 1] or value != values[index + 1]
    ]


def save(figure: Any, path: Path) -> None:
    """Write a figure without a date, so that the same data gives the same file."""
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=150, metadata=metadata)


def _finish(axes: "Axes", data: ChartData, *, title: str) -> None:
    limit = data.rate.limit
    axes.axhline(limit, color=LIMIT_COLOUR, linewidth=1.5, label=f"limit {limit}")
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.set_ylabel(f"requests per {data.rate.window_s} s")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _unit(window_s: int) -> tuple[int, str]:
    """Return the unit of the time axis, in seconds and as a word."""
    if window_s < 10:
        return 1, "seconds"
    if window_s < 1800:
        return 60, "minutes"
    return (3600, "hours") if window_s < 86_400 else (86_400, "days")


def _utc(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / SECOND_US, UTC):%Y-%m-%d %H:%M:%S} UTC"
