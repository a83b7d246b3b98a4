"""The wheel and the source distribution: contents, metadata, and an installation of the wheel elsewhere."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import oauth_ratelimit

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SOURCES = (
    *(".ci", ".github", "benchmarks", "config", "demo", "docs", "examples"),
    *("migrations", "oauth_ratelimit", "requirements", "tests"),
)
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*cache")


def run(folder: Path, *arguments: str) -> str:
    """Run Python in a folder, without this tree in its path, and return what it printed."""
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


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """Metadata of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def files_of(folder: str, *, as_folder: str) -> set[str]:
    """Return the files of a folder of this tree, as they are to be named in a wheel."""
    found = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file())
    kept = (path for path in found if not any(part.startswith((".", "__pycache__")) for part in path.parts))
    return {f"{as_folder}/{path.as_posix()}" for path in kept}


def test_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """The wheel has every file of the package, data included, and nothing else. Licences are in its metadata only."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".dist-info/licenses/")[2] or name for name in archive.namelist()}
        assert len(names) == len(archive.namelist())
    names = {name for name in names if ".dist-info/" not in name}
    package = files_of("oauth_ratelimit", as_folder="oauth_ratelimit")
    migrations = files_of("migrations", as_folder="oauth_ratelimit/migrations")
    assert {"oauth_ratelimit/py.typed", "oauth_ratelimit/config.schema.json"} <= package
    assert package | migrations | {"pytest_oauth_ratelimit.py", "LICENSE"} == names


def test_source_distribution_has_the_whole_project(built: Path) -> None:
    """The archive has the whole project: it can be tested and built there, too."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", ".editorconfig"} <= names
    tree = built.parent
    files = {path for folder in SOURCES for path in (tree / folder).rglob("*") if path.is_file()}
    assert set() == {path.relative_to(tree).as_posix() for path in files} - names


def test_metadata_names_licence_python_and_extras(metadata: Message) -> None:
    """The metadata names the licence, the versions of Python and the extras for users, and holds the README."""
    assert "MIT" == metadata["License-Expression"]
    assert oauth_ratelimit.__version__ == metadata["Version"]
    assert {"LICENSE", "oauth_ratelimit/admin/static/vendor/uPlot.LICENSE"} == set(metadata.get_all("License-File", []))
    assert ">=3.11" == metadata["Requires-Python"]
    assert "text/markdown" == metadata["Description-Content-Type"]
    assert {"charts", "cli", "otel", "prometheus"} == set(metadata.get_all("Provides-Extra", []))
    assert str(metadata.get_payload()).strip().startswith("# oauth_ratelimit")


def test_installed_package_finds_its_files_and_entry_points(wheel: Path, tmp_path: Path) -> None:
    """The installed package has its migrations, its schema, its commands and its plugin for pytest."""
    run(tmp_path, "-m", "pip", "-qq", "install", "--no-deps", "--no-index", "--target", "site", str(wheel))
    (tmp_path / "look.py").write_text(
        "import sys; sys.path.insert(0, 'site')\n"
        "import oauth_ratelimit, pytest_oauth_ratelimit\n"
        "from importlib.metadata import distribution\n"
        "from importlib.resources import files\n"
        "from oauth_ratelimit.store.mongo.migrations import load_migrations\n"
        "root = files('oauth_ratelimit')\n"
        "assert str(root).endswith('/site/oauth_ratelimit'), root\n"
        "modules = load_migrations()\n"
        "assert ['0001_indexes', '0002_minutes', '0003_failures'] == list(modules)\n"
        "assert all('/site/oauth_ratelimit/migrations/' in module.__file__ for module in modules.values())\n"
        "assert root.joinpath('config.schema.json').is_file()\n"
        "points = {point.group: point.load() for point in distribution('oauth_ratelimit').entry_points}\n"
        "print(sorted(points))\n"
    )
    assert "['flask.commands', 'pytest11']\n" == run(tmp_path, "look.py")
