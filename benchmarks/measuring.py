"""Measuring on a noisy machine: subjects take turns, medians are reported, and processes start fresh."""

import contextlib
import gc
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import subjects
from testbed.gunicorn import Gunicorn

PAGE_BYTES = 4096

Run = Callable[[], int]
"""Does the work once and returns the number of operations."""

Value = TypeVar("Value")


def take_turns(measures: Mapping[str, Callable[[], Value]], *, turn_count: int) -> dict[str, list[Value]]:
    """Call each measure once per turn, in random order, and return the values. The first turn does not count."""
    draw = random.Random(0)
    values: dict[str, list[Value]] = {name: [] for name in measures}
    for turn in range(turn_count + 1):
        for name in draw.sample(list(measures), len(measures)):
            value = measures[name]()
            if turn:
                values[name].append(value)
    return values


def timed(
    run: Run, *, before: Callable[[], object] = lambda: None, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> Callable[[], float]:
    """Return a measure of the time of one operation in nanoseconds.

    Args:
        run: The work.
        before: A preparation that is not timed.
        clock_ns: ``time.process_time_ns`` for work that never waits: other processes disturb it least.
    """

    def measure() -> float:
        before()
        gc.collect()
        started_ns = clock_ns()
        operation_count = run()
        return (clock_ns() - started_ns) / operation_count

    return measure


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
