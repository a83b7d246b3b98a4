"""The tutorial works when it is followed to the letter."""

from pathlib import Path

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.story import Reader
from tests.support.mongod import free_port

PAGE = ROOT / "docs" / "tutorial.md"


def test_tutorial(tmp_path: Path, mongo_uri: str) -> None:
    """Every file is written, every command is run, and what it prints is what the page shows."""
    reader = Reader(
        tmp_path, {"127.0.0.1:8000": f"127.0.0.1:{free_port()}", "mongodb://localhost:27017/oauth": mongo_uri}
    )
    try:
        for block in blocks_of(PAGE):
            reader.follow(block)
    finally:
        reader.stop()
    assert "Traceback" not in (tmp_path / "server.log").read_text()
