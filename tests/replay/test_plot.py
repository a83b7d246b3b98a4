"""Charts as files."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from oauth_ratelimit.replay.plot import STROKES, NoCharts, draw
from oauth_ratelimit.replay.run import Contender
from tests.replay.test_chart_data import example_data


def test_svg_names_axes_lines_and_limit(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    draw(example_data(), path)
    text = path.read_text()
    words = {word.strip() for node in ElementTree.fromstring(text).iter() for word in (node.text or "",)}
    assert {"requests per 60 s", "limit 10", "exact", "fixed window", "sliding, k = 10", "proportional, k = 1"} <= words
    assert any(word.startswith("minutes since 2023-11-14") for word in words)
    assert len(text) < 200_000


def test_lines_are_where_the_data_is(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    draw(example_data(), path)
    panel = path.read_text().split('id="axes_1"')[1].split('id="axes_2"')[0]
    heights = {}
    for colour in ("#777777", "#d55e00"):
        drawn = next(line for line in re.findall(r"<path d=\"([^\"]+)\"[^>]*?stroke: " + colour, panel) if "L" in line)
        heights[colour] = [float(y) for y in re.findall(r"[ML] [0-9.]+ ([0-9.]+)", drawn)]
    zero, top, limit = max(heights["#777777"]), min(heights["#777777"]), heights["#d55e00"][0]
    assert 17 / 10 == pytest.approx((zero - top) / (zero - limit), rel=0.01)
    below = path.read_text().split('id="axes_2"')[1]
    strokes = [colour.lower() for colour, _ in STROKES[: len(example_data().admitted)]]
    assert [1, *[2] * 4, 1] == [(f"stroke: {colour}" in panel) + (f"stroke: {colour}" in below) for colour in strokes]
    assert f"stroke: {strokes[0]}" in below  # the fixed window has no estimate


def test_same_data_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(example_data(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_suffix_decides_the_format(tmp_path: Path) -> None:
    draw(example_data(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_no_more_lines_than_can_be_told_apart(tmp_path: Path) -> None:
    contenders = [Contender("sliding", count) for count in (1, 2, 3, 4, 5, 6, 10, 12)]
    data = example_data(contenders=contenders)
    draw(data, tmp_path / "picture.svg")
    assert 6 == len(data.admitted)


def test_error_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoCharts, match=r"oauth_ratelimit\[charts\]"):
        draw(example_data(), tmp_path / "picture.svg")
