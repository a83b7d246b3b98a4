"""Tests the lowest version that setup.cfg allows of each dependency, at the edge to Flask and Authlib.

They are installed into .venv/oldest. ``PYTHONPATH`` puts that before .venv, so that no second environment is needed.
``--list`` prints one pin per line instead, and ``--list --ours`` only those of what the server does not choose itself.
With ``authlib==1.7.2`` as the argument, that version replaces the lowest one.
"""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = ROOT / ".venv" / "oldest"
INSTALL = ("pip", "install", "-qq", "--disable-pip-version-check", "--no-compile", "--no-warn-conflicts", "--target")
OF_THE_SERVER = ("authlib==", "flask==", "pymongo==")  # which its own lock file chooses
NEWER = "--deselect=tests/flask_authlib/test_reuse.py::test_an_assertion_may_differ_but_not_its_claims"  # keys of 1.7
TESTS = ("tests/flask_authlib", "tests/guard", "-m", "not slow", NEWER)


def main(*options: str) -> int:
    """Return the exit code: that of pytest, 0 with ``--list``."""
    given = [option for option in options if "==" in option]
    pins = [pin for pin in lowest() if pin.partition("==")[0] not in {pin.partition("==")[0] for pin in given}] + given
    if "--list" in options:
        print(*(pin for pin in pins if "--ours" not in options or not pin.startswith(OF_THE_SERVER)), sep="\n")
        return 0
    done = OLDEST / "installed.txt"
    if not done.is_file() or done.read_text().splitlines() != pins:
        shutil.rmtree(OLDEST, ignore_errors=True)
        subprocess.run([sys.executable, "-m", *INSTALL, OLDEST, *pins], check=True)
        done.write_text("\n".join(pins))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(OLDEST)}, check=False).returncode


def lowest() -> list[str]:
    """Return a pin for each dependency with a lower bound, and for what the extra ``prometheus`` needs."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    allowed = f"{setup['options']['install_requires']}\n{setup['options.extras_require']['prometheus']}"
    found = (re.match(r"([\w.-]+)>=([\w.]+)", line) for line in allowed.splitlines())
    return [f"{pin[1]}=={pin[2]}" for pin in found if pin]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
