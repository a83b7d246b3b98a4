"""A measured value and its goal, and the file of results."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("results.json")

SIGNS = {"<=": float.__le__, ">=": float.__ge__}


@dataclass(frozen=True, slots=True)
class Result:
    """One number.

    Args:
        name: Path of the measurement, topic first: ``decision/one key/ours``.
        value: The number.
        unit: Its unit; ``x`` is a ratio of two measurements of one run.
        goal: The accepted range: ``<= 0.15``. None without a goal.
        spread: Half the interquartile range of the repetitions, in the unit; None with one repetition.
    """

    name: str
    value: float
    unit: str
    goal: str | None = None
    spread: float | None = None

    @property
    def met(self) -> bool | None:
        """True if the value meets the goal, None without one."""
        if self.goal is None:
            return None
        sign, bound = self.goal.split()
        return SIGNS[sign](float(self.value), float(bound))


def line(result: Result) -> str:
    """Return a result as a line for the terminal."""
    value = f"{result.value:,.4g}" if abs(result.value) < 1000 else f"{result.value:,.0f}"
    spread = "" if result.spread is None else f" ± {result.spread:,.3g}"
    goal = "" if result.goal is None else f" ({result.goal}: {'met' if result.met else 'MISSED'})"
    return f"{result.name}: {value}{spread} {result.unit}{goal}"


def spread(values: Sequence[float]) -> float:
    """Return half the interquartile range, 0.0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def median_of(name: str, values: Sequence[float], unit: str, goal: str | None = None) -> Result:
    """Return the median of repetitions, with their spread."""
    return Result(name, statistics.median(values), unit, goal, spread(values))


def save(results: Iterable[Result], *, command: str, path: Path = PATH) -> list[str]:
    """Write results to the file, and return the names of the same topics that were not measured and stay.

    A program or a trace is missing on this machine then, or the result has another name now: delete its entry.
    """
    entries = {str(entry["name"]): entry for entry in load(path)}
    new = {
        result.name: {
            "name": result.name,
            "value": float(f"{result.value:.5g}"),
            "unit": result.unit,
            "spread": None if result.spread is None else float(f"{result.spread:.3g}"),
            "goal": result.goal,
            "met": result.met,
            "command": command,
        }
        for result in results
    }
    topics = {_topic(name) for name in new}
    ordered = sorted((entries | new).values(), key=lambda entry: _topic(str(entry["name"])))
    path.write_text("[\n" + ",\n".join("  " + json.dumps(entry) for entry in ordered) + "\n]\n")
    return [name for name in entries if _topic(name) in topics and name not in new]


def load(path: Path = PATH) -> list[dict[str, Any]]:
    """Return the entries of the file, none if there is no file."""
    return list(json.loads(path.read_text())) if path.exists() else []


def _topic(name: str) -> str:
    return name.partition("/")[0]
