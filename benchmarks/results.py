"""A measured value and its goal, the table on the terminal, and the file of results."""

import json
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
    def topic(self) -> str:
        """Part of the name before the first slash."""
        return self.name.partition("/")[0]

    @property
    def met(self) -> bool | None:
        """True if the value meets the goal, None without one."""
        if self.goal is None:
            return None
        sign, bound = self.goal.split()
        return SIGNS[sign](float(self.value), float(bound))


def table(results: Iterable[Result]) -> str:
    """Return results as a table for the terminal."""
    rows = [
        (
            result.name,
            f"{result.value:,.4g}" if abs(result.value) < 1000 else f"{result.value:,.0f}",
            result.unit,
            "" if result.spread is None else f"± {result.spread:,.3g}",
            result.goal or "",
            {True: "met", False: "MISSED", None: ""}[result.met],
        )
        for result in results
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(6)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {spread:<{widths[3]}}"
        f"  {goal:<{widths[4]}}  {met}".rstrip()
        for name, value, unit, spread, goal, met in rows
    )


def save(results: Sequence[Result], *, command: str, left_out: Sequence[str] = (), path: Path = PATH) -> None:
    """Write results to the file and replace those of the same topics.

    Args:
        results: All results of some topics.
        command: The command that measures them again.
        left_out: Prefixes of names that could not be measured here; the file keeps their entries.
        path: The file.
    """
    topics, measured = {result.topic for result in results}, {result.name for result in results}
    kept = [
        entry
        for entry in load(path)
        if entry["name"].partition("/")[0] not in topics
        or (entry["name"].startswith(tuple(left_out)) and entry["name"] not in measured)
    ]
    new = [
        {
            "name": result.name,
            "value": float(f"{result.value:.5g}"),
            "unit": result.unit,
            "spread": None if result.spread is None else float(f"{result.spread:.3g}"),
            "goal": result.goal,
            "met": result.met,
            "command": command,
        }
        for result in results
    ]
    entries = sorted([*kept, *new], key=lambda entry: str(entry["name"].partition("/")[0]))
    path.write_text("[\n" + ",\n".join("  " + json.dumps(entry) for entry in entries) + "\n]\n")


def load(path: Path = PATH) -> list[dict[str, Any]]:
    """Return the entries of the file, none if there is no file."""
    return list(json.loads(path.read_text())) if path.exists() else []
