"""Charts of results, for the documentation: bars with their numbers, and lines."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.replay.plot import GRID, INK, PAPER, STROKES, STYLE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kept = Mapping[str, Mapping[str, Any]]
"""The entries of results.json by name."""

OURS_COLOUR, OTHER_COLOUR = STROKES[0][0], STROKES[1][0]
MARKERS = "os^D"
SHIFT = 0.05  # between lines, so that their whiskers do not cover each other
WHISKERS = "Whiskers: half the interquartile range, to either side."


@dataclass(frozen=True, slots=True)
class Bars:
    """Values from zero, or marks on a logarithmic scale, each with its number.

    Args:
        title: Title of the panel.
        unit: Label of the axis.
        rows: Names of the results by label, from top to bottom.
        is_log: Whether the scale is logarithmic.
    """

    title: str
    unit: str
    rows: Mapping[str, str]
    is_log: bool = False

    def names(self) -> Iterator[str]:
        """Yield the names of the results."""
        yield from self.rows.values()

    def draw(self, axes: "Axes", kept: Kept) -> None:
        """Draw the results that are kept."""
        rows = {label: kept[name] for label, name in self.rows.items() if name in kept}
        for place, (label, entry) in enumerate(rows.items()):
            colour = OURS_COLOUR if label.startswith("ours") else OTHER_COLOUR
            value, spread = entry["value"], entry["spread"]
            if self.is_log:
                axes.plot(value, place, "o", color=colour, markeredgecolor=INK, markeredgewidth=0.6, markersize=7)
            else:
                axes.barh(place, value, height=0.62, color=colour, edgecolor=INK, linewidth=0.6)
            if spread is not None:
                axes.errorbar(value, place, xerr=spread, color=INK, elinewidth=1, capsize=3)
            style = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "fontsize": 9}
            axes.text(1.02, place, number(value), **style)
        if self.is_log:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.15g}")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_xlabel(self.unit)


@dataclass(frozen=True, slots=True)
class Lines:
    """Values that depend on something.

    Args:
        title: Title of the panel.
        unit: Label of the vertical axis.
        axis: Label of the horizontal axis.
        places: Its ticks.
        lines: Names of the results at each tick, by the line's label.
        is_log: Whether the vertical scale is logarithmic.
    """

    title: str
    unit: str
    axis: str
    places: Sequence[str]
    lines: Mapping[str, Sequence[str]]
    is_log: bool = False

    def names(self) -> Iterator[str]:
        """Yield the names of the results."""
        return (name for names in self.lines.values() for name in names)

    def draw(self, axes: "Axes", kept: Kept) -> None:
        """Draw the results that are kept."""
        for index, (label, names) in enumerate(self.lines.items()):
            found = [(place, kept[name]) for place, name in enumerate(names) if name in kept]
            shift = (index - (len(self.lines) - 1) / 2) * SHIFT
            spreads = [math.nan if entry["spread"] is None else entry["spread"] for _, entry in found]
            colour, dashes = STROKES[index]
            axes.errorbar(
                [place + shift for place, _ in found],
                [entry["value"] for _, entry in found],
                yerr=None if all(map(math.isnan, spreads)) else spreads,
                label=label,
                color=colour,
                linestyle=dashes,
                marker=MARKERS[index],
                elinewidth=1,
                capsize=3,
            )
        if self.is_log:
            axes.set_yscale("log")
            axes.minorticks_off()
        else:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.15g}")
        axes.set_xticks(range(len(self.places)), self.places)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_xlabel(self.axis)
        axes.set_ylabel(self.unit)
        axes.legend(frameon=False, fontsize=9)


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels beside each other.

    Args:
        panels: The panels, row by row.
        columns: Panels in a row.
        size: Width and height in inches.
    """

    panels: Sequence[Bars | Lines]
    columns: int
    size: tuple[float, float]

    def draw(self, path: Path, kept: Kept) -> None:
        """Write the picture, without panels that have no results."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        panels = [panel for panel in self.panels if any(name in kept for name in panel.names())]
        with rc_context(STYLE):  # type: ignore[arg-type]
            figure = Figure(figsize=self.size, layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
            for place, panel in enumerate(panels, start=1):
                axes = figure.add_subplot(-(-len(panels) // self.columns), self.columns, place)
                panel.draw(axes, kept)
                axes.set_axisbelow(True)
                axes.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold")
            if any(kept[name]["spread"] is not None for panel in panels for name in panel.names() if name in kept):
                figure.supxlabel(WHISKERS, fontsize=9)
            save(figure, path)


def number(value: float) -> str:
    """Return a value as pages and pictures show it."""
    return f"{value:,.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
