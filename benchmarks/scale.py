"""How the load on MongoDB grows with instances and keys, in compressed time: ``python -m benchmarks.scale`` draws it.

The traffic stays the same: 1,000 requests a second, each with any of the keys and to any of the instances. All keys are
known from the start.
"""

import gc
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from benchmarks.fleet import Fleet
from benchmarks.processes import in_new_process
from benchmarks.results import Result, load

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "scale.svg"
REQUESTS_PER_S = 1_000
INTERVAL_S = 1.0
WARM_UP_S = 10.0
MEASURED_S = 10.0
WINDOW_S = 3600  # so that no key is forgotten
INSTANCES = (1, 2, 5, 10, 20, 50)
KEYS = (1_000, 10_000, 100_000, 1_000_000)
INSTANCES_OF_MOST = (1, 2, 5)  # of a million keys: gigabytes of memory, most of it for places of clients
WHATS = ("round trips", "documents written", "documents read", "conflicts")


def run(*, short: bool) -> Iterator[Result]:
    """Yield what MongoDB has to do."""
    for key_count in KEYS[:2] if short else KEYS:
        for instance_count in INSTANCES_OF_MOST if short or key_count == KEYS[-1] else INSTANCES:
            values = in_new_process(_measure, key_count, instance_count)
            for what, value in zip(WHATS, values, strict=True):
                yield Result(name_of(key_count, instance_count, what), value, "per second")


def name_of(key_count: int, instance_count: int, what: str) -> str:
    """Return the name of a result."""
    instances = "1 instance" if instance_count == 1 else f"{instance_count} instances"
    return f"scale/{key_count:,} keys, {instances}/{what}"


def _measure(key_count: int, instance_count: int) -> tuple[float, ...]:
    """Return what the instances together ask of the store per second, in the order of ``WHATS``."""
    gc.disable()  # a few seconds of one process that ends afterwards
    fleet = Fleet(instance_count, random.Random(7), window_s=WINDOW_S, interval_s=INTERVAL_S)
    names = [f"client-{number:07}" for number in range(key_count)]
    fleet.learn(names)
    arrivals = (number / REQUESTS_PER_S for number in count())
    found = fleet.load(arrivals, names, warm_up_s=WARM_UP_S, measured_s=MEASURED_S)
    return found.trips, found.written, found.read, found.conflicts


def draw(path: Path = IMAGE) -> None:
    """Draw what is kept."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from oauth_ratelimit.replay.plot import GRID, PAPER, STROKES, STYLE, save

    kept = {str(entry["name"]): float(entry["value"]) for entry in load()}
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(11, 6), layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        panels = figure.subplots(2, 2, sharex=True)
        for axes, what in zip(panels.flat, WHATS, strict=True):
            for key_count, (colour, dashes), marker in zip(KEYS, STROKES, "os^D", strict=False):
                found = [(count, kept.get(name_of(key_count, count, what))) for count in INSTANCES]
                places = [(count, value) for count, value in found if value is not None]
                axes.plot(
                    [count for count, _ in places],
                    [value for _, value in places],
                    label=f"{key_count:,} keys",
                    color=colour,
                    linestyle=dashes,
                    marker=marker,
                    markersize=4,
                )
            axes.set_xscale("log")
            axes.set_xticks(INSTANCES, [str(count) for count in INSTANCES])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color=GRID, linewidth=0.6)
            axes.set_title(f"{what} per second", loc="left", fontsize=10.5, fontweight="bold")
        for axes in panels[-1]:
            axes.set_xlabel(f"instances ({REQUESTS_PER_S:,} requests per second in all, T = {INTERVAL_S:g} s)")
        handles, words = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=len(KEYS), frameon=False)
        save(figure, path)


if __name__ == "__main__":
    draw()
