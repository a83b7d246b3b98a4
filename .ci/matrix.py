"""Tests what setup.cfg supports: versions of Python and of dependencies, and the wheel.

``python .ci/matrix.py [WORD...]`` runs the rows whose name contains one of the words; all take half an hour.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-matrix"
LOG = FOLDER / "failed.log"
EXTRAS = "otel,prometheus"
AUTHLIBS = ("1.6.12", "1.7.2", "1.8.0", "1.9.10")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ALL = ("-m", "not (cc or chaos or chromium or promtool or redis)")
NEWER = (  # two ways to read what is malformed, keys of Authlib 1.7, and pymongo's own random numbers
    "--deselect=tests/store/test_damaged_documents.py::test_any_document_leaves_the_keys_beside_it_exact",
    "--deselect=tests/background/test_worker.py::test_any_record_leaves_the_valid_ones_readable",
    "--deselect=tests/flask_authlib/test_reuse.py::test_an_assertion_may_differ_but_not_its_claims",
    "--deselect=tests/test_random_numbers.py::test_denials_and_cycles_leave_the_common_generator_as_it_is",
)
MONGOD = ("install", "--no-deps", "--require-hashes", "--requirement", ROOT / "requirements" / "mongod.txt")

Row = tuple[str, Callable[[], str]]


class Failed(Exception):
    """A command failed. Its output is in the log."""


def main(words: Sequence[str]) -> int:
    """Run the rows, print the table, and return 1 if a row failed, 2 if a word is in no row's name."""
    FOLDER.mkdir(exist_ok=True)
    table = dict(rows())
    unknown = [word for word in words if not any(word in name for name in table)]
    if unknown:
        print(f"no row is named {', '.join(unknown)}; the rows are {', '.join(table)}", file=sys.stderr)
        return 2
    has_failed = False
    for name, attempt in table.items():
        if words and not any(word in name for word in words):
            continue
        begun_s = time.monotonic()
        try:
            result = attempt()
        except Failed as exc:
            has_failed = True
            result = f"FAILED ({LOG.relative_to(ROOT)}): {exc}"
        print(f"{name:<22} {time.monotonic() - begun_s:>5.0f} s  {result.strip().splitlines()[-1]}", flush=True)
    return 1 if has_failed else 0


def rows() -> Iterator[Row]:
    """Yield all rows."""
    for version in PYTHONS:
        yield f"Python {version}", partial(attempt, version, ALL)
    lowest = run(sys.executable, ".ci/lowest.py", "--list").split()
    for authlib in AUTHLIBS:
        yield f"Authlib {authlib}", partial(run, sys.executable, ".ci/lowest.py", f"authlib=={authlib}")
    yield "lowest dependencies", partial(attempt, PYTHONS[0], (*ALL, *NEWER), pins=lowest)
    yield "wheel and demo", wheel


def attempt(version: str, tests: Sequence[str], *, pins: Sequence[str] = ()) -> str:
    """Run tests on a version of Python, with the newest version of every package without a pin."""
    program = interpreter(version)
    if program is None:
        return "left out: this Python is not installed"
    needed = ("--editable", f"{ROOT}[{EXTRAS}]", "--requirement", ROOT / "requirements" / "test.txt")
    python = environment(program, f"python{version}", *needed)
    run(python, "-m", "pip", "-qq", *MONGOD)
    env = {}
    if pins:
        overlay = FOLDER / "overlay"
        shutil.rmtree(overlay, ignore_errors=True)
        run(python, "-m", "pip", "-qq", "install", "--target", overlay, *pins)
        env["PYTHONPATH"] = str(overlay)
    output = run(python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *tests, env=env)
    authlib = run(python, "-c", "import authlib; print(authlib.__version__)", env=env).strip()
    return f"{output.strip().splitlines()[-1]}  (Authlib {authlib})"


def wheel() -> str:
    """Build and check the package, install it into an empty environment, and run the demo on it."""
    program = next(found for found in map(interpreter, reversed(PYTHONS)) if found)
    python = environment(program, "release", "build", "twine")
    dist = FOLDER / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(python, "-m", "build", "--outdir", dist, ROOT)
    files = sorted(dist.iterdir())
    run(python, "-m", "twine", "check", "--strict", *files)
    beside = FOLDER / "beside"  # the demo without the package's sources
    shutil.rmtree(beside, ignore_errors=True)
    for folder in ("demo", "testbed"):
        shutil.copytree(ROOT / folder, beside / folder)
    for file in files:
        shutil.rmtree(FOLDER / "installed", ignore_errors=True)
        needed = (file, "--requirement", ROOT / "requirements" / "demo.txt")
        fresh = environment(program, "installed", *needed)
        run(fresh, "-m", "pip", "-qq", *MONGOD)
        run(fresh, "-m", "demo", "--requests=1000", "--speed=500", cwd=beside)
    return f"{' and '.join(file.name for file in files)}: checked, installed, demo run on {Path(program).name}"


def interpreter(version: str) -> str | None:
    """Return a version of Python, from the PATH or from pyenv; None if it is not installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    installed = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for program in (shutil.which(f"python{version}"), *map(str, reversed(installed))):
        if program and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
            return program
    return None


def environment(program: str, name: str, *packages: str | Path) -> Path:
    """Return the Python of a virtual environment with these packages."""
    folder = FOLDER / name
    if not folder.exists():
        run(program, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "-qq", "install", "--upgrade", *packages)
    return python


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Return the output of a command.

    Raises:
        Failed: Its status is not 0.
    """
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        LOG.write_text(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        raise Failed([line for line in (done.stdout or done.stderr).splitlines() if line][-1])
    return done.stdout


sys.exit(main(sys.argv[1:]))
