"""The tutorial works when it is followed to the letter."""

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.story import Reader
from tests.support.mongod import free_port

PAGE = ROOT / "docs" / "tutorial.md"
QUICK = """
from oauth_ratelimit.observe import denials, statistics

denials.WRITE_EVERY_S = statistics.WRITE_EVERY_S = 0.5  # a reader needs ten seconds to get to the next step
"""


def test_tutorial_followed_to_the_letter_prints_what_it_shows(
    tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is written, every command is run, and what it prints is what the page shows."""
    (tmp_path / "sitecustomize.py").write_text(QUICK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reader = Reader(
        tmp_path, {"127.0.0.1:8000": f"127.0.0.1:{free_port()}", "mongodb://localhost:27017/oauth": mongo_uri}
    )
    try:
        for block in blocks_of(PAGE):
            reader.follow(block)
    finally:
        reader.stop()
    assert "Traceback" not in (tmp_path / "server.log").read_text()
