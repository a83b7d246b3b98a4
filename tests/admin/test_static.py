"""Files of the page."""

import configparser
import re
from fnmatch import fnmatch
from pathlib import Path

import oauth_ratelimit.admin

FOLDER = Path(oauth_ratelimit.admin.__file__).parent
ROOT = FOLDER.parents[1]
SCRIPTS = sorted(path for path in FOLDER.rglob("*.js") if path.parent.name != "vendor")


def test_chart_library_has_the_documented_version_and_its_licence() -> None:
    vendor = FOLDER / "static" / "vendor"
    named = re.search(r"^# uPlot (\S+)$", (vendor / "README.md").read_text(), re.M)
    found = re.search(r"\(v([0-9.]+)\)", (vendor / "uPlot.esm.js").read_text()[:400])

    assert named and found
    assert found[1] == named[1]
    assert "MIT License" in (vendor / "uPlot.LICENSE").read_text()


def test_package_data_has_every_file() -> None:
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


def test_scripts_never_create_elements_or_code_from_text() -> None:
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
