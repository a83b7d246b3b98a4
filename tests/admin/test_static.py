"""What the page brings with it."""

import configparser
import re
from fnmatch import fnmatch
from pathlib import Path

import oauth_ratelimit.admin

FOLDER = Path(oauth_ratelimit.admin.__file__).parent
ROOT = FOLDER.parents[1]
SCRIPTS = sorted(path for path in FOLDER.rglob("*.js") if path.parent.name != "vendor")


def test_chart_library_is_the_one_that_is_named() -> None:
    """The version that the folder names is that of the file, and the licence is beside it."""
    vendor = FOLDER / "static" / "vendor"
    named = re.search(r"^# uPlot (\S+)$", (vendor / "README.md").read_text(), re.M)
    found = re.search(r"\(v([0-9.]+)\)", (vendor / "uPlot.esm.js").read_text()[:400])

    assert named and found
    assert found[1] == named[1]
    assert "MIT License" in (vendor / "uPlot.LICENSE").read_text()


def test_everything_is_in_the_package() -> None:
    """No file of the page is left out of the wheel."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.package_data"]["oauth_ratelimit.admin"].split()
    files = [
        path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    ]

    assert [] == [
        path
        for path in files
        if not any(fnmatch(str(path), p) and len(path.parts) == p.count("/") + 1 for p in patterns)
    ]


def test_scripts_make_no_markup() -> None:
    """No script makes elements or programs of text, whatever names may be in it."""
    assert len(SCRIPTS) > 5
    for path in SCRIPTS:
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "http:",
        ):
            assert forbidden not in path.read_text(), path.name
