"""Files of the page."""

import re
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
