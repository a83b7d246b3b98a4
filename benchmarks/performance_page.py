"""Tables of ``docs/performance-results.md``, and the picture of ``docs/performance.md``.

``python -m benchmarks.performance_page`` writes them from results.json. A table stands between
``<!-- results: flush -->``, which names a prefix of its results, and ``<!-- end -->``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results import load
from oauth_ratelimit.replay.plot import GRID, INK, PAPER, STROKES, STYLE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
PATH = DOCS / "performance.md"
RESULTS_PATH = DOCS / "performance-results.md"
PICTURE_PATH = DOCS / "images" / "performance-load.svg"
SIZE = (5.2, 3.6)  # inches; letters stay legible where a phone shrinks the picture to its width
PANELS = {"At saturation, hashed secrets": "soak", "At saturation, plain secrets": "soak, plain secrets"}
BARS = tuple(f"{name}, {percentile}" for percentile in ("p50", "p99") for name in ("unprotected", "ours"))

_TABLE = re.compile(r"<!-- results: (.+?) -->\n.*?<!-- end -->", re.DOTALL)

Kept = Mapping[str, Mapping[str, Any]]
"""The entries of results.json by name."""


def main() -> None:
    """Write the tables and the picture."""
    entries = load()
    RESULTS_PATH.write_text(with_tables(RESULTS_PATH.read_text(), entries))
    draw(PICTURE_PATH, {str(entry["name"]): entry for entry in entries})


def with_tables(page: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with new tables."""

    def table_of(found: re.Match[str]) -> str:
        chosen = [entry for entry in entries if entry["name"].startswith(found[1] + "/")]
        return f"<!-- results: {found[1]} -->\n{_markdown(chosen, len(found[1]) + 1)}<!-- end -->"

    return _TABLE.sub(table_of, page)


def _markdown(entries: Iterable[Mapping[str, Any]], prefix_length: int) -> str:
    met = {True: "met", False: "**missed**", None: ""}
    rows = [
        f"| {entry['name'][prefix_length:]} | {number(entry['value'])} {entry['unit']} | {_spread(entry['spread'])} "
        f"| {entry['goal'] or ''} | {met[entry['met']]} |\n"
        for entry in entries
    ]
    return "".join(["| what | value | ± | goal | |\n| --- | ---: | ---: | --- | --- |\n", *rows])


def _spread(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def number(value: float) -> str:
    """Return a value as pages and pictures show it."""
    return f"{value:,.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def draw(path: Path, kept: Kept) -> None:
    """Draw the latencies at saturation, with and without the limiter."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=SIZE, layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        for axes, (title, topic) in zip(figure.subplots(len(PANELS), 1), PANELS.items(), strict=True):
            _draw_bars(axes, {bar: kept[f"{topic}/{bar}"] for bar in BARS})
            axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
        figure.supxlabel("Whiskers: half the interquartile range, to either side.", fontsize=9)
        save(figure, path)


def _draw_bars(axes: "Axes", rows: Kept) -> None:
    for place, (label, entry) in enumerate(rows.items()):
        colour = STROKES[0 if label.startswith("ours") else 1][0]
        axes.barh(place, entry["value"], height=0.62, color=colour, edgecolor=INK, linewidth=0.6)
        axes.errorbar(entry["value"], place, xerr=entry["spread"], color=INK, elinewidth=1, capsize=3)
        style = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "fontsize": 9}
        axes.text(1.02, place, number(entry["value"]), **style)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.15g}")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("ms of latency; lower is better")


if __name__ == "__main__":
    main()
