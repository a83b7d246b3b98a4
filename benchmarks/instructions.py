"""Instructions per operation, counted by valgrind: the same on a busy machine as on an idle one.

One process imports everything once; each case runs in a fork of it, at two lengths, so that the difference is the
operations alone.

Not quite the same in each process: CPython caches where a type finds an attribute, and which of them share a place in
the cache is up to addresses and to the order in which types are made. Of what we add to a token request, that decides
several percent. See ``lay_out``.
"""

import functools
import gc
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.cases import CASES, Repeated
from benchmarks.subjects import suppression

SHORT_COUNT, LONG_COUNT = 2_000, 7_000
REQUEST = "request, "  # how the names of cases begin that are token requests
OPERATIONS_PER_REQUEST = 100  # a token request counts for as many: it is worth hundreds of decisions
IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def is_available() -> bool:
    """Return whether valgrind is installed."""
    return shutil.which("valgrind") is not None


def count(names: Sequence[str]) -> dict[str, float]:
    """Return the instructions per operation of cases of ``benchmarks.cases``, ``.peers`` and ``.endpoint``."""
    return {name: counts[0] for name, counts in count_by_layout(dict.fromkeys(names, 1)).items()}


def count_by_layout(layout_counts: Mapping[str, int]) -> dict[str, list[float]]:
    """Return the same by case, for each case in as many layouts as are asked for, see ``lay_out``."""
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-instructions-") as directory:
        forks = subprocess.run(
            [*tool(Path(directory)), sys.executable, "-m", __name__, json.dumps(layout_counts)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.splitlines()
        totals = [total(Path(directory), int(pid)) for pid in forks]
    short, long = totals[0::2], totals[1::2]
    counts = ((more - few) / (LONG_COUNT - SHORT_COUNT) for few, more in zip(short, long, strict=True))
    return {name: [next(counts) for _ in range(layout_count)] for name, layout_count in layout_counts.items()}


def lay_out(layout: int) -> None:
    """Give this process's types other places in the interpreter's cache of attributes, one of many at random."""
    for each in _changeable_types():
        type.__setattr__(each, "_laid_out", layout)  # a changed type loses its place, as do those derived from it,
        type.__delattr__(each, "_laid_out")
    for each in _order(layout):
        type.__getattribute__(each, "__init__")  # and gets the next one when something is looked up in it


def settle() -> None:
    """Have the garbage collector leave alone what is there, and forget how much that is: or how often it looks at
    everything, which counts for as much as what is measured, would depend on what was imported.
    """
    gc.freeze()
    gc.collect()


def _order(layout: int) -> list[type]:
    types = _changeable_types()
    return random.Random(layout).sample(types, len(types))


@functools.cache
def _changeable_types() -> list[type]:
    types = (each for each in gc.get_objects() if isinstance(each, type) and not each.__flags__ & IMMUTABLE_TYPE)
    return [each for each in types if type(each).__setattr__ is type.__setattr__]  # some refuse to be changed otherwise


def tool(directory: Path) -> list[str]:
    """Return what, put before a command, counts the instructions of its processes, and writes them to a directory."""
    outputs = [f"--cachegrind-out-file={directory}/%p.out", f"--log-file={directory}/%p.log"]
    return ["valgrind", "--tool=cachegrind", "--cache-sim=no", *outputs]


def total(directory: Path, pid: int) -> int:
    """Return what was counted of a process that has ended."""
    output = directory / f"{pid}.out"
    found = re.search(r"^summary: (\d+)", output.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no summary in {output}")
    return int(found[1])


def _run_in_fork(case: Callable[[], Repeated], operation_count: int, *, layout: int) -> None:
    pid = os.fork()
    if pid == 0:
        lay_out(layout)
        repeated = case()
        settle()
        repeated(operation_count)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{case} ended with status {status}")
    print(pid, flush=True)


def _main(layout_counts: Mapping[str, int]) -> None:
    known = dict(CASES)
    if any(name.startswith(REQUEST) for name in layout_counts):
        known |= importlib.import_module("benchmarks.endpoint").CASES
    if not known.keys() >= layout_counts.keys():  # only then, so that they need not be installed
        known |= importlib.import_module("benchmarks.peers").CASES
    suppression()
    _changeable_types()  # looked for once, before the forks
    for name, layout_count in layout_counts.items():
        for layout in range(layout_count):
            for length in (SHORT_COUNT, LONG_COUNT):
                _run_in_fork(known[name], length, layout=layout)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
