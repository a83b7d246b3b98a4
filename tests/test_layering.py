"""Imports point one way."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "oauth_ratelimit"
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts in ``setup.cfg`` on the package in a folder."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", "setup.cfg", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package and its contracts."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


def test_contracts() -> None:
    """Every contract is kept."""
    linted = lint(ROOT)
    assert 0 == linted.returncode, linted.stdout
    assert "0 broken" in linted.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    (
        ("core/window.py", "import time", "The core is arithmetic"),
        ("core/key.py", "from oauth_ratelimit.store.memory import MemoryStore", "Imports point one way"),
        ("sync/flusher.py", "from oauth_ratelimit.limiter import Limiter", "Imports point one way"),
        ("sync/flusher.py", "import pymongo", "Only store.mongo talks to MongoDB"),
        ("guard.py", "import bson", "Only store.mongo talks to MongoDB"),
        ("observe/denials.py", "import pymongo", "Only store.mongo talks to MongoDB"),
        ("limiter.py", "import flask", "Flask and Authlib stay in flask_authlib, cli, admin and blueprints"),
        ("observe/events.py", "import werkzeug", "Flask and Authlib stay in flask_authlib, cli, admin and blueprints"),
    ),
    ids=(
        "clock in the core",
        "core on store",
        "sync on limiter",
        "database in sync",
        "database in the guard",
        "database in what observes",
        "web in the limiter",
        "web in what observes",
    ),
)
def test_import_the_wrong_way(copy: Path, module: str, line: str, contract: str) -> None:
    """One wrong import breaks the contract that forbids it."""
    path = copy / PACKAGE.name / module
    path.write_text(path.read_text() + f"\n{line}\n")
    linted = lint(copy)
    assert 0 != linted.returncode
    assert f"{contract} BROKEN" in linted.stdout


def test_every_module_has_its_layer() -> None:
    """None stands outside the contracts by having been forgotten."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / "setup.cfg")
    layers = contracts["importlinter:contract:layers"]["layers"].replace("|", " ").split()
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__"} == {layer.removeprefix("oauth_ratelimit.") for layer in layers}
