"""Check that the tests notice when the package is broken: ``python -m tests.breakages``.

Each breakage in ``breakages.txt`` is a mistake that a user would notice. It is made in a copy of the repository, and
the tests that should catch it run there; each processor has a copy::

    python -m tests.breakages                        # all of them: half an hour on two cores
    python -m tests.breakages "reply was lost" erase # those whose name contains one of the texts
    python -m tests.breakages --table                # count anew in breakages.md: about ten minutes

The exit code is 1 if a breakage survives. The tests must pass without a breakage, or they catch everything; one in
``test_breakages.py`` checks that each old text is found exactly once. When code moves, change the file and the texts.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import NamedTuple

from tests.simulation.history import SEEDS, STEPS

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".fuzz", ".*_cache", "__pycache__", "*.egg-info")
TIMEOUT_S = 600.0  # per breakage; a test that hangs has not caught anything
BY_CONTENT = PycInvalidationMode.CHECKED_HASH  # a breakage may change neither the size of a file nor its second
TESTS_FAILED = 1  # exit code of pytest; the others mean that the tests could not run


class Breakage(NamedTuple):
    """A deliberate mistake."""

    name: str  # in plain words
    file: str  # relative to the repository
    old: str  # occurs exactly once in the file
    new: str
    tests: str  # paths that should catch it, the quickest first, separated by spaces


def read_breakages(text: str) -> tuple[Breakage, ...]:
    """Return the breakages in a text.

    A ``file:`` line is for all that follow, and so is a ``tests:`` line. Each breakage is a name, then lines with ``-``
    that are replaced by those with ``+``.
    """
    file = tests = name = ""
    old: list[str] = []
    new: list[str] = []
    found = []
    for line in [*filter(None, text.splitlines()), "file: "]:
        if new and line[0] != "+":
            found.append(Breakage(name, file, "\n".join(old), "\n".join(new), tests))
            old, new = [], []
        match line.partition(" "):
            case "file:", _, file:
                pass
            case "tests:", _, tests:
                pass
            case "-", _, part:
                old.append(part)
            case "+", _, part:
                new.append(part)
            case _:
                name = line
    return tuple(found)


BREAKAGES = read_breakages(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))


@contextmanager
def broken(copy: Path, breakage: Breakage) -> Iterator[None]:
    """Break a copy of the repository in the block."""
    path = copy / breakage.file
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace(breakage.old, breakage.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(content, encoding="utf-8")


def run(copy: Path, *command: str) -> tuple[int, list[str]]:
    """Run a module of Python in a copy of the repository, and return its exit code and its lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then stops the servers it has started
        output, _ = process.communicate()
    return process.returncode, output.splitlines() or [""]


def outcome(copy: Path, breakage: Breakage) -> str:
    """Run the tests of a breakage, and return ``caught`` with what failed, or what went wrong."""
    options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not chromium", "--tb=no", "--hypothesis-profile=unshrunk")
    with broken(copy, breakage):
        code, lines = run(copy, "pytest", *options, *breakage.tests.split())
    if code != TESTS_FAILED:
        return f"NOT CAUGHT: {lines[-1]}"
    failed = next(line for line in lines if line.startswith(("FAILED", "ERROR")))
    return f"caught by {failed.partition(' - ')[0].partition(' ')[2]}"


def change_table(copy: Path) -> None:
    """Count the histories of the simulation that notice each rule in the table of ``breakages.md``."""
    page = PAGE.read_text(encoding="utf-8")
    for breakage in BREAKAGES:
        former = next((line for line in page.splitlines() if line.startswith(f"| {breakage.name} |")), None)
        if former is None:
            continue
        with broken(copy, breakage):
            _, lines = run(copy, "tests.simulation", "--count", "--seed", "0", "--steps", str(SEEDS * STEPS))
        tests = ", ".join(f"`{path}`" for path in breakage.tests.split())
        page = page.replace(former, f"| {breakage.name} | {int(lines[-1])} | {tests} |")
        PAGE.write_text(page, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Try the breakages whose name contains one of the arguments, all of them if there is none."""
    is_table = arguments == ["--table"]
    with tempfile.TemporaryDirectory(prefix="breakages-") as directory:
        copies = [Path(directory, f"{number}") for number in range(1 if is_table else os.cpu_count() or 1)]
        for copy in copies:
            shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_COPIED)
            compile_dir(copy, quiet=2, invalidation_mode=BY_CONTENT)
        if is_table:
            change_table(copies[0])
            return 0
        return 0 if are_caught(copies, [part.lower() for part in arguments]) else 1


def are_caught(copies: Sequence[Path], parts: Sequence[str]) -> bool:
    """Try breakages, print what catches each, and return whether all of them are caught."""
    chosen = [each for each in BREAKAGES if not parts or any(part in each.name.lower() for part in parts)]
    free = SimpleQueue[Path]()
    for copy in copies:
        free.put(copy)

    def is_caught(breakage: Breakage) -> bool:
        copy, begun_s = free.get(), time.monotonic()
        found = outcome(copy, breakage)
        free.put(copy)
        print(f"{breakage.name}: {found} ({time.monotonic() - begun_s:.0f} s)", flush=True)  # noqa: T201
        return not found.startswith("NOT")

    with ThreadPoolExecutor(len(copies)) as pool:
        caught_count = sum(pool.map(is_caught, chosen))
    print(f"{caught_count} of {len(chosen)} breakages caught")  # noqa: T201
    return 0 < caught_count == len(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
