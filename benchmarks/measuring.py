"""Measuring on a noisy machine: subjects take turns, medians are reported, and processes start fresh."""

import contextlib
import gc
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import subjects
from tests.support.gunicorn import Gunicorn

PAGE_BYTES = 4096

Run = Callable[[], int]
"""Does the work once and returns the number of operations."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds per operation: the median of all turns, and half the interquartile range."""

    median_ns: float
    spread_ns: float


def take_turns(
    runs: Mapping[str, Run],
    *,
    turn_count: int,
    before: Mapping[str, Callable[[], object]] | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, Timing]:
    """Time each subject once per turn, in alternating order. The first turn does not count.

    Args:
        runs: The subjects.
        turn_count: Number of turns.
        before: Preparations that are not timed.
        clock_ns: ``time.process_time_ns`` for work that never waits: other processes disturb it least.
    """
    before = before or {}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turn_count + 1):
        for name in sorted(runs, reverse=bool(turn % 2)):
            if name in before:
                before[name]()
            gc.collect()
            started_ns = clock_ns()
            operation_count = runs[name]()
            taken_ns = clock_ns() - started_ns
            if turn:
                times[name].append(taken_ns / operation_count)
    return {name: Timing(statistics.median(taken), spread(taken)) for name, taken in times.items()}


def spread(values: list[float]) -> float:
    """Return half the interquartile range, 0.0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def percentile(values: list[float], percent: float) -> float:
    """Return the value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def in_threads(run: Run, *, thread_count: int) -> Run:
    """Return a run of several threads that start together and add up their operations."""

    def run_all() -> int:
        counts: list[int] = []
        threads = [threading.Thread(target=lambda: counts.append(run())) for _ in range(thread_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    return run_all


def in_new_process(function: Callable[..., Value], *arguments: Any) -> Value:
    """Return the result of a function that runs in a new process, on a fresh heap."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=subjects.silence_log) as pool:
        return pool.submit(function, *arguments).result()


@contextlib.contextmanager
def servers_of(
    names: Iterable[str], application_import: str, *, variable: str, threads: int, env: Mapping[str, str]
) -> Iterator[dict[str, Gunicorn]]:
    """Run a server with one worker for each name, which it finds in an environment variable."""
    with contextlib.ExitStack() as running:
        yield {
            name: running.enter_context(
                Gunicorn(application_import, worker_class="gthread", threads=threads, env={**env, variable: name})
            )
            for name in names
        }


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process. Linux only."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
