"""
How the load on MongoDB grows with instances and keys, in compressed time: ``python -m benchmarks.scale`` draws it.

The traffic stays the same: 1,000 requests a second, each with any of the keys and to any of the instances, the worst
case, because every key wanders. All keys are known from the start. The instances run as the scheduler runs them: a tick
each tenth of the interval, each tenth tick a full cycle, each instance at its own phase.
"""

import gc
import heapq
import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks import subjects
from benchmarks.accuracy import Clock
from benchmarks.capacity import CountingStore
from benchmarks.processes import in_new_process
from benchmarks.results import Result, load
from oauth_ratelimit.config import load_config
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.sync.scheduler import TICKS_PER_INTERVAL

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
Item = TypeVar("Item")


def run(*, short: bool) -> Iterator[Result]:
    """
    Yield what MongoDB has to do.
    """
    for key_count in KEYS[:2] if short else KEYS:
        for instance_count in INSTANCES_OF_MOST if short or key_count == KEYS[-1] else INSTANCES:
            values = in_new_process(_measure, key_count, instance_count)
            for what, value in zip(WHATS, values, strict=True):
                yield Result(_name(key_count, instance_count, what), value, "per second")


def _name(key_count: int, instance_count: int, what: str) -> str:
    instances = "1 instance" if instance_count == 1 else f"{instance_count} instances"
    return f"scale/{key_count:,} keys, {instances}/{what}"


@dataclass(frozen=True, slots=True)
class _Counted:
    """
    What a store was asked for, in the order of ``WHATS``.
    """

    trips: int
    written: int
    read: int
    conflicts: int

    @classmethod
    def of(cls, store: CountingStore) -> "_Counted":
        """
        Return what it has counted so far.
        """
        return cls(store.trips, store.written, store.read_count, store.conflicts)


class _Fleet:
    """
    Instances on one store, with ticks of their own.
    """

    def __init__(self, instance_count: int, rng: random.Random) -> None:
        self.store = CountingStore()
        self.clock = Clock(subjects.STANDING_S)
        policy = {"limit": subjects.NO_LIMIT, "window": WINDOW_S}
        settings = load_config({"mode": "enforce", "limits": {"client": [policy]}, "max_keys": 2 * KEYS[-1]})
        self.limiters = [Limiter(settings, self.store, clock=self.clock) for _ in range(instance_count)]
        self._tick_s = INTERVAL_S / TICKS_PER_INTERVAL
        # When, which instance, which of its ticks.
        self._ticks = [
            (self.clock.now_s + rng.random() * self._tick_s, index, rng.randrange(TICKS_PER_INTERVAL))
            for index in range(instance_count)
        ]
        heapq.heapify(self._ticks)

    def sync(self) -> None:
        """
        Run a full cycle of each instance.
        """
        for limiter in self.limiters:
            limiter.sync()

    def advance(self, to_s: float) -> None:
        """
        Let time pass, and play the ticks in it.
        """
        while self._ticks[0][0] <= to_s:
            self.clock.now_s, index, number = self._ticks[0]
            limiter = self.limiters[index]
            if number % TICKS_PER_INTERVAL:
                limiter.sync_urgent()
            else:
                limiter.sync()
            heapq.heapreplace(self._ticks, (self.clock.now_s + self._tick_s, index, number + 1))
        self.clock.now_s = to_s


def _measure(key_count: int, instance_count: int) -> tuple[float, ...]:
    """
    Return what the instances together ask of the store per second, in the order of ``WHATS``.
    """
    gc.disable()  # a few seconds of one process that ends afterwards
    rng = random.Random(7)
    fleet = _Fleet(instance_count, rng)
    names = [f"client-{number:07}" for number in range(key_count)]
    for name in names:
        _any(fleet.limiters, rng).check(name)
    fleet.sync()
    start_s, before = fleet.clock.now_s, None
    for number in range(int((WARM_UP_S + MEASURED_S) * REQUESTS_PER_S)):
        due_s = start_s + number / REQUESTS_PER_S
        fleet.advance(due_s)
        if before is None and due_s >= start_s + WARM_UP_S:
            before = _Counted.of(fleet.store)
        _any(fleet.limiters, rng).check(_any(names, rng))
    after = _Counted.of(fleet.store)
    assert before is not None
    return tuple((now - then) / MEASURED_S for now, then in zip(astuple(after), astuple(before), strict=True))


def _any(items: list[Item], rng: random.Random) -> Item:
    return items[int(rng.random() * len(items))]


def draw(path: Path = IMAGE) -> None:
    """
    Draw what is kept.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from oauth_ratelimit.simulate.picture import GRID, PAPER, STROKES, STYLE, save

    kept = {str(entry["name"]): float(entry["value"]) for entry in load()}
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(11, 6), layout="constrained", facecolor=PAPER, edgecolor=GRID, linewidth=2)
        panels = figure.subplots(2, 2, sharex=True)
        for axes, what in zip(panels.flat, WHATS, strict=True):
            for key_count, (colour, dashes), marker in zip(KEYS, STROKES, "os^D", strict=False):
                found = [(count, kept.get(_name(key_count, count, what))) for count in INSTANCES]
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
