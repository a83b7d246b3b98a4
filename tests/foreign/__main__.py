"""Checks that real servers of others are limited as configured: ``python -m tests.foreign``.

Each is installed from the package index into ``.venv-foreign``, with this package, and runs there: two minutes, and the
index must be reachable. It is no part of ``make test``.

``--sources DIR`` names a folder with the checkouts ``canaille`` (https://github.com/yaal-coop/canaille, at the tag of
the installed version) and ``example-oauth2-server`` (https://github.com/authlib/example-oauth2-server). Then that
server is checked, too, and Canaille's own OIDC tests run without limits and with them.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".venv-foreign"
PYTHON = FOLDER / "bin" / "python"
CANAILLE = "canaille[captcha,fido,front,oidc,otp,scim,server,sms]"
EXAMPLE = ("authlib", "flask", "flask-sqlalchemy")
TESTED_WITH = ("authlib", "pytest-", "scim2-")  # of the versions that its tests are locked to, those that matter
TOOLS = """
    babel beautifulsoup4 faker flask-webtest portpicker pyquery pytest pytest-httpserver pytest-lazy-fixtures
    pytest-scim2-server pytest-smtpd scim2-tester setuptools<=81 time-machine
"""


def main() -> int:
    """Return the exit code: 1 if a server is not limited as configured, or its own tests notice the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="folder with the checkouts")
    sources = parser.parse_args().sources
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    install("canaille[oidc]")
    is_valid = limits("protected_canaille.py", "canaille[oidc]")
    if sources is not None:
        install(*EXAMPLE)
        is_valid &= limits("protected_example.py", "example-oauth2-server", sources / "example-oauth2-server")
        is_valid &= passes_as_without(sources / "canaille")
    return int(not is_valid)


def install(*packages: str, constraints: Sequence[str] = ()) -> None:
    pins = FOLDER / "constraints.txt"
    pins.write_text("\n".join(constraints))
    arguments = ("-m", "pip", "install", "-qq", "--upgrade", "-c", pins, *packages, "--editable", ROOT)
    subprocess.run([PYTHON, *arguments], check=True)


def limits(script: str, name: str, folder: Path = ROOT) -> bool:
    """Run a script that protects a server and asks it for tokens. Return whether it saw the limits."""
    done = run([HERE / script], folder)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or [""]
    sys.stdout.write(f"{name}: {lines[-1]}\n")
    return done.returncode == 0


def passes_as_without(folder: Path) -> bool:
    """Run Canaille's own OIDC tests without limits and with them. Return whether as many pass."""
    locked = tomllib.loads((folder / "uv.lock").read_text())["package"]
    pins = [f"{each['name']}=={each['version']}" for each in locked if each["name"].startswith(TESTED_WITH)]
    install(CANAILLE, *TOOLS.split(), constraints=pins)
    words = ("-m", "pytest", "-p", "limited_canaille", "-q", "-p", "no:cacheprovider", "tests/oidc")
    outcomes = []
    for limited in ("", "1"):
        done = run(words, folder, LIMITED=limited)
        outcomes.append(re.sub(" in [0-9.]+s.*", "", (done.stdout.strip().splitlines() or [done.stderr])[-1]))
        sys.stdout.write(f"canaille's tests {'with' if limited else 'without'} limits: {outcomes[-1]}\n")
    return outcomes[0] == outcomes[1] and "passed" in outcomes[0]


def run(words: Sequence[str | Path], folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    paths = os.pathsep.join([str(folder), str(HERE)])
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths, **variables}
    return subprocess.run([PYTHON, *words], env=env, cwd=folder, capture_output=True, text=True, check=False)


sys.exit(main())
