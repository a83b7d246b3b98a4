"""Instruction counts of decisions and sync cycles against the committed ones: ``python -m benchmarks.instructions``.

valgrind counts them, so they are the same on a busy machine. Builds of Python differ, so each case is expressed in bare
decisions (``bare``) of the same run. One process imports everything once; each case runs in a fork of it at two
lengths, and the difference is the operations alone.
"""

import argparse
import gc
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import getitem
from pathlib import Path
from typing import Any

from benchmarks import subjects
from benchmarks.subjects import CLIENT_ID, FIXED_TIME_S, NO_LIMIT, USER, VARIANTS, Hit, settings_of
from benchmarks.token_request import BASE, OURS, application, requests_to
from oauth_ratelimit.observe import observer
from oauth_ratelimit.store.base import CounterStore
from testbed.memory_store import MemoryStore
from testbed.oauth_server.database import seed

PATH = Path(__file__).with_name("baseline.json")
TOLERATED_RATIO = 1.10
SHORT_COUNT, LONG_COUNT = 2_000, 7_000
KEY_COUNT = 1_000
REQUEST_PART = 5  # an operation is this part of a token request, which takes a hundred times as long as a decision
UNIT = "bare"

Repeated = Callable[[int], object]
"""Does an operation that many times."""


def main() -> int:
    """Compare the counts, and return 1 if a case is more than a tenth slower or has no baseline, 2 without valgrind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description="Counts instructions.")
    parser.add_argument("--keep", action="store_true", help="make the counts the baseline of this version of Python")
    keep = parser.parse_args().keep
    if shutil.which("valgrind") is None:
        print("valgrind is not installed, which counts the instructions (Debian, Ubuntu: apt-get install valgrind)")
        return 2
    counts = count([UNIT, *CASES])
    unit = counts.pop(UNIT)
    return compare({name: number / unit for name, number in counts.items()}, keep=keep)


def compare(costs: Mapping[str, float], *, keep: bool, path: Path = PATH) -> int:
    """Show costs beside the baseline of this version of Python, and return the exit code. Without a baseline it is 0.

    Args:
        costs: Bare decisions by case.
        keep: Make the costs the new baseline.
        path: The file with the baselines.
    """
    version = ".".join(platform.python_version_tuple()[:2])
    baselines = json.loads(path.read_text())
    baseline = baselines.get(version, {})
    for name, cost in costs.items():
        change = f" ({cost / baseline[name] - 1:+.1%})" if name in baseline else ""
        print(f"{name}: {cost:.2f} bare decisions{change}")
    if keep:
        baselines[version] = {name: round(cost, 3) for name, cost in costs.items()}
        path.write_text(json.dumps(baselines, indent=2) + "\n")
        print(f"kept as the baseline of Python {version}")
        return 0
    slower = [name for name in costs if costs[name] > baseline.get(name, costs[name]) * TOLERATED_RATIO]
    unknown = [name for name in costs if name not in baseline]
    if unknown:
        cases = f" for {'; '.join(unknown)}" if baseline else ""
        print(f"no baseline of Python {version}{cases} yet: python -m benchmarks.instructions --keep creates it")
    if slower:
        print(f"more than {TOLERATED_RATIO - 1:.0%} slower: {'; '.join(slower)}")
    return 1 if slower or (baseline and unknown) else 0


def count(names: Sequence[str]) -> dict[str, float]:
    """Return the instructions per operation of cases."""
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-instructions-") as directory:
        outputs = [f"--cachegrind-out-file={directory}/%p.out", f"--log-file={directory}/%p.log"]
        tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", *outputs]
        script = f"from benchmarks import instructions; instructions.run_forks({list(names)!r})"
        done = subprocess.run(
            [*tool, sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        totals = [_total(Path(directory), pid) for pid in done.stdout.split()]
    lengths = zip(totals[0::2], totals[1::2], strict=True)
    counts = ((long - short) / (LONG_COUNT - SHORT_COUNT) for short, long in lengths)
    return dict(zip(names, counts, strict=True))


def run_forks(names: Sequence[str]) -> None:
    """Run each case at both lengths in a fork of this process, and print the process ids."""
    subjects.silence_log()
    for name in names:
        for length in (SHORT_COUNT, LONG_COUNT):
            pid = os.fork()
            if pid == 0:
                repeated = (CASES | REQUESTS | {UNIT: bare})[name]()
                gc.freeze()  # otherwise full collections depend on the number of imported objects
                gc.collect()
                repeated(length)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if status:
                raise RuntimeError(f"{name} ended with status {status}")
            print(pid, flush=True)


def _total(directory: Path, pid: str) -> int:
    output = directory / f"{pid}.out"
    found = re.search(r"^summary: (\d+)", output.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no summary in {output}")
    return int(found[1])


def hot(hit: Hit) -> Repeated:
    """Return hits on one key."""

    def run(count: int) -> None:
        for _ in repeat(None, count):
            hit(USER)

    return run


def many(hit: Hit) -> Repeated:
    """Return hits on many known keys in random order."""
    users = subjects.user_names(KEY_COUNT)
    random.Random(2).shuffle(users)
    for user in users:
        hit(user)

    def run(count: int) -> None:
        for _ in repeat(None, count // KEY_COUNT):
            for user in users:
                hit(user)

    return run


def cycles(pause_s: float, store: CounterStore | None = None) -> Repeated:
    """Return one hit on each of many keys, then a sync cycle, with a pause between two rounds."""
    moment = [FIXED_TIME_S]
    limiter = subjects.limiter(store=store, clock=_reading(moment))
    users = subjects.user_names(KEY_COUNT)

    def run(count: int) -> None:
        for _ in repeat(None, count // KEY_COUNT):
            for user in users:
                limiter.check(CLIENT_ID, user)
            moment[0] += pause_s
            limiter.sync()

    return run


def bare() -> Repeated:
    """Return the minimum in Python: look the key up, read the time, compare, count, answer, under a lock."""
    counters, lock = {USER: _Counter()}, threading.Lock()

    def check(user: str) -> tuple[_Counter, int, float]:
        now_s = time.time()
        lock.acquire()
        try:
            counter = counters[user]
            full = counter.full + 1
            if full <= counter.ceiling and now_s < counter.frame_end_s:
                counter.full = full
            return counter, full, now_s
        finally:
            lock.release()

    return hot(check)


class _Counter:
    __slots__ = ("ceiling", "frame_end_s", "full")

    def __init__(self) -> None:
        self.full = 0
        self.ceiling = NO_LIMIT
        self.frame_end_s = 1e12


def token_requests(subject: str) -> Repeated:
    """Return token requests, called directly, with metrics and quota headers and without sync cycles."""
    database = Path(tempfile.mkdtemp(prefix="oauth_ratelimit-instructions-"), "demo.sqlite3")
    seed(database)
    observer.HAS_SPANS = False  # another extra
    send = requests_to(application(subject, database, interval="1h"), "client_credentials")

    def run(count: int) -> None:
        for _ in repeat(None, count // REQUEST_PART):
            send()
        shutil.rmtree(database.parent)

    return run


def _ours(config: Mapping[str, Any] | None = None) -> Hit:
    return subjects.ours(config, clock=_reading([FIXED_TIME_S]))


def _reading(moment: list[float]) -> Callable[[], float]:
    """Return a clock that reads a list, so that no frame ends by chance and no Python function runs."""
    return partial(getitem, moment, 0)  # type: ignore[return-value]


CASES: Mapping[str, Callable[[], Repeated]] = {
    "ours": lambda: hot(_ours()),
    "ours, many keys": lambda: many(_ours()),
    "ours, denied": lambda: hot(_ours(settings_of(1))),
    **{
        f"ours, {name}": lambda config=VARIANTS[name]: hot(_ours(config))  # type: ignore[misc]
        for name in ("two tiers", "client_total", "override", "trusted", "proportional")
    },
    "ours, cycles": lambda: cycles(1.0),
    "ours, cycles of a frame": lambda: cycles(6.0),
    "ours, shared cycles": lambda: cycles(1.0, store=MemoryStore()),
}
"""Compared cases by name."""

REQUESTS = {f"token request, {subject}": partial(token_requests, subject) for subject in (BASE, OURS)}

if __name__ == "__main__":
    sys.exit(main())
