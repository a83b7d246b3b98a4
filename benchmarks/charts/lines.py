"""A panel of values that depend on something."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.charts.goal import Goal, Kept
from oauth_ratelimit.replay.plot import GRID, LIMIT_COLOUR, STROKES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^D"
APART = 0.05  # of the distance of two places: so that whiskers do not cover each other
GOAL_WIDTH = 0.3  # of the same


@dataclass(frozen=True, slots=True)
class Lines:
    """A line for each way to do something.

    Args:
        title: Of the panel.
        unit: Stands at the axis of the values.
        axis: What the values depend on.
        places: The labels of that axis.
        lines: The names of the results, place by place, by the line's label.
        goals: By place.
        goal_label: What the goals are.
        is_log: Whether the scale is logarithmic.
    """

    title: str
    unit: str
    axis: str
    places: Sequence[str]
    lines: Mapping[str, Sequence[str]]
    goals: Mapping[int, Goal] = field(default_factory=dict)
    goal_label: str = "goal"
    is_log: bool = False

    shared: ClassVar = "sharey"

    def names(self) -> Iterator[str]:
        """Yield the names of the results."""
        return (name for names in self.lines.values() for name in names)

    def is_in(self, kept: Kept) -> bool:
        """Return whether there is anything to draw."""
        return any(self._found(names, kept) for names in self.lines.values())

    def draw(self, axes: "Axes", kept: Kept) -> None:
        """Draw into a panel; what is not in the results is left out."""
        for number, (label, names) in enumerate(self.lines.items()):
            found = self._found(names, kept)
            if not found:
                continue
            aside = (number - (len(self.lines) - 1) / 2) * APART
            (colour, dashes), marker = STROKES[number], MARKERS[number]
            spreads = [math.nan if entry["spread"] is None else entry["spread"] for _, entry in found]
            axes.errorbar(
                [place + aside for place, _ in found],
                [entry["value"] for _, entry in found],
                yerr=None if all(map(math.isnan, spreads)) else spreads,
                label=label,
                color=colour,
                linestyle=dashes,
                marker=marker,
                markersize=6,
                elinewidth=1,
                capsize=3,
            )
        self._draw_goals(axes, kept)
        if self.is_log:
            axes.set_yscale("log")
            axes.minorticks_off()
        else:
            axes.axhline(0, linewidth=0).sticky_edges.y.append(0)  # the scale begins at zero, that of others, too
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.15g}")
        axes.set_xticks(range(len(self.places)), self.places)
        axes.set_xlim(-0.4, len(self.places) - (0.4 if self.goals else 0.6))
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(self.title, loc="left", fontsize=10.5, fontweight="bold")
        axes.set_xlabel(self.axis)
        axes.set_ylabel(self.unit)

    def _found(self, names: Sequence[str], kept: Kept) -> list[tuple[int, Mapping[str, Any]]]:
        """
        Return the entries of a line by place: none if there is only one, which would look as if it were a whole line.
        """
        found = [(place, kept[name]) for place, name in enumerate(names) if name in kept]
        return found if len(found) > 1 else []

    def _draw_goals(self, axes: "Axes", kept: Kept) -> None:
        label = self.goal_label
        for place, goal in self.goals.items():
            mark = goal.mark(kept)
            if mark:
                ends = place - GOAL_WIDTH / 2, place + GOAL_WIDTH / 2
                axes.hlines(mark.value, *ends, color=LIMIT_COLOUR, linewidth=2, label=label)
                mark.write(axes, ends[1], mark.value)
                label = "_"  # one is enough for the legend
