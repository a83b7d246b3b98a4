"""
Instructions per operation, counted by valgrind: the same on a busy machine as on an idle one.

One process imports everything once; each case runs in a fork of it, at two lengths, so that the difference is the
operations alone.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cases import CASES, Repeated
from benchmarks.subjects import silence

SHORT_COUNT, LONG_COUNT = 2_000, 7_000
OPERATIONS_PER_REQUEST = 40  # a token request counts for as many: it is worth hundreds of decisions


def is_available() -> bool:
    """
    Return whether valgrind is installed.
    """
    return shutil.which("valgrind") is not None


def count(names: Sequence[str]) -> dict[str, float]:
    """
    Return the instructions per operation of cases of ``benchmarks.cases``, ``.peers`` and ``.endpoint``.
    """
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-instructions-") as directory:
        forks = subprocess.run(
            [*tool(Path(directory)), sys.executable, "-m", __name__, *names],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.splitlines()
        totals = [total(Path(directory), int(pid)) for pid in forks]
    short, long = totals[0::2], totals[1::2]
    return {name: (long[i] - short[i]) / (LONG_COUNT - SHORT_COUNT) for i, name in enumerate(names)}


def tool(directory: Path) -> list[str]:
    """
    Return what, put before a command, counts the instructions of its processes, and writes them to a directory.
    """
    outputs = [f"--cachegrind-out-file={directory}/%p.out", f"--log-file={directory}/%p.log"]
    return ["valgrind", "--tool=cachegrind", "--cache-sim=no", *outputs]


def total(directory: Path, pid: int) -> int:
    """
    Return what was counted of a process that has ended.
    """
    output = directory / f"{pid}.out"
    found = re.search(r"^summary: (\d+)", output.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no summary in {output}")
    return int(found[1])


def _run_in_fork(case: Callable[[], Repeated], operation_count: int) -> None:
    pid = os.fork()
    if pid == 0:
        case()(operation_count)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{case} ended with status {status}")
    print(pid, flush=True)


def _main(names: Sequence[str]) -> None:
    known = dict(CASES)
    for module in ("benchmarks.endpoint", "benchmarks.peers"):  # only if need be, so that peers need not be installed
        if not known.keys() >= set(names):
            known |= importlib.import_module(module).CASES
    silence()
    for name in names:
        for length in (SHORT_COUNT, LONG_COUNT):
            _run_in_fork(known[name], length)


if __name__ == "__main__":
    _main(sys.argv[1:])
