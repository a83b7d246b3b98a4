"""Where a goal lies among the values of a panel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.replay.plot import LIMIT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kept = Mapping[str, Mapping[str, Any]]
"""The entries of the file of results, by name."""


@dataclass(frozen=True, slots=True)
class RequestState:
    """A goal as it is drawn.

    Args:
        value: Where it lies.
        text: What stands beside it.
    """

    value: float
    text: str

    def write(self, axes: "Axes", x: float, y: float) -> None:
        """Write the text to the right of a place."""
        place = {"xytext": (3, 0), "textcoords": "offset points", "va": "center_baseline"}
        axes.annotate(self.text, (x, y), **place, color=LIMIT_COLOUR, fontsize=9)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of a value that is drawn.

    Args:
        text: What stands beside it; ``{}`` is its number.
        of: The result that is drawn.
        ratio: The result that has the goal, if it is the ratio of ``of`` to another one, or of that to ``of``.
    """

    text: str
    of: str
    ratio: str | None = None

    def mark(self, kept: Kept) -> RequestState | None:
        """Return where ``of`` would just meet it, None if the results do not tell."""
        entry = kept.get(self.ratio or self.of)
        if entry is None or entry["goal"] is None or self.of not in kept:
            return None
        sign, number = entry["goal"].split()
        bound = float(number)
        text = self.text.format(f"{bound:g}")
        if self.ratio is None:
            return RequestState(bound, text)
        factor = bound / entry["value"]
        return RequestState(kept[self.of]["value"] * (factor if sign == "<=" else 1 / factor), text)
