"""Drawn pictures follow the light and dark of the site's own switch."""

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

DRAWN = sorted((ROOT / "docs").rglob("*.svg"))
STYLE = (ROOT / "docs" / "_static" / "site.css").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_picture_leaves_light_and_dark_to_the_page(path: Path) -> None:
    assert "prefers-color-scheme" not in path.read_text(encoding="utf-8")


def test_page_darkens_pictures_by_switch_and_by_system() -> None:
    switched = 'body[data-theme="dark"] article img[src$=".svg"] { filter: invert('
    by_system = 'body:not([data-theme="light"]) article img[src$=".svg"] { filter: invert('
    assert switched in STYLE and by_system in STYLE
