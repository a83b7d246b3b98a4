"""What a flood of made-up names costs in memory: ``python -m benchmarks.flood``.

Each kind of name floods the limiter of a process of its own with five times as many users as ``max_keys``, while the
sync cycle makes room as it does in a server. The growth of the process is divided by ``max_keys``.
"""

import argparse
import gc
import multiprocessing
from collections.abc import Callable

from benchmarks.processes import resident_bytes
from benchmarks.subjects import suppression
from oauth_ratelimit import Limiter, load_config

KINDS: dict[str, Callable[[int], str]] = {
    "short names": lambda number: f"user-{number:012x}",
    "512 letters": lambda number: f"{number:0512x}",
    "512 letters outside of the basic plane": lambda number: f"{number:012x}" + "\U0001f600" * 500,
    "100,000 letters, cut": lambda number: f"{number:0100000x}",
}
TIMES = 5
HITS_PER_CYCLE = 10_000


class Clock:
    """A clock that moves a little with each cycle: hardly anything is forgotten because its window is over."""

    now_s = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now_s


def flood(kind: str, max_keys: int, results: "multiprocessing.Queue[int]") -> None:
    """Flood a limiter, and report how far the process has grown."""
    suppression()
    name = KINDS[kind]
    limits = {"user": ["10/minute"]}
    clock = Clock()
    limiter = Limiter(load_config({"max_keys": max_keys, "limits": limits}), clock=clock)
    gc.collect()
    before, most = resident_bytes(), 0
    for number in range(TIMES * max_keys):
        limiter.check("some-app", name(number))
        if number % HITS_PER_CYCLE == 0:
            most = max(most, resident_bytes() - before)
            limiter.sync()
            clock.now_s += 0.01
    results.put(most)


def main() -> None:
    """Flood, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-keys", type=int, default=100_000)
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="how many kinds of names, the first ones")
    chosen = parser.parse_args()
    max_keys = chosen.max_keys
    print("| names | users | memory at most | per key of `max_keys` |\n| --- | ---: | ---: | ---: |")
    context = multiprocessing.get_context("spawn")
    for kind in list(KINDS)[: chosen.kinds]:
        results: multiprocessing.Queue[int] = context.Queue()
        process = context.Process(target=flood, args=(kind, max_keys, results))
        process.start()
        most = results.get()
        process.join()
        print(f"| {kind} | {TIMES * max_keys:,} | {most / 1e6:,.0f} MB | {most // max_keys:,} bytes |", flush=True)


if __name__ == "__main__":
    main()
