"""docs/performance.md: its tables are what was measured, its pictures are there and show the same."""

import re
from pathlib import Path

import pytest

from benchmarks.charts.goal import Goal, Kept
from benchmarks.charts.pictures import IMAGES, PICTURES, path_of
from benchmarks.charts.rows import Rows
from benchmarks.document import PATH, with_tables
from benchmarks.results import load

TEXT = PATH.read_text(encoding="utf-8")
KEPT = {str(entry["name"]): entry for entry in load()}


def test_tables_are_up_to_date() -> None:
    """The page holds what the kept results give: ``python -m benchmarks.document`` has nothing to do."""
    assert TEXT == with_tables(TEXT, load())


def test_tables_are_marked() -> None:
    """Each table ends before the next one begins, and none is empty."""
    marks = re.findall(r"<!-- (results: .+|end) -->", TEXT)
    assert ["end"] * len(marks[1::2]) == marks[1::2]
    begins = [mark.removeprefix("results: ") for mark in marks[::2]]
    assert len(begins) == len(marks[1::2]) and "end" not in begins
    assert [] == [begin for begin in begins if not any(name.startswith(f"{begin}/") for name in KEPT)]


def test_results_change() -> None:
    """A table that says something else than the results is made anew, and nothing around it changes."""
    page = "Before.\n<!-- results: pull -->\n| old |\n<!-- end -->\nAfter.\n"
    entry = {"name": "pull/each", "value": 1234.5, "unit": "us", "spread": 0.25, "goal": "<= 1000", "met": False}
    made = with_tables(page, [entry, {**entry, "name": "pull on/each"}])
    assert made.startswith("Before.\n<!-- results: pull -->\n| what |")
    assert made.endswith("| each | 1,234 us | 0.25 | <= 1000 | **missed** |\n<!-- end -->\nAfter.\n")


def test_pictures() -> None:
    """The page shows every picture, and no other; each is there, and small."""
    shown = set(re.findall(r"\(images/(performance-[^)]+)\)", TEXT))
    assert shown == {path_of(name).name for name in PICTURES} == {path.name for path in IMAGES.glob("performance-*")}
    assert all((IMAGES / name).stat().st_size < 150_000 for name in shown)


@pytest.mark.parametrize("name", PICTURES)
def test_numbers_in_pictures(name: str) -> None:
    """Pictures find results under their names, and the numbers beside bars are the kept ones."""
    picture = PICTURES[name]
    assert all(panel.is_in(KEPT) for panel in picture.panels)
    texts = set(re.findall(r"<text [^>]+>([^<]+)</text>", path_of(name).read_text(encoding="utf-8")))
    assert texts
    assert texts.issuperset(text for panel in picture.panels if isinstance(panel, Rows) for text in panel.numbers(KEPT))


def test_missing_results(tmp_path: Path) -> None:
    """A picture shows what there is; without anything there is none."""
    path = tmp_path / "endpoint.svg"
    PICTURES["endpoint"].draw(path, {})
    assert not path.exists()
    name = "endpoint/WSGI, client_credentials/added by bare bones"
    PICTURES["endpoint"].draw(path, {name: {"value": 9.5, "spread": None, "goal": None}})
    text = path.read_text(encoding="utf-8")
    assert "bare bones" in text and "Flask-Limiter" not in text and "gunicorn" not in text


def test_goals() -> None:
    """A goal lies where the value would just meet it, whichever of the two is divided by the other."""
    kept: Kept = {
        "ours": {"value": 50.0, "goal": None},
        "ours of theirs": {"value": 0.05, "goal": "<= 0.1"},
        "theirs of ours": {"value": 20.0, "goal": ">= 10"},
        "pause": {"value": 7.0, "goal": "<= 5"},
    }
    marks = [Goal("at {}", *names).mark(kept) for names in (["ours", "ours of theirs"], ["ours", "theirs of ours"])]
    assert [(100.0, "at 0.1"), (100.0, "at 10")] == [(mark.value, mark.text) for mark in marks if mark]
    pause = Goal("at {} ms", "pause").mark(kept)
    assert pause is not None and (5.0, "at 5 ms") == (pause.value, pause.text)
    assert Goal("at {}", "ours").mark(kept) is Goal("at {}", "nothing", "pause").mark(kept) is None
