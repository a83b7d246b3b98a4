"""Tables of ``docs/accuracy.md`` and ``docs/accuracy-results.md``, and their pictures, from results.json.

``python -m benchmarks.accuracy_page`` writes them. A table stands between ``<!-- table: growth -->`` and
``<!-- end of table -->``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.replays import (
    DEFAULT_FRAMES,
    DEFAULT_INSTANCES,
    DEFAULT_INTERVAL_S,
    FINEST,
    FRAMES,
    INSTANCES,
    INTERVALS_S,
    PROPORTIONAL,
    SLIDING,
    WINDOW_S,
    alone,
    goals_of,
    label,
)
from benchmarks.results import load
from benchmarks.scaling import FLOODS, GROWN, GROWTH, INSTANCE_COUNT, LONGER, ON_ONE_HOST, ONE, SETTINGS
from benchmarks.shapes import SHAPES
from benchmarks.sharing import INSTANCES as SHARED_BY
from benchmarks.sharing import WAYS
from benchmarks.traces import traces
from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.replay.chart_data import BusiestSegment, chart_data
from oauth_ratelimit.replay.fleet import FleetPlan, Sharing
from oauth_ratelimit.replay.plot import draw
from oauth_ratelimit.replay.run import EXACT_LOG, FIXED_WINDOW, Contender, Rate, Replay
from oauth_ratelimit.replay.source import Recording

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "accuracy.md", DOCS / "accuracy-results.md")
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

    def scaled(self, name: str, setting: str) -> Iterator[str]:
        """Yield errors, overshoot and operations of ``scaling.py``, and trips and marks if they were counted."""
        prefix = f"scaling/{name}/{setting}"
        yield f"{self._value(f'{prefix}/error'):.2f} %"
        yield f"{self._value(f'{prefix}/overshoot'):.3f}"
        for what in ("operations", "trips", "marks"):
            if f"{prefix}/{what}" in self._values:
                yield f"{self._values[f'{prefix}/{what}']:,.0f}"

    def error(self, way: str, count: int, loads: Iterable[str]) -> float:
        """Return the wrong decisions of a way to share, on average over loads, in percent."""
        loads = list(loads)
        return fmean(map(sum, zip(*(self.shared(way, count, loads, what) for what in ("allow", "deny")), strict=True)))


def write() -> None:
    """Write the tables into the pages."""
    for path in PAGES:
        path.write_text(with_tables(path.read_text(), Kept(load())))


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


def _cells(kept: Kept, contender: Contender, *, priced: bool = False) -> Iterator[str]:
    for trace in NAMES:
        allow, deny, overshoot = (kept.value(trace, contender, what) for what in ("allow", "deny", "overshoot"))
        yield f"{allow:.3f} / {deny:.3f}"
        yield f"{overshoot:.2f}"
        if priced:
            yield f"{kept.value(trace, contender, 'operations'):,.0f}"
            yield f"{kept.value(trace, contender, 'waits'):.0f}"


def _compared(
    kept: Kept, head: Sequence[str], settings: Mapping[Sequence[str], Contender], *, priced: bool = False
) -> Iterator[str]:
    columns = ["allow / deny %", "overshoot"] + ["operations", "waits %"] * priced
    rows = ([*words, *_cells(kept, contender, priced=priced)] for words, contender in settings.items())
    names = [f"{column}, {name}" for name in NAMES.values() for column in columns]
    return _table([*head, *names], rows, texts=len(head))


def _algorithms(kept: Kept) -> Iterator[str]:
    shown = [one for one in alone() if not one.is_ours or one.frame_count in (1, DEFAULT_FRAMES)]
    return _compared(kept, ["algorithm"], {(_words(one),): one for one in shown})


def _words(contender: Contender) -> str:
    name = contender.algorithm.replace("-", " ").replace("gcra", "GCRA")
    name = f"`{name}`" if contender.is_ours else name
    return f"{name}, k = {contender.frame_count}" if contender.frame_count else name


def _frames(kept: Kept) -> Iterator[str]:
    settings = {
        (f"`{name}`", str(count), str(plan.instance_count if plan else 1)): Contender(name.value, count, plan)
        for name in Estimator
        for plan in (None, FleetPlan(DEFAULT_INSTANCES, DEFAULT_INTERVAL_S))
        for count in (FRAMES if plan else (*FRAMES, FINEST))
    }
    return _compared(kept, ["estimator", "k", "N"], settings)


def _plans(kept: Kept, head: str, plans: Mapping[str, FleetPlan]) -> Iterator[str]:
    settings = {
        (words, sharing.value, f"`{name}`"): Contender(
            name, DEFAULT_FRAMES, FleetPlan(plan.instance_count, plan.interval_s, sharing)
        )
        for name, sharing in ((SLIDING, Sharing.FLUSH), (SLIDING, Sharing.RESERVE), (PROPORTIONAL, Sharing.FLUSH))
        for words, plan in plans.items()
    }
    return _compared(kept, [head, "shared", "estimator"], settings, priced=True)


def _instances(kept: Kept) -> Iterator[str]:
    return _plans(kept, "N", {str(count): FleetPlan(count, DEFAULT_INTERVAL_S) for count in INSTANCES})


def _intervals(kept: Kept) -> Iterator[str]:
    return _plans(kept, "T", {f"{at_s:g} s": FleetPlan(DEFAULT_INSTANCES, at_s) for at_s in INTERVALS_S})


def _goals(kept: Kept) -> Iterator[str]:
    (trace,) = (name for name in NAMES if name.startswith("lcg2005"))
    plans = [FleetPlan(1, DEFAULT_INTERVAL_S), FleetPlan(DEFAULT_INSTANCES, DEFAULT_INTERVAL_S)]
    plans.append(FleetPlan(DEFAULT_INSTANCES, DEFAULT_INTERVAL_S, Sharing.RESERVE))
    rows = []
    for plan in plans:
        contender = Contender(SLIDING, DEFAULT_FRAMES, plan)
        row = [str(plan.instance_count), plan.sharing.value]
        goals = goals_of(contender)
        for what in ("allow", "deny", "overshoot"):
            row += [f"{kept.value(trace, contender, what):.3f}", goals.get(what, "").replace("<=", "≤")]
        rows.append(row)
    head = [text for what in ("allow %", "deny %", "overshoot") for text in (what, "goal")]
    return _table(["N", "shared", *head], iter(rows), texts=2)


def _sharing(kept: Kept) -> Iterator[str]:
    rows = []
    for count in (1, *SHARED_BY):
        for way in WAYS if count > 1 else ("default", "strict"):
            cells = [f"{kept.error(way, count, [name]):.2f}" for name in (*RECORDED, *SHAPES)]
            most, trips, operations, calls, fairness = (
                kept.shared(way, count, (*RECORDED, *SHAPES), what)
                for what in ("overshoot", "waited", "operations", "trips", "fairness")
            )
            costs = [f"{fmean(trips):.2f}", f"{fmean(operations):,.0f}", f"{fmean(calls):,.0f}"]
            rows.append([str(count), way, *cells, f"{max(most):.2f}", *costs, f"{min(fairness):.2f}"])
    head = ["N", "way", *RECORDED, *SHAPES, "overshoot", "waits", "operations", "trips", "fairness"]
    return _table(head, iter(rows), texts=2)


def _rivals(kept: Kept) -> Iterator[str]:
    """Yield the table of ``_sharing`` for the default number of instances, with means over the loads."""
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


def _constants(kept: Kept) -> Iterator[str]:
    return _by_setting(kept, (*RECORDED, *FLOODS))


def _shapes(kept: Kept) -> Iterator[str]:
    return _by_setting(kept, tuple(SHAPES))


def _by_setting(kept: Kept, names: Sequence[str]) -> Iterator[str]:
    def cell(name: str, setting: str) -> str:
        return "; ".join(islice(kept.scaled(name, setting), 3))

    rows = ([setting, *(cell(name, setting) for name in names)] for setting in (ONE, *SETTINGS))
    return _table(["setting", *names], rows, texts=1)


def _growth(kept: Kept) -> Iterator[str]:
    settings = [f"N = {count}" for count in GROWTH]
    shown = [(RECORDED[0], setting) for setting in settings] + [
        (GROWN, name) for name in (*settings, LONGER, ON_ONE_HOST)
    ]
    rows = []
    for name, setting in shown:
        is_default = name in RECORDED and setting == f"N = {INSTANCE_COUNT}"
        cells = list(kept.scaled(name, "as it is" if is_default else setting))
        rows.append([name, setting, *cells, *[""] * (5 - len(cells))])
    return _table(["load", "fleet", "errors", "overshoot", "operations", "trips", "marks"], iter(rows), texts=2)


TABLES = {
    "goals": _goals,
    "algorithms": _algorithms,
    "rivals": _rivals,
    "frames": _frames,
    "instances": _instances,
    "intervals": _intervals,
    "sharing": _sharing,
    "constants": _constants,
    "shapes": _shapes,
    "growth": _growth,
}


def draw_all() -> None:
    """Draw the busiest part of each trace, and the errors by setting."""
    IMAGES.mkdir(exist_ok=True)
    for trace in traces():
        rate, recording = Rate(trace.limit, WINDOW_S), Recording(str(trace.path))
        busiest = BusiestSegment(rate)
        with recording.opened() as (_, rows):
            Replay(rate, [Contender(EXACT_LOG)], on_decisions=busiest).run(rows.batches())
        segment = busiest.found()
        if segment is not None:
            with recording.opened() as (_, rows):
                draw(
                    chart_data(rows.batches(), segment, rate, contenders=IN_PICTURES),
                    IMAGES / f"accuracy-{trace.name}.svg",
                )
    _draw_settings(Kept(load()))
    _draw_sharing(Kept(load()))


def _draw_sharing(kept: Kept) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from oauth_ratelimit.replay.plot import GRID, PAPER, STROKES, STYLE, save

    markers = ("o", "s", "D", "^", "v", "P", "X", "*", "h", "<", ">")
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(11, 6.6), layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        panels = figure.subplots(2, len(SHARED_BY), sharex=True, sharey="row")
        ticks = (0.03, 0.1, 0.3, 1, 3, 10, 30)
        for row, (title, names) in zip(panels, (("recorded", RECORDED), ("shapes", tuple(SHAPES))), strict=True):
            for axes, count in zip(row, SHARED_BY, strict=True):
                for index, way in enumerate(WAYS):
                    waits = fmean(kept.shared(way, count, names, "waited"))
                    error = max(0.01, kept.error(way, count, names))
                    colour, marker = STROKES[index % len(STROKES)][0], markers[index]
                    aside = 0.04 * index if waits == 0 else 0.0  # beside each other, to be seen
                    axes.scatter([waits + aside], [error], label=way, color=colour, marker=marker, s=42, clip_on=False)
                axes.set_yscale("log")
                axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
                axes.minorticks_off()
                axes.set_xticks((0, 1, 2))
                axes.grid(color=GRID, linewidth=0.6)
                axes.set_axisbelow(True)
                axes.set_title(f"{title}, N = {count}", loc="left", fontsize=10.5, fontweight="bold")
            row[0].set_ylabel("wrong decisions, % of all requests")
        for axes in panels[-1]:
            axes.set_xlabel("round trips that a request waits for")
        handles, words = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=4, frameon=False)
        save(figure, IMAGES / "accuracy-sharing.svg")


def _draw_settings(kept: Kept) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from oauth_ratelimit.replay.plot import GRID, PAPER, STYLE, save

    def plan(count: int, at_s: float, sharing: Sharing = Sharing.FLUSH) -> FleetPlan:
        return FleetPlan(count, at_s, sharing)

    n, t, k = DEFAULT_INSTANCES, DEFAULT_INTERVAL_S, DEFAULT_FRAMES
    columns = (
        ("frames per window k (one instance)", FRAMES, lambda x, _: (x, None)),
        ("instances N (k = 10, T = 1 s)", INSTANCES, lambda x, sharing: (k, plan(x, t, sharing))),
        ("sync interval T in seconds (k = 10, N = 10)", INTERVALS_S, lambda x, sharing: (k, plan(n, x, sharing))),
    )
    lines = (
        ("sliding: wrongly allowed", SLIDING, Sharing.FLUSH, "allow", "#0072B2", "-", "o"),
        ("sliding: wrongly denied", SLIDING, Sharing.FLUSH, "deny", "#0072B2", ":", "o"),
        ("proportional: wrongly allowed", PROPORTIONAL, Sharing.FLUSH, "allow", "#E69F00", "-", "s"),
        ("proportional: wrongly denied", PROPORTIONAL, Sharing.FLUSH, "deny", "#E69F00", ":", "s"),
        ("sliding with reserve: wrongly allowed", SLIDING, Sharing.RESERVE, "allow", "#009E73", "-", "^"),
    )
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(11, 6.2), layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        panels = figure.subplots(2, 3, sharey="row")
        for row, trace in zip(panels, NAMES, strict=True):
            for axes, (title, places, setting) in zip(row, columns, strict=True):
                for words, name, sharing, what, colour, dashes, marker in lines:
                    if setting(1, sharing)[1] is None and sharing is Sharing.RESERVE:
                        continue
                    values = [kept.value(trace, Contender(name, *setting(x, sharing)), what) for x in places]
                    axes.plot(places, values, label=words, color=colour, linestyle=dashes, marker=marker, markersize=4)
                axes.set_xscale("log")
                axes.set_xticks(places, [f"{x:g}" for x in places])
                axes.minorticks_off()
                axes.grid(axis="y", color=GRID, linewidth=0.6)
                axes.set_xlabel(title)
            row[0].set_ylim(bottom=0)  # of the whole row, and not before all of it is drawn
            row[0].set_ylabel("% of all requests")
            row[0].set_title(trace, loc="left", fontsize=10.5, fontweight="bold")
        handles, words = panels[0][1].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=3, frameon=False)
        save(figure, IMAGES / "accuracy-settings.svg")


if __name__ == "__main__":
    write()
    draw_all()
