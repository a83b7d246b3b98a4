"""Pictures show what happened."""

import builtins
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.replay.formats import Row
from oauth_ratelimit.replay.plot import STROKES, NoCharts, draw
from oauth_ratelimit.replay.run import COMMON, Contender, Rate, Replay
from oauth_ratelimit.replay.scene import STRETCH_WINDOWS, Busiest, Scene, Stretch, build_scene

SECOND = 1_000_000
RATE = Rate(10, 60)
STRETCH_S = STRETCH_WINDOWS * 60
BEGIN_S = 1_700_000_000 // STRETCH_S * STRETCH_S
CONTENDERS = [Contender(name) for name in COMMON] + [Contender(one.value, k) for one in Estimator for k in (1, 10)]


def rows_of(client: str, *times_s: float) -> list[Row]:
    """Return a client's rows, at seconds since the beginning."""
    return [Row(round((BEGIN_S + at_s) * SECOND), client) for at_s in times_s]


# Twelve in the last quarter of a minute, five in the first quarter of the next: the worked example.
EXAMPLE = rows_of("a", *(105 + n for n in range(12)), *(120 + 3 * n for n in range(5)))


def a_scene(rows: Sequence[Row] = EXAMPLE, contenders: Sequence[Contender] = CONTENDERS) -> Scene:
    """Return what is to be seen of the first client."""
    stretch = Stretch(("a", None), BEGIN_S * SECOND, (BEGIN_S + STRETCH_S) * SECOND)
    return build_scene([rows], stretch, RATE, contenders=contenders)


def at(scene: Scene, label: str, second: float, *, lines: str = "estimates") -> float:
    """Return the value of a line at a second since the beginning."""
    index = scene.moments_us.index(round((BEGIN_S + second) * SECOND))
    return next(line.values[index] for line in getattr(scene, lines) if line.label == label)


def test_worked_example() -> None:
    """A quarter into the minute, with 12 hits before it and 5 in it, estimates are those of the worked example."""
    scene = a_scene()
    assert 14.0 == at(scene, "sliding, k = 1", 135)
    assert 10.25 == at(scene, "proportional, k = 1", 135)
    assert 17 == scene.exact.values[scene.moments_us.index((BEGIN_S + 135) * SECOND)]


def test_requests_leave_the_window() -> None:
    """A minute after the last request the exact count is zero, while the coarsest estimate still remembers it."""
    scene = a_scene()
    assert 0 == scene.exact.values[scene.moments_us.index((BEGIN_S + 192) * SECOND)]
    assert at(scene, "sliding, k = 1", 192) > 0
    assert 0 == at(scene, "sliding, k = 10", 198)


def test_what_was_let_through() -> None:
    """The fixed window admits its limit on both sides of the edge, ours does not."""
    scene = a_scene()
    assert 15 == at(scene, "fixed window", 132, lines="admitted")
    assert 10 == at(scene, "sliding, k = 10", 132, lines="admitted")
    assert ["sliding, k = 1", "sliding, k = 10", "proportional, k = 1", "proportional, k = 10"] == [
        line.label for line in scene.estimates
    ]


def test_busiest_stretch() -> None:
    """The stretch shown is that of the key and time with most denials, not with most requests."""
    many = rows_of("many", *(7 * n for n in range(500)))
    burst = rows_of("burst", *(10_000 + n / 10 for n in range(30)))
    busiest = Busiest(RATE)
    Replay(RATE, [Contender("exact-log")], watch=busiest).run([many, burst])
    found = busiest.found()
    assert found is not None
    assert ("burst", None) == found.key
    assert found.since_us <= burst[0].at_us < found.until_us


def test_nothing_denied() -> None:
    """If nothing is denied, it is the key with most requests; without requests there is nothing to show."""
    busiest = Busiest(RATE)
    Replay(RATE, [Contender("exact-log")], watch=busiest).run([rows_of("a", 1), rows_of("b", 2, 3)])
    found = busiest.found()
    assert found is not None
    assert ("b", None) == found.key
    assert Busiest(RATE).found() is None


def test_labels(tmp_path: Path) -> None:
    """An SVG names its axes with units, its lines and the limit as text, and is well-formed."""
    path = tmp_path / "picture.svg"
    draw(a_scene(), path)
    text = path.read_text()
    words = {word.strip() for node in ElementTree.fromstring(text).iter() for word in (node.text or "",)}
    assert {"requests per 60 s", "limit 10", "exact", "fixed window", "sliding, k = 10", "proportional, k = 1"} <= words
    assert any(word.startswith("minutes since 2023-11-14") for word in words)
    assert len(text) < 200_000


def test_lines_are_drawn_where_the_data_is(tmp_path: Path) -> None:
    """The highest point of the exact count is as far above the limit line as the data says."""
    path = tmp_path / "picture.svg"
    draw(a_scene(), path)
    panel = path.read_text().split('id="axes_1"')[1].split('id="axes_2"')[0]
    heights = {}
    for colour in ("#777777", "#d55e00"):
        drawn = next(line for line in re.findall(r"<path d=\"([^\"]+)\"[^>]*?stroke: " + colour, panel) if "L" in line)
        heights[colour] = [float(y) for y in re.findall(r"[ML] [0-9.]+ ([0-9.]+)", drawn)]
    zero, top, limit = max(heights["#777777"]), min(heights["#777777"]), heights["#d55e00"][0]
    assert 17 / 10 == pytest.approx((zero - top) / (zero - limit), rel=0.01)
    below = path.read_text().split('id="axes_2"')[1]
    strokes = [colour.lower() for colour, _ in STROKES[: len(a_scene().admitted)]]
    assert [1, *[2] * 4, 1] == [(f"stroke: {colour}" in panel) + (f"stroke: {colour}" in below) for colour in strokes]
    assert f"stroke: {strokes[0]}" in below  # the fixed window has no estimate


def test_same_data_same_file(tmp_path: Path) -> None:
    """A picture that is drawn again does not change."""
    for name in ("one.svg", "two.svg"):
        draw(a_scene(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_png(tmp_path: Path) -> None:
    """The name decides the kind."""
    draw(a_scene(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_more_lines_than_colours(tmp_path: Path) -> None:
    """Not more lines are drawn than can be told apart."""
    contenders = [Contender("sliding", count) for count in (1, 2, 3, 4, 5, 6, 10, 12)]
    scene = a_scene(contenders=contenders)
    draw(scene, tmp_path / "picture.svg")
    assert 6 == len(scene.admitted)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the extra the error says what to install."""
    real_import = builtins.__import__

    def without_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(NoCharts, match=r"oauth_ratelimit\[charts\]"):
        draw(a_scene(), tmp_path / "picture.svg")
