"""The pages on accuracy: their tables show the results that are kept, and the command works."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.accuracy_page import IMAGES, PAGES, TABLES, Kept, with_tables
from benchmarks.results import load
from oauth_ratelimit.cli import command
from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.window import MAX_DEFAULT_FRAMES, default_frame_count

TEXT = PAGES[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_are_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == with_tables(text, Kept(load()))


def test_missing_result_is_named_with_the_command_that_measures_it() -> None:
    kept = [entry for entry in load() if entry["name"].partition("/")[0] != "sharing"]
    with pytest.raises(LookupError, match=r"results.json has no 'sharing/.*python -m benchmarks sharing"):
        for path in PAGES:
            with_tables(path.read_text(encoding="utf-8"), Kept(kept))


def test_each_table_is_on_one_page() -> None:
    names = [name for path in PAGES for name in re.findall(r"^<!-- table: (\w+) -->$", path.read_text(), re.MULTILINE)]
    assert sorted(TABLES) == sorted(names)


def test_page_shows_every_picture_and_all_are_small() -> None:
    shown = set(re.findall(r"\(images/(accuracy-[^)]+)\)", TEXT))
    assert shown == {path.name for path in IMAGES.glob("accuracy-*")}
    assert all((IMAGES / name).stat().st_size < 150_000 for name in shown)


def test_command_on_the_page_runs(tmp_path: Path) -> None:
    ((words,),) = [re.findall(r"^\$ flask oauth-ratelimit (.+)$", TEXT, re.MULTILINE)]
    path, picture = tmp_path / "access.log.gz", tmp_path / "traffic.svg"
    path.write_text('h - app [01/Aug/1995:00:00:07 -0400] "POST /oauth/token HTTP/1.1" 200 1\n' * 3)
    places = {"access.log.gz": str(path), "traffic.svg": str(picture)}
    result = CliRunner().invoke(command, [places.get(word, word) for word in words.split()], catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    assert picture.exists()


def test_defaults_on_the_page_are_those_of_the_code() -> None:
    assert 10 == MAX_DEFAULT_FRAMES == default_frame_count(60)
    sync = load_config({}).sync
    assert (1.0, "flush", 0.02) == (sync.interval_s, sync.near_limit, sync.deadline_s)
