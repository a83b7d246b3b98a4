"""docs/accuracy.md: its tables are what was measured, its command works."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.accuracy_page import IMAGES, PAGE, TABLES, Kept, with_tables
from benchmarks.late_answers import LATE_S
from benchmarks.results import load
from benchmarks.ways import WAYS
from oauth_ratelimit.cli import command

TEXT = PAGE.read_text(encoding="utf-8")


def test_tables_are_up_to_date() -> None:
    """The page holds what the kept results give."""
    assert TEXT == with_tables(TEXT, Kept(load()))


@pytest.mark.parametrize("name", TABLES)
def test_page_without_marks(name: str) -> None:
    """A page that has nowhere to put a table is refused."""
    with pytest.raises(ValueError, match=f"marks of the table {name}"):
        with_tables(TEXT.replace(f"<!-- table: {name} -->", ""), Kept(load()))


def test_pictures() -> None:
    """Every picture of the page is there, small, and no other."""
    shown = set(re.findall(r"\(images/(accuracy-[^)]+)\)", TEXT))
    assert shown == {path.name for path in IMAGES.glob("accuracy-*")}
    assert all((IMAGES / name).stat().st_size < 150_000 for name in shown)


def test_command_on_the_page(tmp_path: Path) -> None:
    """The command runs as it stands there."""
    ((words,),) = [re.findall(r"^\$ flask oauth-ratelimit (.+)$", TEXT, re.MULTILINE)]
    path, picture = tmp_path / "access.log.gz", tmp_path / "traffic.svg"
    path.write_text('h - app [01/Aug/1995:00:00:07 -0400] "POST /oauth/token HTTP/1.1" 200 1\n' * 3)
    places = {"access.log.gz": str(path), "traffic.svg": str(picture)}
    result = CliRunner().invoke(command, [places.get(word, word) for word in words.split()], catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    assert picture.exists()


def test_default_frames_and_interval() -> None:
    """The defaults that the page argues for are those of the code."""
    from oauth_ratelimit.config import load_config
    from oauth_ratelimit.core.window import MAX_DEFAULT_FRAMES, default_frame_count

    assert 10 == MAX_DEFAULT_FRAMES == default_frame_count(60)
    sync = load_config({}).sync
    assert (1.0, "flush", 0.02) == (sync.interval_s, sync.near_limit, sync.deadline_s)
    assert 2 * sync.deadline_s == LATE_S  # as the page says


def test_numbers_of_the_text() -> None:
    """What the page concludes from the ways to synchronise is in its table."""
    table, text = re.findall(r"<!-- table: ways -->(.+?)<!-- end of table -->(.+?)<!-- table", TEXT, re.DOTALL)[0]
    (conclusions,) = re.findall(r"What follows for the defaults:(.+)", text, re.DOTALL)
    numbers = set(re.findall(r"\d+\.\d+|\d+,\d{3}", conclusions))
    assert len(numbers) > 10
    assert numbers <= {cell.strip() for cell in table.split("|")}


def test_every_way_is_measured() -> None:
    """The table has a row for each way, with nothing left out."""
    table = TEXT.partition("<!-- table: ways -->")[2].partition("<!-- end of table -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n") if "|" in line][2:]
    assert [way.name for way in WAYS] == [row[0] for row in rows]
    assert all(all(row) for row in rows)
