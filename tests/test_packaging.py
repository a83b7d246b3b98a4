"""The wheel and the source distribution: contents, metadata, and an installation of the wheel elsewhere."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

import oauth_ratelimit

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SOURCES = (
    *(".ci", ".github", "benchmarks", "config", "demo", "docs", "examples", "testbed"),
    *("migrations", "oauth_ratelimit", "requirements", "tests"),
)
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*cache")


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=180, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built from that."""
    tree = tmp_path_factory.mktemp("tree")
    for path in ROOT.iterdir():
        if path.name in SOURCES:
            shutil.copytree(path, tree / path.name, ignore=IGNORED)
        elif path.is_file():
            shutil.copy(path, tree)
    run(tree, "-m", "build", "--no-isolation", "--outdir", "dist")
    return tree / "dist"


@pytest.fixture
def installed(built: Path, tmp_path: Path) -> Path:
    """A folder with nothing but the wheel, installed in ``site``."""
    (wheel,) = built.glob("*.whl")
    run(tmp_path, "-m", "pip", "-qq", "install", "--no-deps", "--no-index", "--target", "site", str(wheel))
    return tmp_path


def files_of(folder: str, *, as_folder: str) -> set[str]:
    """Return the files of a folder of this tree, as they are to be named in a wheel."""
    found = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file())
    kept = (path for path in found if not any(part.startswith((".", "__pycache__")) for part in path.parts))
    return {f"{as_folder}/{path.as_posix()}" for path in kept}


def test_wheel_has_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = [name.partition(".dist-info/licenses/")[2] or name for name in archive.namelist()]
    package = files_of("oauth_ratelimit", as_folder="oauth_ratelimit")
    migrations = files_of("migrations", as_folder="oauth_ratelimit/migrations")
    assert {"oauth_ratelimit/py.typed", "oauth_ratelimit/config.schema.json"} <= package
    expected = package | migrations | {"pytest_oauth_ratelimit.py", "LICENSE"}
    assert sorted(expected) == sorted(name for name in files if ".dist-info/" not in name)


def test_source_distribution_has_the_whole_project(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", ".editorconfig"} <= names
    tree = built.parent
    files = {path for folder in SOURCES for path in (tree / folder).rglob("*") if path.is_file()}
    assert set() == {path.relative_to(tree).as_posix() for path in files} - names


def test_metadata_names_licence_python_and_extras(installed: Path) -> None:
    (package,) = distributions(path=[str(installed / "site")])
    metadata = package.metadata
    assert ("MIT", oauth_ratelimit.__version__, ">=3.11", "text/markdown") == tuple(
        metadata[name] for name in ("License-Expression", "Version", "Requires-Python", "Description-Content-Type")
    )
    assert {"LICENSE", "oauth_ratelimit/admin/static/vendor/uPlot.LICENSE"} == set(metadata.get_all("License-File", []))
    assert {"otel", "prometheus"} == set(metadata.get_all("Provides-Extra", []))
    assert str(metadata.get_payload()).strip().startswith("# oauth_ratelimit")
    assert {"flask.commands", "pytest11"} == {point.group for point in package.entry_points}


def test_installed_package_prepares_a_database(installed: Path, mongo_uri: str) -> None:
    """Elsewhere, with the package's own migrations and schema."""
    look = (
        "import sys; sys.path.insert(0, 'site')\n"
        "from importlib.metadata import distribution\n"
        "points = {point.group: point.load() for point in distribution('oauth_ratelimit').entry_points}\n"
        "assert '/site/oauth_ratelimit/' in sys.modules['oauth_ratelimit'].__file__\n"
        "points['flask.commands'](sys.argv[1:])\n"
    )
    (installed / "limits.yaml").write_text("{}")
    prepared = run(installed, "-c", look, "--config", "limits.yaml", "--mongo-uri", mongo_uri, "init-db")
    assert [path.stem for path in sorted((ROOT / "migrations").glob("0*.py"))] == re.findall(r"\d{4}_\w+", prepared)
    assert "$defs" in json.loads(run(installed, "-c", look, "check-config", "--schema"))
