"""docs/configuration.md: its commands run, its links lead somewhere, its reference is up to date."""

import re
from pathlib import Path

import pytest

from oauth_ratelimit.config.notation import parse_duration
from oauth_ratelimit.config.reference import BEGIN, reference_text, with_reference
from oauth_ratelimit.config.settings import FILE
from oauth_ratelimit.core.window import Estimator
from tests.cli.conftest import Terminal, terminal
from tests.docs.blocks import blocks_of, commands_of, words_of

__all__ = ["terminal"]

PATH = Path(__file__).parents[1] / "docs" / "configuration.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_reference_is_up_to_date() -> None:
    """``python -m oauth_ratelimit.config.reference`` was run after the last change of a key."""
    assert PAGE == with_reference(PAGE)


def test_every_key_is_in_the_reference() -> None:
    """Each section of the file has its heading, and each key its row."""
    text = reference_text()
    for section in FILE.sections:
        assert f"### {section.title}\n" in text
        assert all(f"| `{key}` |" in text for key in section.keys)


def test_sentence_about_estimators_names_them_all() -> None:
    (sentence,) = re.findall(r"^A limit may name its `estimator`: ([^.]*)\.", PAGE, re.MULTILINE)
    assert set(Estimator) == set(re.findall(r"`(\w+)`", sentence))


def test_page_without_marks_is_refused() -> None:
    """There is no place for the reference."""
    with pytest.raises(ValueError, match="expected the marks"):
        with_reference(BEGIN)


def test_commands_on_the_page_run(terminal: Terminal) -> None:
    """Every command on the page runs, one after the other, on one database."""
    for line in (line for block in blocks_of(PATH) if block.language == "shell" for line in commands_of(block)):
        program, group, *words = words_of(line)
        assert ("flask", "oauth-ratelimit") == (program, group)
        result = terminal.run(*words)
        assert result.exit_code in (0, 1), result.output
        assert "Error" not in result.stderr, result.stderr


def test_links_on_the_page_lead_somewhere() -> None:
    """Every file that is linked exists, and so does the heading, on this page or another."""
    for link in re.findall(r"\]\(([^)]*)\)", PAGE):
        name, _, anchor = link.partition("#")
        path = PATH.parent / name if name else PATH
        assert path.exists(), link
        assert not anchor or anchor in anchors_of(path.read_text(encoding="utf-8")), link


def anchors_of(page: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_defaults_of_durations_are_shown_as_they_are_written() -> None:
    """Each can be pasted into the file."""
    assert ["2s", "1s", "20ms", "30d", "30d"] == [
        text for text in re.findall(r"\| duration [^|]*\| `([^`]*)` \|", reference_text()) if parse_duration(text)
    ]
