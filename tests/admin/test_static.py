"""Files of the page."""

import re
from pathlib import Path

import pytest

import oauth_ratelimit.admin

FOLDER = Path(oauth_ratelimit.admin.__file__).parent
ROOT = FOLDER.parents[1]
STYLES = (FOLDER / "static" / "page.css").read_text()
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_lines_have_the_contrast_of_wcag(theme: str) -> None:
    light, dark = (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block)) for block in root_blocks())
    colours = light if theme == "light" else light | dark
    texts = [("text", "card"), ("text", "paper"), ("dim", "card"), ("dim", "paper"), ("dim", "sunken")]
    texts += [("accent", "card"), ("accent", "paper"), ("accent-text", "accent"), ("accent", "accent-soft")]
    texts += [("card", "bad"), ("bad", "card"), ("warn", "card"), ("text", "sunken")]
    texts += [(name, f"{name}-soft") for name in ("good", "warn", "bad")]
    texts += [("text", f"{name}-soft") for name in ("good", "warn", "bad", "accent")]
    lines = [(f"series-{name}", "card") for name in (*range(1, 8), "rest")]
    lines += [("bar", "card"), ("bar-warn", "sunken"), ("bar-bad", "sunken"), ("line-strong", "card")]
    found = {pair: contrast(*(colours[name] for name in pair)) for pair in [*texts, *lines]}

    assert (theme == "dark") == (luminance(colours["paper"]) < 0.2)
    assert {} == {pair: ratio for pair, ratio in found.items() if ratio < (4.5 if pair in texts else 3.0)}


def root_blocks() -> tuple[str, str]:
    """Return the colours of the light theme, and those that the dark one changes."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLES, re.S)
    return light, dark


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
