"""Tables of ``docs/accuracy.md``, and its pictures, from results.json.

``python -m benchmarks.accuracy_page`` writes them. A table stands between ``<!-- table: goals -->`` and
``<!-- end of table -->``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.replays import (
    DEFAULT_FRAMES,
    DEFAULT_INSTANCES,
    DEFAULT_INTERVAL_S,
    DEFAULT_PLAN,
    PROPORTIONAL,
    SLIDING,
    WINDOW_S,
    alone,
    goals_of,
    label,
)
from benchmarks.results import load
from benchmarks.shapes import SHAPES
from benchmarks.sharing import WAYS
from benchmarks.traces import traces
from oauth_ratelimit.traffic.formats import Recording
from testbed.comparison.chart import BusiestSegment, chart_data, draw
from testbed.comparison.run import EXACT_LOG, FIXED_WINDOW, Contender, FleetPlan, Rate, Replay, in_batches

DOCS = Path(__file__).parents[1] / "docs"
PATH = DOCS / "accuracy.md"
IMAGES = DOCS / "images"
NAMES = {"nasa19950801, 10 in 60 s": "`nasa19950801`", "lcg2005, 25 in 60 s": "`lcg2005`"}
RECORDED = ("nasa19950801", "lcg2005")
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?<!-- end of table -->", re.DOTALL)
# In the pictures of traffic: a fixed window, two frames, the default, and the formula of the article.
IN_PICTURES = (
    Contender(FIXED_WINDOW),
    Contender(SLIDING, 1),
    Contender(SLIDING, DEFAULT_FRAMES),
    Contender(PROPORTIONAL, 1),
)


class Kept:
    """The results in results.json, by name."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._values = {str(entry["name"]): float(entry["value"]) for entry in entries}

    def _value(self, name: str) -> float:
        if name not in self._values:
            part = name.partition("/")[0]
            raise LookupError(f"results.json has no {name!r}; measure it: LCG2005=FILE python -m benchmarks {part}")
        return self._values[name]

    def value(self, trace: str, contender: Contender, what: str) -> float:
        """Return a number of ``replays.py``."""
        return self._value(f"replays/{trace}/{label(contender)}/{what}")

    def shared(self, way: str, count: int, loads: Iterable[str], what: str) -> list[float]:
        """Return a number of ``sharing.py`` for each load."""
        return [self._value(f"sharing/{name}/{way}, N = {count}/{what}") for name in loads]

    def error(self, way: str, count: int, loads: Iterable[str]) -> float:
        """Return the wrong decisions of a way to share, on average over loads, in percent."""
        loads = list(loads)
        return fmean(map(sum, zip(*(self.shared(way, count, loads, what) for what in ("allow", "deny")), strict=True)))


def write() -> None:
    """Write the tables into the page."""
    PATH.write_text(with_tables(PATH.read_text(), Kept(load())))


def with_tables(page: str, kept: Kept) -> str:
    """Return a page with new tables."""

    def table_of(found: re.Match[str]) -> str:
        return f"{found[1]}\n" + "\n".join(TABLES[found[2]](kept)) + "\n\n<!-- end of table -->"

    return _TABLE.sub(table_of, page)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]], *, texts: int) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join(["---"] * texts + ["---:"] * (len(head) - texts)) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _cells(kept: Kept, contender: Contender) -> Iterator[str]:
    for trace in NAMES:
        allow, deny, overshoot = (kept.value(trace, contender, what) for what in ("allow", "deny", "overshoot"))
        yield f"{allow:.3f} / {deny:.3f}"
        yield f"{overshoot:.2f}"


def _algorithms(kept: Kept) -> Iterator[str]:
    shown = [one for one in alone() if not one.is_ours or one.frame_count in (1, DEFAULT_FRAMES)]
    names = [f"{column}, {name}" for name in NAMES.values() for column in ("allow / deny %", "overshoot")]
    return _table(["algorithm", *names], ([_words(one), *_cells(kept, one)] for one in shown), texts=1)


def _words(contender: Contender) -> str:
    name = contender.algorithm.replace("-", " ").replace("gcra", "GCRA")
    name = f"`{name}`" if contender.is_ours else name
    return f"{name}, k = {contender.frame_count}" if contender.frame_count else name


def _goals(kept: Kept) -> Iterator[str]:
    (trace,) = (name for name in NAMES if name.startswith("lcg2005"))
    plans = [FleetPlan(1, DEFAULT_INTERVAL_S), DEFAULT_PLAN]
    rows = []
    for plan in plans:
        contender = Contender(SLIDING, DEFAULT_FRAMES, plan)
        row = [str(plan.instance_count)]
        goals = goals_of(contender)
        for what in ("allow", "deny", "overshoot"):
            row += [f"{kept.value(trace, contender, what):.3f}", goals.get(what, "").replace("<=", "≤")]
        rows.append(row)
    head = [text for what in ("allow %", "deny %", "overshoot") for text in (what, "goal")]
    return _table(["N", *head], iter(rows), texts=1)


def _rivals(kept: Kept) -> Iterator[str]:
    """Yield the ways to share a limit, with means over the loads."""
    rows = []
    for way in WAYS:
        errors = [f"{kept.error(way, DEFAULT_INSTANCES, names):.2f}" for names in (RECORDED, SHAPES)]
        most, trips, operations = (
            kept.shared(way, DEFAULT_INSTANCES, (*RECORDED, *SHAPES), what)
            for what in ("overshoot", "waited", "operations")
        )
        rows.append([way, *errors, f"{max(most):.2f}", f"{fmean(trips):.2f}", f"{fmean(operations):,.0f}"])
    return _table(
        ["way", "errors, recorded", "errors, shapes", "overshoot", "waits", "operations"], iter(rows), texts=1
    )


TABLES = {
    "goals": _goals,
    "algorithms": _algorithms,
    "rivals": _rivals,
}


def draw_all() -> None:
    """Draw the busiest part of each trace, and the errors by setting."""
    IMAGES.mkdir(exist_ok=True)
    for trace in traces():
        rate, recording = Rate(trace.limit, WINDOW_S), Recording(str(trace.path))
        busiest = BusiestSegment(rate)
        with recording.opened() as (_, rows):
            Replay(rate, [Contender(EXACT_LOG)], on_decision=busiest).run(in_batches(rows))
        segment = busiest.found()
        if segment is not None:
            with recording.opened() as (_, rows):
                draw(
                    chart_data(in_batches(rows), segment, rate, contenders=IN_PICTURES),
                    IMAGES / f"accuracy-{trace.name}.svg",
                )


if __name__ == "__main__":
    write()
    draw_all()
