"""Times that can be compared on a noisy machine: the subjects take turns, and medians are reported."""

import gc
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Run = Callable[[], int]
"""Does the work once and returns how many operations that were."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds per operation: the median of all turns, and half the distance between the quartiles."""

    median_ns: float
    spread_ns: float


def take_turns(
    runs: Mapping[str, Run],
    *,
    turn_count: int,
    before: Mapping[str, Callable[[], object]] | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, Timing]:
    """Time each subject once per turn, in alternating order, after one turn that does not count.

    Args:
        runs: What is timed.
        turn_count: How often.
        before: What is done before a subject's turn and not timed.
        clock_ns: ``time.process_time_ns`` where nothing waits: others on the machine disturb it least.
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
    """Return half the distance between the quartiles, 0.0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def in_threads(run: Run, *, thread_count: int) -> Run:
    """Return a run of several threads that start together; its operations are those of all of them."""

    def run_all() -> int:
        counts: list[int] = []
        threads = [threading.Thread(target=lambda: counts.append(run())) for _ in range(thread_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    return run_all


def percentile(values: list[float], percent: float) -> float:
    """Return the value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
