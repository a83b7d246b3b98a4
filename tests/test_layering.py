"""Imports point one way. ``make lint`` checks the contracts; here they are checked to find what they forbid."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "oauth_ratelimit"
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
WRONG = {
    "core/window.py": "import time",
    "core/key.py": "from oauth_ratelimit.store.memory import MemoryStore",
    "sync/flusher.py": "import pymongo\nfrom oauth_ratelimit.limiter import Limiter",
    "guard.py": "import bson",
    "observe/denials.py": "import pymongo",
    "limiter.py": "import flask",
    "observe/events.py": "import werkzeug",
}


@pytest.mark.slow
def test_import_the_wrong_way_is_found(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    for module, lines in WRONG.items():
        path = tmp_path / PACKAGE.name / module
        path.write_text(f"{path.read_text()}\n{lines}\n")
    linted = subprocess.run(
        [sys.executable, "-c", LINT, "--config", "setup.cfg", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert 0 != linted.returncode
    found = set(re.findall(r"oauth_ratelimit\.([\w.]+) -> ([\w.]+) \(l\.", linted.stdout))
    assert found >= {
        ("core.window", "time"),
        ("core.key", "oauth_ratelimit.store.memory"),
        ("sync.flusher", "pymongo"),
        ("sync.flusher", "oauth_ratelimit.limiter"),
        ("guard", "bson"),
        ("observe.denials", "pymongo"),
        ("limiter", "flask"),
        ("observe.events", "werkzeug"),
    }


def test_every_module_has_its_layer() -> None:
    """None stands outside the contracts by having been forgotten."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / "setup.cfg")
    layers = contracts["importlinter:contract:layers"]["layers"].replace("|", " ").split()
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__"} == {layer.removeprefix("oauth_ratelimit.") for layer in layers}
