"""Checks that real servers of others are limited as configured: ``python -m tests.foreign``.

Each is installed from the package index into ``.venv-foreign``, with this package, and runs there: two minutes, and the
index must be reachable. It is no part of ``make test``.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".venv-foreign"
SERVERS = {"protected_canaille.py": "canaille[oidc]"}  # script, and what it needs


def main() -> int:
    """Return the exit code: 1 if a server is not limited as configured."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    failed = False
    for script, package in SERVERS.items():
        install = ("-m", "pip", "install", "-qq", "--upgrade", package, "--editable", ROOT)
        subprocess.run([python, *install], check=True)
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run([python, HERE / script], env=env, capture_output=True, text=True, check=False)
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or [""]
        sys.stdout.write(f"{package}: {lines[-1]}\n")
        failed |= done.returncode != 0
    return int(failed)


sys.exit(main())
