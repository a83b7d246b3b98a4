"""Panels beside each other, in a file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.charts.goal import Kept
from benchmarks.charts.lines import Lines
from benchmarks.charts.rows import Rows
from oauth_ratelimit.replay.plot import GRID, PAPER, STYLE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHISKERS = "Whiskers: half the distance between the quartiles, to either side."
MOST_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """What belongs together.

    Args:
        panels: Row by row.
        columns: How many of them stand beside each other.
        size: Width and height in inches.
        shares: Whether panels of the same unit have the same scale.
    """

    panels: Sequence[Rows | Lines]
    columns: int
    size: tuple[float, float]
    shares: bool = True

    @property
    def topic(self) -> str:
        """The topic of its results."""
        return next(self.panels[0].names()).partition("/")[0]

    def draw(self, path: Path, kept: Kept) -> None:
        """Write it. Without any results there is nothing to write."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        panels = [panel for panel in self.panels if panel.is_in(kept)]
        if not panels:
            return
        row_count = -(-len(panels) // self.columns)
        with rc_context(STYLE):  # type: ignore[arg-type]
            layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
            figure = Figure(figsize=self.size, layout=layout, facecolor=PAPER, edgecolor=GRID, linewidth=2)
            first: dict[str, Axes] = {}  # of each unit
            for number, panel in enumerate(panels, start=1):
                share = {panel.shared: first[panel.unit]} if self.shares and panel.unit in first else {}
                places = (number, row_count * self.columns if number == len(panels) else number)
                axes = figure.add_subplot(row_count, self.columns, places, **share)
                first.setdefault(panel.unit, axes)
                panel.draw(axes, kept)
            self._explain(figure, has_spread=any(_has_spread(panel, kept) for panel in panels))
            save(figure, path)

    def _explain(self, figure: Any, *, has_spread: bool) -> None:
        """Say what lines and whiskers are."""
        pairs = [zip(*axes.get_legend_handles_labels()[::-1], strict=True) for axes in figure.axes]
        lines = dict(sorted(itertools.chain(*pairs), key=lambda pair: pair[0].startswith("goal")))
        if lines or has_spread:
            figure.legend(
                lines.values(),
                lines,
                loc="outside lower center",
                ncols=len(lines) if len(lines) <= MOST_COLUMNS else 3,
                frameon=False,
                title=WHISKERS if has_spread else None,
                title_fontsize=9,
            )


def _has_spread(panel: Rows | Lines, kept: Kept) -> bool:
    return any(name in kept and kept[name]["spread"] is not None for name in panel.names())
