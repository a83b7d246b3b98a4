"""A panel of named values, one below the other, each with its number beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.charts.goal import Goal, Kept
from oauth_ratelimit.replay.plot import GRID, INK, LIMIT_COLOUR, STROKES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Look(Enum):
    """Colours that differ in grey, too, and the marks on logarithmic scales."""

    OURS = (STROKES[0][0], "o")
    OTHER = (STROKES[1][0], "s")
    LEAST = ("#f0f0f0", "D")  # what does next to nothing


@dataclass(frozen=True, slots=True)
class Row:
    """A value.

    Args:
        label: What it is.
        name: Of the result.
        look: Whose it is.
    """

    label: str
    name: str
    look: Look = Look.OURS


@dataclass(frozen=True, slots=True)
class Rows:
    """Bars from zero, or marks on a logarithmic scale, which has no zero.

    Args:
        title: Of the panel.
        unit: Stands at the axis.
        rows: From top to bottom.
        goal: Drawn as a line.
        is_log: Whether the scale is logarithmic.
    """

    title: str
    unit: str
    rows: Sequence[Row]
    goal: Goal | None = None
    is_log: bool = False

    shared: ClassVar = "sharex"

    def names(self) -> Iterator[str]:
        """Yield the names of the results."""
        return (row.name for row in self.rows)

    def numbers(self, kept: Kept) -> Iterator[str]:
        """Yield the numbers that stand in the panel."""
        return (number(kept[name]["value"]) for name in self.names() if name in kept)

    def is_in(self, kept: Kept) -> bool:
        """Return whether there is anything to draw."""
        return any(name in kept for name in self.names())

    def draw(self, axes: "Axes", kept: Kept) -> None:
        """Draw into a panel; what is not in the results is left out."""
        rows = [row for row in self.rows if row.name in kept]
        for place, row in enumerate(rows):
            self._draw(axes, place, row.look, kept[row.name])
        mark = self.goal and self.goal.mark(kept)
        if mark:
            axes.axvline(mark.value, color=LIMIT_COLOUR, linewidth=1.5, linestyle=(0, (4, 2)))
            mark.write(axes, mark.value, len(rows) - 0.1)
        if self.is_log:
            axes.set_xscale("log")
            axes.minorticks_off()
        else:
            axes.locator_params(axis="x", nbins=5)  # room for millions
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.15g}")
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) + (0.4 if mark else -0.4), -0.6)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(self.title, loc="left", fontsize=10.5, fontweight="bold")
        axes.set_xlabel(self.unit)

    def _draw(self, axes: "Axes", place: int, look: Look, entry: Mapping[str, Any]) -> None:
        colour, marker = look.value
        value = entry["value"]
        if self.is_log:
            axes.plot(value, place, marker, color=colour, markeredgecolor=INK, markeredgewidth=0.6, markersize=7)
        else:
            axes.barh(place, value, height=0.62, color=colour, edgecolor=INK, linewidth=0.6)
        if entry["spread"] is not None:
            axes.errorbar(value, place, xerr=entry["spread"], color=INK, elinewidth=1, capsize=3)
        axes.text(1.02, place, number(value), transform=axes.get_yaxis_transform(), va="center_baseline", fontsize=9)


def number(value: float) -> str:
    """Return a value as the page shows it."""
    return f"{value:,.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
